"""Training without labels, in the loop: settings, resuming and two processes, held-out loss, pictures, transfer."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.training import tiny_runs
from tests.training.test_distributed import close
from tests.two_ranks import two_ranks
from vitkit.data.draws import Draw
from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.evaluation.fewshot import fewshot
from vitkit.evaluation.knn import knn
from vitkit.runs import read_record
from vitkit.training.build import build
from vitkit.training.pictures import Pictures, cut_pictures, drawn
from vitkit.training.recipes import resolve
from vitkit.transfer.finetune import finetune
from vitkit.world import World

HERE = Path(__file__).parent
PATCHES = ("objective=masked_patches", "model.patch=2", "data.pipeline=pad_crop(1)|flip")
MAE = ("objective={name: mae, decoder_width: 16, decoder_depth: 1}", *PATCHES[1:])
RANDOM = ("model.dropout=0.1", "model.stochastic_depth=0.2", "micro_batch=8")
# Two processes: what both objectives share, and what each does with weights that are spread.
PARALLEL: dict[str, tuple[str, ...]] = {
    "ddp": (*PATCHES, "parallel=ddp"),
    "fsdp": (*PATCHES, "parallel=fsdp", "micro_batch=4"),
    "fsdp mae": (*MAE, "parallel=fsdp"),
}


def pictures(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((path / "pictures").iterdir())}


@pytest.mark.slow
def test_every_setting_changes_the_loss(tmp_path: Path) -> None:
    changes = ("corrupt_share=0.25", "target=colors_4x4", "target=pixels")
    losses = set()
    for number, change in enumerate(("", *changes)):
        extra = [f"objective.{change}"] if change else []
        result = tiny_runs.run_tiny(tmp_path / str(number), *PATCHES, *extra, "duration=3")
        assert ("color_accuracy" in result.metrics) == (change != "target=pixels")
        losses.add(result.metrics["test/loss"])
    assert len(losses) == 4


@pytest.mark.parametrize("name", [pytest.param("ViT-Lite-2/4", marks=pytest.mark.slow), "CVT-2/4"])
def test_compact_transformers_of_patches_train(name: str, tmp_path: Path) -> None:
    """Their tokens are patches of the image, too; the run's model starts another one."""
    run = tmp_path / "run"
    model = f"model={{name: {name}, image_size: 8, kernel: 2, width: 16, depth: 2, heads: 2, mlp_width: 32}}"
    tiny_runs.run_tiny(run, PATCHES[0], model, PATCHES[2], "duration=6")
    assert len(pictures(run)) > 0
    assert vitkit.load(run, device="cpu").model.config.num_classes == 0
    tiny_runs.run_tiny(tmp_path / "next", f"model={{name: {run}}}", "duration=2")


def test_images_are_not_mixed(tmp_path: Path) -> None:
    listener, mixing = tiny_runs.Listener(), f"{PATCHES[2]}|mixup(0.5)"
    for name, changes in {"plain": PATCHES, "mixed": (*PATCHES[:2], mixing)}.items():
        tiny_runs.run_tiny(tmp_path / name, *changes, "duration=3", listener=listener)
    assert tiny_runs.lines(tmp_path / "plain") == tiny_runs.lines(tmp_path / "mixed")
    assert "images are not mixed: masked_patches learns from unmixed images" in listener.notes


@pytest.mark.slow
def test_images_need_no_class_folders(tmp_path: Path) -> None:
    """All images below the folder are learned from; its made splits hold each of them once."""
    draw = np.random.default_rng(0)
    for number in range(40):
        place = tmp_path / "photos" / ("" if number % 2 else "more")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).save(place / f"{number}.png")
    photos = tmp_path / "photos"
    where = (
        f"data.train={photos}:train",
        f"data.evaluate={photos}:test",
        "duration=3",
        "data.pipeline=resize(8)",
    )
    result = tiny_runs.run_tiny(tmp_path / "run", *PATCHES, *where)
    assert result.metrics["test/loss"] > 0
    parts = [open_data(f"{photos}:{split}", labelled=False) for split in ("train", "val", "test")]
    assert sorted(part.where(index) for part in parts for index in range(len(part))) == sorted(
        str(path) for path in photos.rglob("*.png")
    )
    with pytest.raises(InputError, match="no class folders"):
        tiny_runs.run_tiny(tmp_path / "labelled", f"data.train={tmp_path / 'photos' / 'more'}", "duration=3")


def test_images_stay_in_their_splits_and_classes(tmp_path: Path) -> None:
    """Loose images come on top: else what one verb learns from another would measure on."""
    draw = np.random.default_rng(1)
    for number in range(60):
        place = tmp_path / ("." if number % 10 == 9 else f"class-{number % 3}")
        place.mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (6, 6, 3), np.uint8)).save(place / f"{number}.png")
    for split in ("train", "val", "test"):
        one, other = (open_data(f"{tmp_path}:{split}", labelled=labelled) for labelled in (True, False))
        known = {one.where(index): one.class_names[one.labels[index]] for index in range(len(one))}
        found = {other.where(index): other.class_names[other.labels[index]] for index in range(len(other))}
        assert known.items() <= found.items() and set(found.values()) - set(known.values()) <= {""}


@pytest.mark.parametrize("has_classes", [False, True])
def test_folders_of_splits_may_hold_images(has_classes: bool, tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    for number in range(12):
        place = tmp_path / ("val" if number % 4 == 0 else "train/cat" if has_classes else "train")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (6, 6, 3), np.uint8)).save(place / f"{number}.png")
    for split, count in (("train", 9), ("val", 3)):
        source = open_data(f"{tmp_path}:{split}", labelled=False)
        assert len(source) == count and all(f"/{split}/" in source.where(index) for index in range(count))


def test_objective_by_its_name_alone_takes_the_place_of_the_section(tmp_path: Path) -> None:
    text = tiny_runs.RECIPE + "objective: {loss: sigmoid, label_smoothing: 0.1}\n"
    recipe = tiny_runs.write_recipe(tmp_path, text)
    objective = resolve(recipe, ["objective=masked_patches", "objective.target=pixels"]).objective
    assert (objective.name, objective.target, objective.loss) == ("masked_patches", "pixels", "auto")
    with pytest.raises(InputError, match="loss does not apply to objective 'masked_patches'"):
        resolve(recipe, ["objective.name=masked_patches"])
    with pytest.raises(InputError) as error:
        resolve(recipe, ["objective.target=pixels", "objective=masked_patches"])
    assert str(error.value) == (
        "objective.target=pixels is overwritten by objective={name: masked_patches}, which comes later: swap them"
    )
    with pytest.raises(InputError, match="name in objective is 'patches'; expected one of 'supervised'"):
        resolve(recipe, ["objective=patches"])


@pytest.mark.parametrize(
    "changes", [PATCHES, pytest.param(MAE, marks=pytest.mark.slow)], ids=["masked_patches", "mae"]
)
def test_stopped_and_resumed_equals_straight_through(changes: tuple[str, ...], tmp_path: Path) -> None:
    one, other = tmp_path / "straight", tmp_path / "stopped"
    tiny_runs.run_tiny(one, *changes, *RANDOM)
    for step in (3, 7):
        stop = {step: lambda: signal.raise_signal(signal.SIGTERM)}
        assert tiny_runs.run_tiny(other, *changes, *RANDOM, at=stop).status == "stopped"
    assert tiny_runs.run_tiny(other, *changes, *RANDOM).status == "done"
    assert tiny_runs.differences(one, other) == []
    assert pictures(one) == pictures(other)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with two processes, and beside them with one alone."""
    folder = tmp_path_factory.mktemp("ranks")
    tiny_runs.write_recipe(folder)
    with two_ranks(__file__, str(folder)):
        for name, changes in PARALLEL.items():
            tiny_runs.run_tiny(folder / "one" / name, *changes)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", PARALLEL)
def test_two_processes_give_the_curve_of_one(ranks: Path, name: str) -> None:
    close(ranks / name, ranks / "one" / name, 5e-4)
    assert read_record(ranks / name)["environment"]["processes"] == 2
    ours, theirs = (pictures(folder / name) for folder in (ranks, ranks / "one"))
    assert ours.keys() == theirs.keys() == {"00000000.png", "00000012.png"}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [PATCHES, MAE], ids=["masked_patches", "mae"])
def test_compiled(changes: tuple[str, ...], tmp_path: Path) -> None:
    for name, extra in (("eager", []), ("compiled", ["compile=true"])):
        tiny_runs.run_tiny(tmp_path / name, *changes, *extra)
    for compiled, eager in zip(
        tiny_runs.lines(tmp_path / "compiled"), tiny_runs.lines(tmp_path / "eager"), strict=True
    ):
        assert compiled == pytest.approx(eager, rel=1e-3, abs=1e-3)


@pytest.mark.slow
def test_the_first_and_last_pictures_are_kept(tmp_path: Path) -> None:
    listener = tiny_runs.Listener()
    result = tiny_runs.run_tiny(
        tmp_path / "run", *PATCHES, "evaluate_every=2", "duration=7", listener=listener
    )
    files = [str(tmp_path / "run" / "pictures" / f"{step:08d}.png") for step in (0, 7)]
    assert result.pictures == tuple(files)
    assert f"pictures of its predictions: {tmp_path / 'run' / 'pictures'}" in listener.notes
    first, last = (np.asarray(Image.open(file)) for file in files)
    head = 18
    assert first.shape == (
        head + 4 * 128 + 3 * 4,
        3 * 128 + 2 * 4,
        3,
    )  # images of 8 pixels, 16 times as large
    columns = [slice(0, 128), slice(132, 260), slice(264, 392)]
    assert all(first[:head, column].min() < 64 for column in columns)  # dark letters
    assert np.array_equal(first[:head], last[:head])
    for column, same in zip(columns, (True, True, False), strict=True):
        assert np.array_equal(first[:, column], last[:, column]) == same
    digits = vitkit.open_data("digits:test[:65]").images
    assert digits is not None
    assert np.array_equal(first[head:][:128:16, :128:16], digits[0].repeat(3, axis=2)[:, :, :3])
    mine = [tmp_path / "run" / "pictures" / name for name in ("mine.png", "9.png")]
    for path in mine:
        path.write_bytes(b"")
    cut_pictures(tmp_path / "run", 5)
    assert [path.name for path in drawn(tmp_path / "run")] == ["00000000.png"]
    assert all(path.exists() for path in mine)
    supervised = tiny_runs.run_tiny(tmp_path / "labels", "duration=2")
    assert supervised.pictures == () and not (tmp_path / "labels/pictures").exists()


def test_pictures_are_of_train_where_nothing_is_measured(tmp_path: Path) -> None:
    result = tiny_runs.run_tiny(tmp_path / "run", *MAE, "data.evaluate=null", "duration=2")
    image = np.asarray(Image.open(result.pictures[0]))
    digits = vitkit.open_data("digits:train[:128]").images
    assert digits is not None and np.array_equal(image[18:][:128:16, :128:16, 0], digits[0][:, :, 0])


@pytest.mark.parametrize(("bad", "shown"), [([0], [20, 40, 10, 50]), ([0, 2, 4], [60, 10, 50])])
def test_images_that_cannot_be_read_give_way_to_others(
    bad: list[int], shown: list[int], tmp_path: Path
) -> None:
    """Of a, which holds the even numbers, and b two places each; a place without an image is left out."""
    for number in range(8):
        folder = tmp_path / "photos" / "train" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 10 * number, np.uint8)).save(folder / f"{number}.png")
    for number in bad:
        (tmp_path / f"photos/train/a/{number}.png").write_bytes(b"no image")
    listener = tiny_runs.Listener()
    result = tiny_runs.run_tiny(
        tmp_path / "run", *MAE, f"data.train={tmp_path / 'photos'}:train", "data.evaluate=null",
        "data.pipeline=resize(8)", "data.bad_images=any", "data.workers=0", "batch_size=4", "duration=2", "evaluate_every=1",
        listener=listener,
    )  # fmt: skip
    image = np.asarray(Image.open(result.pictures[-1]))[18:, :, 0]
    assert image[:: 128 + 4, 0].tolist() == shown
    assert not any(note.startswith("no pictures: ") for note in listener.notes)
    unreadable = {str(tmp_path / f"photos/train/a/{number}.png") for number in bad}
    assert {entry.image for entry in result.unreadable} == unreadable
    assert all(entry.reason.startswith("it is not an image") for entry in result.unreadable)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [MAE, ()], ids=["mae", "supervised"])
def test_images_that_cannot_be_read_are_not_measured(settings: tuple[str, ...], tmp_path: Path) -> None:
    for number in range(12):
        folder = tmp_path / "photos" / ("train" if number < 8 else "val") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 10 * number, np.uint8)).save(folder / f"{number}.png")
    given = [
        *settings, f"data.train={tmp_path / 'photos'}:train", f"data.evaluate={tmp_path / 'photos'}:val",
        "data.pipeline=resize(8)", "data.workers=0", "batch_size=4", "duration=2", "evaluate_every=1",
    ]  # fmt: skip
    bad = tmp_path / "photos/val/a/8.png"
    bad.write_bytes(b"no image")
    with pytest.raises(InputError, match="cannot read .*8.png.*data.bad_images=skip"):
        tiny_runs.run_tiny(tmp_path / "stops", *given, "data.bad_images=error")
    found = tiny_runs.run_tiny(tmp_path / "skips", *given)
    assert [entry.image for entry in found.unreadable] == [str(bad)]
    bad.unlink()
    without = tiny_runs.run_tiny(tmp_path / "without", *given)
    assert np.isfinite(found.metrics["val/loss"])
    if not settings:  # patches that are hidden are another image's without it
        assert found.metrics["val/loss"] == pytest.approx(without.metrics["val/loss"], rel=1e-5)
    for place in (9, 10, 11):
        next(tmp_path.glob(f"photos/val/*/{place}.png")).write_bytes(b"no image")
    with pytest.raises(InputError, match="no image of .*photos:val can be read"):
        tiny_runs.run_tiny(tmp_path / "none", *given, "data.bad_images=any")


@pytest.mark.slow
def test_what_no_model_folder_holds_begins_anew_and_is_told(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path / "first", *MAE, "duration=2")
    listener = tiny_runs.Listener()
    start = f"model={{name: {tmp_path / 'first'}}}"
    tiny_runs.run_tiny(tmp_path / "more", start, *MAE, "duration=2", listener=listener)
    assert "only the encoder is loaded: the mask token and other parts of mae are new" in listener.notes


def test_features_are_measured_with_labels_of_other_data(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    for number in range(20):
        Image.new("RGB", (8, 8), (10 * number, 0, 0)).save(tmp_path / "flat" / f"{number}.png")
    changes = [f"data.train={tmp_path / 'flat'}:all", "data.evaluate=null", "data.pipeline=resize(8)"]
    changes += ["data.workers=0", "duration=2"]
    with pytest.raises(
        InputError,
        match="no class folders; .*frozen.evaluators need labels: name data that has them with frozen.data=DATA$",
    ):
        tiny_runs.run_tiny(tmp_path / "run", *MAE, *changes, "frozen.evaluators=[knn]")
    data = "frozen.data=digits:train[:99]"
    found = tiny_runs.run_tiny(tmp_path / "run", *MAE, *changes, "frozen.evaluators=[knn]", data)
    assert any("knn" in name for name in found.metrics)


def test_pictures_are_left_out_where_no_image_can_be_read(tmp_path: Path) -> None:
    listener = tiny_runs.Listener()
    config = resolve(tiny_runs.write_recipe(tmp_path), MAE)
    parts = build(config, World(0, 1, torch.device("cpu")))
    parts.evaluator.source.images = None  # type: ignore[union-attr]
    parts.evaluator.source.read = lambda index: b"no image"  # type: ignore[union-attr, method-assign]
    pictures = Pictures(config, parts, tmp_path, listener, World(0, 1, torch.device("cpu")))
    for step in (0, 1):
        pictures.draw(step)
    [note] = listener.notes
    assert note.startswith("no pictures: cannot read") and not drawn(tmp_path)


def test_the_loss_of_held_out_images(tmp_path: Path) -> None:
    """Every image once, with choices of its own; nothing is best by it, so that the model is the last."""
    changes = (*PATCHES, "average=null", "duration=4", "data.evaluate=digits:test[:21]", "model.dropout=0.1")
    result = tiny_runs.run_tiny(tmp_path / "run", *changes)
    assert result.best is None
    line = tiny_runs.lines(tmp_path / "run")[-1]
    config = resolve(tiny_runs.write_recipe(tmp_path), changes)
    parts = build(config, World(0, 1, torch.device("cpu")))
    state = tiny_runs.tensors(tmp_path / "run")
    parts.objective.load_state_dict(
        {name.removeprefix("objective."): value for name, value in state.items() if "objective." in name[:10]}
    )
    images = torch.from_numpy(vitkit.open_data("digits:test[:21]").images).permute(0, 3, 1, 2)
    images = images.expand(-1, 3, -1, -1).contiguous()
    losses = []
    with torch.no_grad():
        for index in range(21):
            draw = Draw(0, 0, np.array([index]), "held out")
            given = parts.objective.eval().prepare({"image": images[index : index + 1]}, draw)
            losses.append(float(parts.objective(given)[0]))
    assert line["test/loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    model = vitkit.load(tmp_path / "run", device="cpu").model.state_dict()
    assert all(torch.equal(value, state[f"objective.model.{name}"]) for name, value in model.items())
    assert not any(name.startswith(("corruption", "predict")) for name in model)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [PATCHES, MAE], ids=["masked_patches", "mae"])
def test_the_result_transfers_as_it_is(
    changes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = str(tmp_path / "run")
    shapes = ("data.train=shapes:train[:64,size=8]", "data.pipeline=resize(8)|flip", "data.workers=0")
    tiny_runs.run_tiny(Path(run), *changes, *shapes, "duration=2", "data.evaluate=null")
    data: dict[str, Any] = {"evaluate": "digits:test[:50]", "device": "cpu"}
    shots = fewshot(run, "digits:train[:300]", shots=[2], seeds=1, **data)
    neighbours = knn(run, "digits:train[:300]", k=3, **data)
    assert all(0.1 < row.accuracy <= 1 for row in (*shots.results, *neighbours.results))
    changes = ("protocol=paper", "image_size=8", "duration=2", "optimizer.learning_rate=1e-30")
    tuned = finetune(run, "digits:train[:300]", changes, run=str(tmp_path / "tuned"), device="cpu")
    assert tuned.status == "done"
    before, after = (vitkit.load(path, device="cpu") for path in (run, tmp_path / "tuned"))
    assert after.class_names == tuple("0123456789")
    ours = after.model.state_dict()
    assert all(torch.equal(ours[name], value) for name, value in before.model.state_dict().items())


def main(folder: Path) -> None:
    for name, changes in PARALLEL.items():
        tiny_runs.run_tiny(folder / name, *changes, recipe=folder / "tiny.yaml")


if __name__ == "__main__":
    main(Path(sys.argv[1]))


@pytest.mark.parametrize("name", ["CCT-2/3x2", "R26+S/32", "BiT-R50x1"])
def test_other_families_are_refused_whatever_a_recipe_sets(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="^objective masked_patches needs a plain ViT, a ViT-Lite or a CVT"):
        tiny_runs.run_tiny(tmp_path / "run", *PATCHES, f"model.name={name}", "data.train=./nowhere")
