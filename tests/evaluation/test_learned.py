"""A run that is measured on images that it learned from says so; whatever can't be known is no error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from vitkit.data.open import open_data
from vitkit.evaluation.learned import warn_if_learned
from vitkit.notes import kind_of
from vitkit.runs import RunFolder, data_facts, read_config, read_record
from vitkit.training.run import identity


@pytest.fixture(autouse=True)
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten images of each of two classes in ./photos, without splits."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("cat", "dog")):
        Path("photos", name).mkdir(parents=True)
        for index in range(10):
            Image.new("RGB", (8, 8), (index, number, 0)).save(f"photos/{name}/{index}.png")


@pytest.fixture
def trained() -> str:
    settings = {"data": {"train": "./photos"}, "objective": {"name": "supervised"}}
    RunFolder("runs/trained", settings).close()
    return "runs/trained"


@pytest.fixture
def tuned() -> str:
    settings = {"model": "Ti/16", "data": "./photos:train", "changes": [], "sweep": None, "seeds": 1}
    RunFolder("runs/tuned", settings, kind="finetune").close()
    return "runs/tuned"


def warnings(run: str, data: str) -> list[str]:
    found = warn_if_learned(run, open_data(data, default="measure"))
    assert all(kind_of(line) == "warning" for line in found)
    return [*map(str, found)]


@pytest.mark.parametrize("spelled", ["./photos", "./photos/../photos", "{}/photos"])
def test_images_that_a_run_learned_from_are_counted(
    trained: str, tuned: str, tmp_path: Path, spelled: str
) -> None:
    data = spelled.format(tmp_path)
    for run in (trained, tuned, f"{tuned}@last"):
        end = "of these images; its accuracy on new images will be lower"
        start = f"{run.removesuffix('@last')} was trained on"
        assert warnings(run, f"{data}:train") == [f"{start} 16 {end}"]
        assert warnings(run, f"{data}:all") == [f"{start} 16 {end}"]
        assert warnings(run, f"{data}:train[:1]") == [f"{start} 1 {end}"]
        assert warnings(run, data) == []  # the test split
        assert warnings(run, f"{data}:val") == []


def test_a_folder_inside_the_one_that_was_learned_from() -> None:
    shutil.copytree("photos", "sets/train")
    shutil.copytree("photos", "sets/test")
    RunFolder("runs/sets", {"data": {"train": "./sets"}}).close()
    assert warnings("runs/sets", "./sets/test:all") == []
    [line] = warnings("runs/sets", "./sets/train:all")
    assert line.startswith("runs/sets was trained on 20 of these images;")


def test_other_data_is_not_opened(trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree("photos", "others/train")
    shutil.copytree("photos", "others/test")
    RunFolder("runs/others", {"data": {"train": "./others"}}).close()
    source, test = open_data("./others:train"), open_data("./others:test")
    monkeypatch.setattr("vitkit.evaluation.learned.open_data", lambda *_, **__: pytest.fail("opened"))
    assert warn_if_learned(trained, source) == []
    assert warn_if_learned("runs/others", test) == []
    RunFolder("runs/hub", {"data": {"train": "hf-hub:org/photos"}}).close()
    assert warn_if_learned("runs/hub", source) == []


def test_what_is_not_known_is_no_error(trained: str, tuned: str) -> None:
    digits = open_data("digits:test")
    for model in ("Ti/16", "Ti/16@weights.safetensors", "nowhere", "runs"):
        assert warn_if_learned(model, digits) == []
    source = open_data("./photos:train")
    shutil.rmtree("photos")
    assert warn_if_learned(trained, source) == [] and warn_if_learned(tuned, source) == []
    record = json.loads(Path(tuned, "finetune.json").read_text())
    Path(tuned, "finetune.json").write_text(json.dumps(record | {"settings": {"data": 7}}))
    assert warn_if_learned(tuned, source) == []
    Path(tuned, "finetune.json").write_text("{")
    Path(trained, "config.yaml").write_text("data: [")
    assert warn_if_learned(trained, source) == [] and warn_if_learned(tuned, source) == []


def test_images_without_labels_count_too() -> None:
    settings = {"data": {"train": "digits"}, "objective": {"name": "masked_patches"}}
    RunFolder("runs/masked", settings).close()
    [line] = warnings("runs/masked", "digits:train")
    assert line.startswith("runs/masked was trained on 1,157 of these images;")


@pytest.mark.parametrize("kind", ["train", "finetune"])
def test_images_that_moved_into_another_split_since(trained: str, tuned: str, kind: str) -> None:
    """Splits made by content change with the images: those that were learned from may be in test now."""
    run = trained if kind == "train" else tuned
    settings = read_config(run) if kind == "train" else read_record(run, "finetune")["settings"]
    learned = open_data("./photos:train")
    known = data_facts(len(learned), learned.class_names)
    if kind == "train":
        known = identity(learned, learned.class_names)
    with RunFolder(run, settings, kind=kind) as folder:
        folder.update(data=known)
    assert warnings(run, "./photos") == []
    for index in range(10, 40):
        Image.new("RGB", (8, 8), (index, 0, 9)).save(f"photos/cat/{index}.png")
    words = "./photos has changed since {0} was trained, and splits made by content change with it: {0} may have been "
    for data in ("./photos", "./photos:val"):
        assert warnings(run, data) == [f"{words.format(run)}trained on some of these images"]
    [line] = warnings(run, "./photos:all")
    assert line.startswith(f"{run} was trained on ")


def test_images_that_were_skipped_were_not_learned_from(tuned: str) -> None:
    learned = open_data("./photos:train")
    with RunFolder(tuned, read_record(tuned, "finetune")["settings"], kind="finetune") as folder:
        folder.update(
            unreadable=[{"image": learned.where(0), "reason": "it is empty", "data": "./photos:train"}]
        )
    [line] = warnings(tuned, "./photos:all")
    assert line.startswith(f"{tuned} was trained on 15 of these images")
