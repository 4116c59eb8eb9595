"""`inspect_model`: a page that holds everything itself, pictures beside it, a reason for what is not defined."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.inspection import tiny_models
from tests.reports.pages import read
from tests.reports.run_folders import write_run
from vitkit.costs import cost_of
from vitkit.data.images import prepare
from vitkit.errors import InputError
from vitkit.figures import maps
from vitkit.figures.maps import photo
from vitkit.inspection import attention_distance, findings, pooling_map, rollout, uniform_distance
from vitkit.models.configs import Preprocessing
from vitkit.notes import Note
from vitkit.predictor import Predictor, load
from vitkit.reports.inspection import inspect_model
from vitkit.reports.outcomes import Accuracy, accuracy_of

TESTS = Path(__file__).parents[1]
EVIL = "<script>alert(1)</script>"


ORIGINALS = {name: getattr(maps, name) for name in ("distance_picture", "distance_svg")}


@functools.cache
def draw(name: str, numbers: bytes, heads: int, uniform: float | None) -> Any:
    return ORIGINALS[name](np.frombuffer(numbers).reshape(-1, heads), uniform)


@pytest.fixture(autouse=True)
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the same distances once: most tests inspect the same photos, and a diagram takes longer than all else."""
    for name in ("distance_picture", "distance_svg"):

        def once(distances: np.ndarray, uniform: float | None = None, name: str = name) -> Any:
            return draw(name, distances.astype(np.float64).tobytes(), distances.shape[1], uniform)

        monkeypatch.setattr(maps, name, once)


def save(path: Path, family: str, **settings: Any) -> str:
    config = tiny_models.FAMILIES[family]
    names = settings.pop("class_names", [f"kind {number}" for number in range(config.num_classes)])
    vitkit.save(
        tiny_models.make(config),
        path,
        class_names=names,
        preprocessing=Preprocessing(config.size),
        **settings,
    )
    return str(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (7, 20, 30, 3), np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number}.png")
    return folder


def look(model: Any, images: Any, out: Path, **settings: Any) -> Any:
    result = inspect_model(model, images, out=out, device="cpu", **{"num_photos": 1, **settings})
    json.dumps(result.to_json(), allow_nan=False)
    assert sorted(map(str, out.iterdir())) == sorted(result.files)
    for file in out.glob("*.png"):
        with Image.open(file) as image:
            image.load()
    return result


def test_files_numbers_and_pictures(tmp_path: Path, photos: Path) -> None:
    model = save(tmp_path / "model", "token")
    result = look(model, photos, tmp_path / "out", num_photos=2, num_images=5)
    names = {Path(file).name for file in result.files}
    kinds = ("", "-rollout", "-gradient", "-tokens", "-layers", "-heads")
    assert names == {
        *("index.html", "inspection.json", "attention_distance.csv"),
        *("filters.png", "positions.png", "attention_distance.png"),
        *(f"photo-{number}{kind}.png" for number in (1, 2) for kind in kinds),
    }
    assert json.loads((tmp_path / "out" / "inspection.json").read_text()) == result.to_json()
    page = read(result.html)
    assert len(page.images) == len(list((tmp_path / "out").glob("*.png"))) - 1  # the chart has no pixels
    shown, kept = (
        Image.open(file).convert("RGB")
        for file in (io.BytesIO(page.images[0]), tmp_path / "out" / "photo-1.png")
    )
    assert shown.size == kept.size and np.abs(np.asarray(shown, float) - np.asarray(kept)).mean() < 5
    assert "Mean over 5 images" in page.text
    assert "a map of pooling weights is not defined for this model" in page.text.lower()
    assert list(result.undefined) == ["pooling"]

    predictor = vitkit.load(model, device="cpu")
    used = [photos / f"{number}.png" for number in range(5)]  # 5 of 7, with the two that are drawn
    images = torch.stack([prepare(path, predictor.preprocessing) for path in used])
    expected = attention_distance(predictor, images)
    found = result.attention_distance
    np.testing.assert_allclose(found.by_head, expected, rtol=1e-6)
    assert (found.images, found.uniform) == (5, uniform_distance((2, 3), 4))
    with open(tmp_path / "out" / "attention_distance.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["pixels"]) for row in rows] == pytest.approx(expected.ravel().tolist(), abs=1e-3)

    assert [photo.image for photo in result.photos] == [str(used[0]), str(used[3])]
    tops = predictor.predict([used[0], used[3]])
    assert [photo.top for photo in result.photos] == tops
    assert [photo.target for photo in result.photos] == [top[0].name for top in tops]
    cost = cost_of(predictor.model.config)
    assert (result.cost.parameters, result.cost.macs) == (cost.parameters, cost.macs)
    assert f"{cost.parameters:,}" in page.text
    assert "the whole image resized to 8x12" in page.text.lower()


def test_photos_come_first(tmp_path: Path, photos: Path) -> None:
    """With what is predicted next to each; then what needs none, then the model."""
    result = look(save(tmp_path / "model", "token"), photos, tmp_path / "out")
    text = Path(result.html).read_text()
    assert re.findall("<h2>(.*?)</h2>", text) == [
        *("Photos", "Filters", "Position embeddings", "Attention distance", "Not drawn", "Model", "Cost")
    ]
    card = text[text.index("<article>") : text.index("</article>")]
    order = ("What the model saw", "guesses", "Attention rollout", "Gradient rollout")
    assert [card.index(words) for words in order] == sorted(card.index(words) for words in order)


def test_pages_are_small(tmp_path: Path, photos: Path) -> None:
    result = look(save(tmp_path / "model", "token"), photos, tmp_path / "out")
    pictures = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.png"))
    assert (
        Path(result.html).stat().st_size < pictures
    )  # though its pictures are text there, and its charts drawn


REASONS = {
    "token": {"pooling"},
    "map": set(),
    "unpooled": {"prediction", "gradient", "pooling"},
    "relative": {"positions", "pooling"},
    "hybrid": {"pooling"},
    "bit": {"positions", "distance", "rollout", "gradient", "tokens", "pooling", "attention"},
    "cct": {"positions"},
    "axial": {"pooling"},
    "linformer": {"distance", "rollout", "gradient", "pooling", "attention"},
}


@pytest.mark.parametrize("family", REASONS)
def test_what_is_not_defined_has_its_reason(tmp_path: Path, photos: Path, family: str) -> None:
    result = look(save(tmp_path / "model", family), [photos / "1.png"], tmp_path / "out")
    assert result.undefined.keys() == REASONS[family]
    text = read(result.html).text
    for said in result.undefined.values():
        what, _, reason = said.rpartition(" is not defined for this model, because ")
        assert what[1:] in text and text.count(f"{reason[1:]}.") == 1
    assert (result.attention_distance is None) == (family in ("bit", "linformer"))
    if family == "hybrid":
        assert "of the ResNet's first convolution" in text and "patches of the ResNet's feature map" in text
    if family in ("map", "cct"):
        assert (tmp_path / "out" / "photo-1-pooling.png").is_file()
        assert f"Weights of {'SeqPool' if family == 'cct' else 'the MAP head'}" in text
    if family == "bit":
        assert result.photos[0].top and "1.png" in text


def test_drawn_photos_are_of_all_classes(tmp_path: Path) -> None:
    for kind in "abcdef":
        (tmp_path / "six" / kind).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (12, 8), "red").save(tmp_path / "six" / kind / f"{number}.png")
    model = save(tmp_path / "model", "token")
    result = look(model, tmp_path / "six", tmp_path / "out", num_images=13, num_photos=6)
    assert result.attention_distance.images == 13
    assert [Path(photo.image).parent.name for photo in result.photos] == list("abcdef")


def test_an_earlier_inspection_is_no_photo(tmp_path: Path, photos: Path) -> None:
    model = save(tmp_path / "model", "token")
    for force in (False, True):
        result = inspect_model(model, photos, out=photos / "seen", device="cpu", num_photos=1, force=force)
        assert result.attention_distance.images == 7


@pytest.mark.parametrize("target", [None, "kind 2"])
def test_a_failure_is_not_taken_for_undefined(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, target: str | None
) -> None:
    """Else the gradient would be that of some class."""

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Predictor, "logits", fail)
    with pytest.raises(InputError, match="out of memory"):
        look(save(tmp_path / "model", "token"), photos, tmp_path / "out", target=target)


def test_a_model_is_one_file(tmp_path: Path) -> None:
    model = Path(save(tmp_path / "model", "token")) / "model.safetensors"
    assert model.is_file() and accuracy_of(model) is None


def test_without_images_what_needs_none_is_drawn(tmp_path: Path) -> None:
    result = look(save(tmp_path / "model", "token"), None, tmp_path / "out")
    assert {Path(file).name for file in result.files} == {
        *("filters.png", "positions.png", "inspection.json", "index.html")
    }
    text = read(result.html).text
    assert text.count("No images were given: vit inspect MODEL IMAGES also shows where the model looks") == 1
    assert "Photos" not in text and "Attention distance" not in text
    assert (result.attention_distance, result.photos, result.undefined) == (None, [], {})


def test_photos_can_be_left_out(tmp_path: Path, photos: Path) -> None:
    for family in ("token", "bit"):
        result = look(save(tmp_path / family, family), photos, tmp_path / f"out-{family}", num_photos=0)
        assert result.photos == []
        text = read(result.html).text
        assert "No photos were drawn" in text and "No images were given" not in text


def test_data_has_labels(tmp_path: Path) -> None:
    result = look(save(tmp_path / "model", "cct"), "digits:test[:9]", tmp_path / "out")
    source = vitkit.open_data("digits:test[:9]")
    (photo,) = result.photos
    assert (photo.image, photo.label) == (source.where(0), source.class_names[source.labels[0]])
    assert f"Class: {photo.label}" in read(result.html).text
    assert result.attention_distance.images == 9


def test_names_are_escaped(tmp_path: Path, photos: Path) -> None:
    odd = photos / "<b>&amp;.png"
    (photos / "0.png").rename(odd)
    model = save(tmp_path / "model", "token", class_names=[EVIL] * 5)
    result = look(model, odd, tmp_path / "out")
    text = read(result.html).text
    assert EVIL in text and "<b>&amp;.png" in text and f"Gradient rollout for {EVIL}" in text


def test_odd_bytes_in_a_name_do_no_harm(tmp_path: Path, photos: Path) -> None:
    odd = photos / "a\udcff.png"
    try:
        (photos / "0.png").rename(odd)
    except OSError:
        pytest.skip("the file system has names in UTF-8 only")
    result = look(save(tmp_path / "model", "token"), odd, tmp_path / "out")
    assert r"a\udcff.png" in read(result.html).text


def test_the_target_is_a_name_or_a_number(tmp_path: Path, photos: Path) -> None:
    model = save(tmp_path / "model", "token")
    maps = []
    for target in ("kind 3", "3", 3, 1):
        result = look(model, photos / "0.png", tmp_path / "out", target=target, force=True)
        assert result.photos[0].target == f"kind {'3' if target != 1 else '1'}"
        maps.append((tmp_path / "out" / "photo-1-gradient.png").read_bytes())
    assert maps[0] == maps[1] == maps[2] != maps[3]
    for target, message in (
        ("kind 9", "the model has no class 'kind 9'; did you mean 'kind 4'"),
        ("zebra", "the model has no class 'zebra'; expected a name or a number"),
        ("5", "no class 5: the model has 5 classes, counted from 0"),
    ):
        with pytest.raises(InputError, match=message.replace("'kind 4'", "'kind .'")):
            inspect_model(model, photos, out=tmp_path / "no", target=target)
    assert not (tmp_path / "no").exists()


def test_classes_that_are_numbers_are_named_by_them(tmp_path: Path, photos: Path) -> None:
    """On the command line a number is a name there; a whole number in Python is a place."""
    model = load(save(tmp_path / "model", "token"), names=["1", "3", "5", "7", "9"], device="cpu")
    for target, name in (("5", "5"), (4, "9"), (np.int64(4), "9")):
        found = look(model, photos / "0.png", tmp_path / "out", target=target, force=True)
        assert found.photos[0].target == name
    with pytest.raises(InputError, match="the model has no class '4'; expected a name$"):
        look(model, photos / "0.png", tmp_path / "out", target="4", force=True)


def test_a_loaded_model_is_inspected_as_it_is(tmp_path: Path, photos: Path) -> None:
    path = save(tmp_path / "model", "token")
    model = load(path, device="cpu")
    found = look(model, photos / "0.png", tmp_path / "loaded")
    assert found.model == model.name in read(found.html).text
    look(path, photos / "0.png", tmp_path / "named")
    pictures = [(tmp_path / name / "photo-1-rollout.png").read_bytes() for name in ("loaded", "named")]
    assert pictures[0] == pictures[1]
    with torch.no_grad():
        model.model.head.weight.copy_(-model.model.head.weight)
    found = look(model, photos / "0.png", tmp_path / "changed")
    assert (tmp_path / "changed" / "photo-1-gradient.png").read_bytes() != (
        tmp_path / "named" / "photo-1-gradient.png"
    ).read_bytes()


def test_rollout_settings_reach_the_maps(tmp_path: Path, photos: Path) -> None:
    model = save(tmp_path / "model", "token")
    found = {}
    for settings in ({}, {"fuse": "max"}, {"residual": 0.1}, {"discard": 0.7}):
        result = look(model, photos / "0.png", tmp_path / "out", force=True, **settings)
        found[str(settings)] = (tmp_path / "out" / "photo-1-rollout.png").read_bytes()
    assert len(set(found.values())) == 4
    assert "mean of heads, residual 0.5, the smallest 70% discarded" in read(result.html).text


def test_maps_say_their_scale(tmp_path: Path, photos: Path) -> None:
    model = save(tmp_path / "model", "cct")
    result = look(model, photos / "0.png", tmp_path / "out")
    predictor = vitkit.load(model, device="cpu")
    images = prepare(photos / "0.png", predictor.preprocessing)[None]
    text = read(result.html).text
    for name, heat in (
        ("Attention rollout", rollout(predictor, images)[0]),
        ("Weights of SeqPool", pooling_map(predictor, images)[0]),
    ):
        low, high = re.search(rf"{name}: ([\d.]+) to ([\d.]+)%", text).groups()  # type: ignore[union-attr]
        assert float(low) == pytest.approx(100 * heat.min(), rel=0.01, abs=0.006)
        assert 100 * heat.min() < float(high) <= 100 * heat.max() * 1.01


@pytest.mark.parametrize("family", ["token", "cvt"])
def test_pictures_show_what_patches_cover(family: str, tmp_path: Path, photos: Path) -> None:
    """Of 19 pixels a model of patches of 4 reads 16; a map lies over those alone."""
    model = save(tmp_path / "model", family)
    patch = tiny_models.FAMILIES[family].stride
    size = 4 * patch + patch - 1
    result = look(model, photos / "0.png", tmp_path / "out", image_size=size)
    text = read(result.html).text
    assert f"What the model saw: {4 * patch} × {4 * patch} of {size} × {size} pixels" in text
    predictor = vitkit.load(model, device="cpu", image_size=size)
    prepared = prepare(photos / "0.png", predictor.preprocessing)[:, : 4 * patch, : 4 * patch]
    seen = np.asarray(photo(prepared, predictor.preprocessing))
    with Image.open(tmp_path / "out" / "photo-1.png") as image:
        shown = np.asarray(image)
    factor = len(shown) // len(seen)
    assert np.array_equal(shown[::factor, ::factor], seen)


def test_photos_of_one_name_are_told_apart(tmp_path: Path, photos: Path) -> None:
    model = save(tmp_path / "model", "token")
    (photos / "more").mkdir()
    (photos / "0.png").rename(photos / "more" / "1.png")
    for images, names in (
        ([photos / "1.png", photos / "2.png"], ["1.png", "2.png"]),
        (photos, ["1.png", "2.png", "3.png", "4.png", "5.png", "6.png", "more/1.png"]),
    ):
        result = look(model, images, tmp_path / f"out-{len(names)}", num_photos=9)
        headings = re.findall("<h3>(.*?)</h3>", Path(result.html).read_text())
        assert sorted(headings) == names


@pytest.mark.slow
def test_few_images_are_prepared_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many cores, too, and however many images there are."""
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    begun: list[int] = []

    def count(*arguments: Any) -> torch.Tensor:
        begun.append(1)
        return prepare(*arguments)

    monkeypatch.setattr(findings, "prepare", count)
    ahead: list[int] = []

    def progress(done: int, total: int) -> None:
        time.sleep(0.1)  # for threads to prepare what they may
        ahead.append(len(begun) - done)

    data = "digits:test[:300]"
    look(save(tmp_path / "model", "cct"), data, tmp_path / "out", num_images=300, progress=progress)
    assert len(begun) >= 300 and max(ahead) <= 128


def test_the_batch_size_changes_nothing(tmp_path: Path, photos: Path) -> None:
    model = save(tmp_path / "model", "token")
    one, two = (look(model, photos, tmp_path / f"out{size}", batch_size=size) for size in (1, 3))
    for row, other in zip(one.attention_distance.by_head, two.attention_distance.by_head, strict=True):
        assert row == pytest.approx(other, rel=1e-5)


def test_unreadable_images_are_told(tmp_path: Path, photos: Path) -> None:
    (photos / "2.png").write_bytes(b"no image")
    result = look(save(tmp_path / "model", "token"), photos, tmp_path / "out")
    (entry,) = result.unreadable
    assert entry.image == str(photos / "2.png")
    assert result.attention_distance.images == 6
    assert "1 image can't be read" in read(result.html).text
    with pytest.raises(InputError, match=r"no image can be read: .*2\.png \(it is not an image"):
        inspect_model(str(tmp_path / "model"), photos / "2.png", out=tmp_path / "none", device="cpu")
    assert not (tmp_path / "none").exists()


def test_nothing_is_overwritten_without_force(tmp_path: Path, photos: Path) -> None:
    model, out = save(tmp_path / "model", "token"), tmp_path / "out"
    look(model, photos, out, num_photos=2)
    (out / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"out exists; --force overwrites it"):
        inspect_model(model, photos, out=out)
    result = inspect_model(model, photos, out=out, num_photos=1, force=True, device="cpu")
    assert (out / "mine.txt").read_text() == "mine"
    assert not (out / "photo-2.png").exists()  # of the earlier inspection
    assert {path.name for path in out.iterdir()} == {
        *(Path(file).name for file in result.files),
        "mine.txt",
    }
    with pytest.raises(InputError, match="mine.txt names a file; expected a folder to write"):
        inspect_model(model, photos, out=out / "mine.txt", force=True)


def test_photos_are_never_written_over(tmp_path: Path, photos: Path) -> None:
    """A photo may have the name of a picture, and one who looks at pictures may give one for a photo."""
    model, out = save(tmp_path / "model", "token"), tmp_path / "out"
    out.mkdir()
    own = shutil.copy(photos / "0.png", out / "photo-1.png")
    before = own.read_bytes()
    with pytest.raises(
        InputError, match="photo-1.png is not part of an inspection and won't be overwritten: choose another"
    ):
        inspect_model(model, out, out=out, force=True, device="cpu")
    assert own.read_bytes() == before and list(out.iterdir()) == [own]
    own.unlink()
    look(model, photos, out, num_photos=1)
    with pytest.raises(InputError, match="photo-1.png is a picture from an earlier inspection: give"):
        inspect_model(model, out / "photo-1.png", out=out, force=True, device="cpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fuse": "mena"}, "fuse is 'mena'; did you mean 'mean'? expected one of mean, max, min"),
        ({"residual": 1.0}, "residual must be at least 0 and below 1, not 1"),
        ({"discard": -0.1}, "discard must be at least 0 and below 1, not -0.1"),
        ({"num_images": 0}, "num_images must be at least 1, not 0"),
        ({"num_photos": -1}, "num_photos must be at least 0, not -1"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"images": "photo.jpg"}, "no such file or folder: photo.jpg"),
        ({"images": "hollidays/"}, "no such file or folder: hollidays"),
        ({"images": "digist:test"}, "unknown data source 'digist'; did you mean 'digits'?"),
        ({"images": []}, "no images to inspect: give at least one"),
        (
            {"images": Image.new("RGB", (8, 8))},
            "got an image of type Image; expected paths, or a DATA string",
        ),
        ({"images": ["a.png", 3]}, "got an image of type int; expected paths, or a DATA string"),
        ({"images": [None]}, "got an image of type NoneType; expected paths, or a DATA string"),
        (
            {"images": np.zeros((2, 8, 8, 3))},
            "got an image of type ndarray; expected paths, or a DATA string",
        ),
        ({"model": 3}, "model is a int; expected a MODEL"),
        (
            {"images": ["photo.jpg", "digits"]},
            "digits is data, and can't be combined with other arguments: give only it, or only files",
        ),
        (
            {"images": ["digits:test", "photo.jpg"]},
            "digits:test is data, and can't be combined with other arguments: give only it, or only files",
        ),
        (
            {"images": None, "target": "kind 1"},
            "the target 'kind 1' needs photos: give some, or leave it out",
        ),
    ],
)
def test_bad_input(tmp_path: Path, photos: Path, settings: dict[str, Any], message: str) -> None:
    given = {"model": save(tmp_path / "model", "token"), "images": photos, "out": tmp_path / "out"}
    with pytest.raises(InputError, match=re.escape(message)):
        inspect_model(**{**given, **settings})
    assert not (tmp_path / "out").exists()


def test_broken_weights_are_refused(tmp_path: Path) -> None:
    model = tiny_models.make(tiny_models.FAMILIES["token"])
    with torch.no_grad():
        model.cls_token[0, 0, 0] = torch.nan
    vitkit.save(model, tmp_path / "model", preprocessing=Preprocessing((8, 12)))
    with pytest.raises(InputError, match="cls_token holds NaN or infinite values"):
        inspect_model(tmp_path / "model", out=tmp_path / "out")


def test_progress_ends_at_its_total(tmp_path: Path, photos: Path) -> None:
    told: list[tuple[int, int]] = []
    model = save(tmp_path / "model", "token")
    look(model, photos, tmp_path / "out", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (7 + 6, 7 + 6)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_the_accuracy_of_a_run_is_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    save(run / "model", "token")
    save(run / "model-last", "token")
    result = look(str(run), None, tmp_path / "out")
    assert result.accuracy == Accuracy("val_ema/accuracy", 0.919, step=400)
    assert result.to_json()["accuracy"] == {"metric": "val_ema/accuracy", "value": 0.919, "step": 400}
    assert "91.90% val ema accuracy at step 400" in read(result.html).text
    height, width = tiny_models.FAMILIES["token"].size
    larger = look(str(run), None, tmp_path / "larger", image_size=(2 * height, width))
    same = look(str(run), None, tmp_path / "same", image_size=(height, width))
    assert (larger.accuracy, same.accuracy) == (None, result.accuracy)
    last = look(f"{run}@last", None, tmp_path / "out2")
    assert last.accuracy.metric == "val/accuracy"
    assert last.accuracy.value == pytest.approx(10 / 11)
    (run / "evaluation").mkdir()
    (run / "evaluation" / "results.json").write_text(
        json.dumps({"data": "digits:test", "images": 20, "accuracy": 0.75})
    )
    found = look(str(run / "model"), None, tmp_path / "out3").accuracy
    assert found == Accuracy("accuracy", 0.75, measured_on="digits:test")
    assert found.to_json() == {"metric": "accuracy", "value": 0.75, "measured_on": "digits:test"}


def test_an_untrained_model_is_told_on_its_page(tmp_path: Path) -> None:
    result = look("mu/16", None, tmp_path / "out")
    text = read(result.html).text
    assert "mu/16 is untrained: its weights are random" in text.replace("Mu/16", "mu/16")


def test_an_alert_is_made_of_a_notes_kind_not_of_its_words(tmp_path: Path) -> None:
    model = load(save(tmp_path / "model", "token"), device="cpu")
    model.notes = ("this one is not untrained", Note("as random as it gets", "untrained"))
    text = Path(look(model, None, tmp_path / "out").html).read_text()
    assert re.findall('<p class="alert">(.*?)</p>', text) == ["As random as it gets."]


def test_open_data_is_inspected_as_it_is(tmp_path: Path, photos: Path) -> None:
    source = vitkit.open_data(f"{photos}:all[:3]", labelled=False)
    assert look(save(tmp_path / "model", "token"), source, tmp_path / "out").attention_distance.images == 3


def test_settings_of_loading_are_refused_for_a_loaded_model(tmp_path: Path) -> None:
    model = load(save(tmp_path / "model", "token"), device="cpu")
    with pytest.raises(InputError, match="is already loaded: give image_size to vitkit.load"):
        inspect_model(model, out=tmp_path / "out", image_size=16)


def test_a_run_without_a_name_of_its_own_is_called_by_its_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "mine")
    save(run / "model", "token")
    assert look(str(run), None, tmp_path / "out").name == "mine"
    assert look(str(run / "model"), None, tmp_path / "out2").name == "mine"


def test_a_run_whose_metrics_are_lost_is_inspected_all_the_same(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    save(run / "model", "token")
    (run / "metrics.jsonl").write_text("")
    result = look(str(run), None, tmp_path / "out")
    assert result.accuracy is None
    assert any(note.startswith("its accuracy is not known: ") for note in result.notes)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("token", ""),
        ("sincos", "They are fixed sines, not learned"),
        ("map", "Every layer has its own table; this is the first of"),
    ],
)
def test_positions_say_what_they_are(family: str, words: str, tmp_path: Path) -> None:
    result = look(save(tmp_path / "model", family), None, tmp_path / "out")
    found = re.findall("They are fixed sines[^:]*|Every layer has its own table[^.]*", read(result.html).text)
    assert [text.startswith(words) for text in found] == ([True] if words else [])
