"""`evaluate`: what it measures, what it refuses before it computes, what it writes, and the same on two processes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import metrics as sklearn

import vitkit
from tests.two_ranks import two_ranks
from vitkit.data.images import prepare
from vitkit.errors import InputError
from vitkit.evaluation.imagenet import WORDNET_IDS
from vitkit.evaluation.measured import measure
from vitkit.evaluation.real import RealAccuracy
from vitkit.evaluation.run import evaluate
from vitkit.models.configs import Preprocessing

SHARED = Path(__file__).parents[2].parent / "shared"
WEIGHTS = SHARED / "weights" / "vit_tiny_patch16_224.safetensors"
PHOTOS = SHARED / "data" / "imagenet" / "samples"
SETTINGS: dict[str, Any] = dict(image_size=8, patch=4, width=16, depth=1, heads=2, mlp_width=16)
NAMES = ("ant", "bee", "cow", "dog", "elk", "fox", "gnu")


def save(path: Path, names: tuple[str, ...] = NAMES, **settings: Any) -> str:
    """Write a model with random weights, for images of 8 pixels."""
    torch.manual_seed(0)
    made = vitkit.create_model("Ti/16", num_classes=len(names), **{**SETTINGS, **settings})
    if names:
        torch.nn.init.normal_(made.head.weight, std=1.0)
    vitkit.save(made, path, class_names=names or None, preprocessing=Preprocessing(8))
    return str(path)


def paint(root: Path, counts: dict[str, int], number: str = "{}.png") -> str:
    """Write images of noise, so many in each folder."""
    random, done = np.random.default_rng(0), 0
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            done += 1
            pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / number.format(done), "PNG")
    return str(root)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save(tmp_path / "model")


@pytest.fixture
def photos(tmp_path: Path) -> str:
    return paint(tmp_path / "photos", {"gnu": 9, "bee": 14, "cow": 10})


def logits_of(model: str, root: str) -> tuple[np.ndarray, list[str]]:
    """The logits of all images below a folder, by another way, and their folders."""
    predictor = vitkit.load(model, device="cpu")
    paths = sorted(Path(root).rglob("*.png"), key=lambda path: (path.parent.name, path.name))
    batch = torch.stack([prepare(path, predictor.preprocessing) for path in paths])
    return predictor.logits(batch).numpy(), [path.parent.name for path in paths]


def message(*arguments: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        evaluate(*arguments, device="cpu", **options)
    return str(error.value)


def test_the_numbers_are_sklearns(model: str, photos: str) -> None:
    said: list[str] = []
    done: list[tuple[int, int]] = []
    found = evaluate(
        model,
        f"{photos}:all",
        device="cpu",
        batch_size=8,
        announce=said.append,
        progress=lambda *n: done.append(n),
    )
    logits, folders = logits_of(model, photos)
    labels, predictions = np.array([NAMES.index(name) for name in folders]), logits.argmax(1)
    probabilities = torch.from_numpy(logits).double().softmax(1).numpy()
    assert (found.images, found.left_out, found.classes) == (33, 0, 7)
    assert found.accuracy == pytest.approx((predictions == labels).mean())
    expected = sklearn.top_k_accuracy_score(labels, logits, k=5, labels=range(7))
    assert found.top_5_accuracy == pytest.approx(expected)
    assert found.loss == pytest.approx(sklearn.log_loss(labels, probabilities, labels=range(7)), rel=1e-4)
    present = [NAMES.index(name) for name in ("bee", "cow", "gnu")]
    scores = sklearn.precision_recall_fscore_support(labels, predictions, labels=present, zero_division=0)
    assert [row.name for row in found.per_class] == ["bee", "cow", "gnu"]
    for place, row in enumerate(found.per_class):
        assert (row.precision or 0, row.recall, row.f1) == pytest.approx([part[place] for part in scores[:3]])
        assert row.images == scores[3][place]
    assert found.balanced_accuracy == pytest.approx(scores[1].mean())
    assert found.macro_f1 == pytest.approx(scores[2].mean())
    assert sum(found.confusion["bee"].values()) == 14
    matrix = sklearn.confusion_matrix(labels, predictions, labels=range(7))
    counts = {(a, b): n for a, row in found.confusion.items() for b, n in row.items()}
    assert counts == {(NAMES[i], NAMES[j]): matrix[i, j] for i, j in np.argwhere(matrix > 0)}
    assert tuple(said) == found.notes
    assert "no image of 4 of the 7 classes" in said[-1]
    assert done[-1] == (33, 33) and len(done) == 5
    assert json.loads(json.dumps(found.to_json(), allow_nan=False)) == found.to_json()
    assert "real" not in found.to_json() and found.files == ()


def test_answers_among_the_datas_classes_alone(model: str, photos: str) -> None:
    found = evaluate(model, f"{photos}:all", device="cpu", classes="data")
    logits, folders = logits_of(model, photos)
    chosen = [("bee", "cow", "gnu")[place] for place in logits[:, [1, 2, 6]].argmax(1)]
    assert found.accuracy == pytest.approx(np.mean([a == b for a, b in zip(chosen, folders, strict=True)]))
    assert found.classes == 3 and found.top_5_accuracy is None


def test_a_mapping_to_several(model: str, photos: str, tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.json"
    mapping.write_text(json.dumps({"gnu": ["gnu", "cow"], "bee": ["ant", 1]}))
    found = evaluate(model, f"{photos}:all", device="cpu", mapping=mapping, out=tmp_path / "out")
    logits, folders = logits_of(model, photos)
    right = {"gnu": (6, 2), "bee": (0, 1)}
    answers = [
        (place in right[name], name)
        for place, name in zip(logits.argmax(1), folders, strict=True)
        if name != "cow"
    ]
    assert (found.images, found.left_out, found.classes) == (23, 10, 7)
    assert found.accuracy == pytest.approx(np.mean([is_right for is_right, _ in answers]))
    by_class = {row.name: row.recall for row in found.per_class}
    for name in right:
        assert by_class[name] == pytest.approx(
            np.mean([is_right for is_right, other in answers if other == name])
        )
    others = sum(row.get("other classes", 0) for row in found.confusion.values())
    both = sum(
        place not in (0, 1, 2, 6) and name != "cow"
        for place, name in zip(logits.argmax(1), folders, strict=True)
    )
    assert others == both > 0
    assert "skipped 10 images of 1 class that the mapping doesn't list: cow" in found.notes


def test_a_loaded_model_and_an_open_source(model: str, photos: str) -> None:
    strings = evaluate(model, f"{photos}:all", device="cpu")
    predictor, source = vitkit.load(model, device="cpu"), vitkit.open_data(f"{photos}:all")
    objects = evaluate(predictor, source)
    assert objects.weights_sha256 is None
    assert replace(objects, weights_sha256=strings.weights_sha256) == strings
    assert message(predictor, source, image_size=16).endswith(
        "is already loaded: give image_size to vitkit.load"
    )


def test_splits(model: str, tmp_path: Path) -> None:
    paint(tmp_path / "set" / "val", {"cow": 12, "bee": 20})
    assert evaluate(model, f"{tmp_path}/set:val", device="cpu").images == 32
    # A folder named val is taken whole; other folders without splits give the tenth that no training has seen.
    assert evaluate(model, f"{tmp_path}/set/val", device="cpu").images == 32
    paint(tmp_path / "photos", {"cow": 12, "bee": 20})
    assert evaluate(model, f"{tmp_path}/photos", device="cpu").images == 3


@pytest.fixture
def several(tmp_path: Path) -> str:
    random, rows = np.random.default_rng(0), ["path,label"]
    (tmp_path / "several").mkdir()
    for number in range(31):
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(
            tmp_path / "several" / f"{number}.png"
        )
        rows.append(
            f"{number}.png,{';'.join(random.choice(NAMES[:4], random.integers(0, 3), replace=False))}"
        )
    path = tmp_path / "several" / "labels.csv"
    path.write_text("\n".join(rows) + "\n")
    return f"{path}:all"


def test_multi_label(model: str, several: str, tmp_path: Path) -> None:
    found = evaluate(model, several, device="cpu", out=tmp_path / "out")
    source = vitkit.open_data(several, classes=NAMES)
    predictor = vitkit.load(model, device="cpu")
    logits = measure(predictor.model, source, predictor.preprocessing).logits
    expected = sklearn.average_precision_score(source.labels[:, :4], logits[:, :4], average=None)
    assert [row.name for row in found.per_class] == list(NAMES[:4])
    assert [row.average_precision for row in found.per_class] == pytest.approx(expected)
    assert found.mean_average_precision == pytest.approx(expected.mean())
    assert [Path(file).name for file in found.files] == ["results.json"]
    (tmp_path / "m.json").write_text('{"ant": 1}')
    assert message(model, several, mapping=tmp_path / "m.json").endswith(
        "is multi-label; --mapping needs one label per image"
    )


def test_out(model: str, photos: str, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    found = evaluate(model, f"{photos}:all", device="cpu", out=out)
    assert found.files == tuple(str(out / name) for name in ("confusion.png", "mistakes.png", "results.json"))
    assert sorted(path.name for path in out.iterdir()) == ["confusion.png", "mistakes.png", "results.json"]
    assert json.loads((out / "results.json").read_text()) == found.to_json()
    weights = Path(model, "model.safetensors").read_bytes()
    assert (found.weights_sha256, found.image_size) == (hashlib.sha256(weights).hexdigest(), (8, 8))
    for name in ("confusion.png", "mistakes.png"):
        with Image.open(out / name) as picture:
            assert min(picture.size) > 200
    (out / "results.json").unlink()
    (out / "confusion.png").unlink()
    assert message("no such model", photos, out=out) == (f"{out}/mistakes.png exists; --force overwrites it")
    assert evaluate(model, f"{photos}:all", device="cpu", out=out, force=True) == found
    assert message(model, photos, out=out / "results.json") == (
        f"{out}/results.json names a file; expected a folder to write"
    )


def test_force_leaves_no_picture_of_an_earlier_evaluation(
    model: str, photos: str, several: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    evaluate(model, f"{photos}:all", device="cpu", out=out)
    (out / "mine.png").write_bytes(b"mine")
    found = evaluate(model, several, device="cpu", out=out, force=True)  # multi-label: it draws no pictures
    assert [Path(file).name for file in found.files] == ["results.json"]
    assert sorted(path.name for path in out.iterdir()) == ["mine.png", "results.json"]


def test_out_that_cannot_be_a_folder_or_be_replaced(photos: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert message("no such model", photos, out=tmp_path / "sheet.png").endswith(
        "sheet.png names a file; expected a folder to write"
    )
    (out / "results.json").mkdir(parents=True)
    assert message("no such model", photos, out=out, force=True) == (
        f"{out}/results.json is a folder; expected a file to write"
    )


def test_real_labels(tmp_path: Path) -> None:
    """The words of the head, ids of folders, and numbers of files all meet in ImageNet's order."""
    model = save(tmp_path / "model", WORDNET_IDS[::-1])
    val = paint(tmp_path / "val", dict.fromkeys(WORDNET_IDS[100:105], 6), "ILSVRC2012_val_{:08d}.png")
    predictor = vitkit.load(model, device="cpu")
    paths = sorted(Path(val).rglob("*.png"), key=lambda path: path.name)
    batch = torch.stack([prepare(path, predictor.preprocessing) for path in paths])
    answers = [999 - place for place in predictor.logits(batch).argmax(1).tolist()]
    lists: list[list[int]] = [[]] * 50_000
    for number in range(30):
        lists[number] = [[], [answers[number]], [answers[number], 3], [(answers[number] + 1) % 1000]][
            number % 4
        ]
    real = tmp_path / "real.json"
    real.write_text(json.dumps(lists))
    found = evaluate(model, val, device="cpu", real=real)
    # Numbers 0, 4, ..., 28 have no label, 3, 7, ..., 27 a wrong one.
    assert found.real == RealAccuracy(pytest.approx(15 / 22), images=22, left_out=8)
    assert len(found.per_class) == 5
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in paths:
        path.rename(flat / path.name)
    alone = evaluate(model, str(flat), device="cpu", real=real, out=tmp_path / "out")
    assert alone.real == found.real
    assert "accuracy" not in alone.to_json() and [Path(file).name for file in alone.files] == ["results.json"]
    assert f"{flat}: no class folders, so only ReaL accuracy is measured" in alone.notes
    assert evaluate(model, f"{flat}[:2]", device="cpu", real=real).to_json()["real"]["images"] == 1
    assert message(model, str(flat)).startswith(f"{flat} holds 30 images but no class folders")
    assert message(model, str(flat), real=real, classes="data") == (
        "ReaL chooses answers among all classes: leave out --classes data"
    )
    other = save(tmp_path / "other")
    assert message(other, str(flat), real=real) == (
        f"ReaL's labels are ImageNet's 1,000 classes; {other} has other classes"
    )


def test_what_is_refused(photos: str, tmp_path: Path) -> None:
    model = save(tmp_path / "model")
    assert message(model, photos, classes="mine") == "classes is 'mine'; expected one of head, data"
    bodies = save(tmp_path / "bodies", ())
    assert message(bodies, photos) == (
        f"{bodies} has no classification head: its features are measured by vit fewshot, probe and knn"
    )
    pairs = save(tmp_path / "pairs", ("cat", "dog"))
    assert message(pairs, f"{photos}:all") == (
        f"{photos} has class 'bee', which is none of the 2 classes of {pairs}; they are cat, dog; "
        "--mapping FILE says what other names mean"
    )
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    assert message(model, str(tmp_path / "empty")).startswith("no images in ")
    named = tmp_path / "names.txt"
    named.write_text("a\nb\n")
    assert message(model, photos, names=named).startswith("2 class names for the 7 classes of ")


def test_broken_weights_are_refused(photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save(tmp_path / "model")
    load = vitkit.load
    broken = load(model, device="cpu")
    with torch.no_grad():
        broken.model.head.weight[0, 0] = float("nan")
    monkeypatch.setattr("vitkit.evaluation.run.load", lambda *_, **__: broken)
    computed: list[object] = []
    broken.model.register_forward_pre_hook(lambda *_: computed.append(1))
    assert message(model, f"{photos}:all").endswith(" has weights that are not finite: they are broken")
    assert not computed
    with torch.no_grad():
        broken.model.head.weight[:] = 3e38  # finite, but not its products
    assert message(model, f"{photos}:all").endswith(
        " gives logits that are not finite: its weights are broken"
    )


def test_another_size_than_the_stored_one_is_said(model: str, photos: str) -> None:
    said: list[str] = []
    evaluate(model, f"{photos}:all", device="cpu", image_size=16, announce=said.append)
    assert "image size changed from 8x8 to 16x16" in said


def test_names_for_a_head_that_has_none(photos: str, tmp_path: Path) -> None:
    model = save(tmp_path / "model", tuple(f"class {number}" for number in range(3)))
    assert "have no names: --names FILE gives them" in message(model, f"{photos}:all")
    found = evaluate(model, f"{photos}:all", device="cpu", names=["gnu", "bee", "cow"])
    assert {row.name for row in found.per_class} == {"gnu", "bee", "cow"}


def test_a_model_and_a_source_measured_directly(model: str, photos: str) -> None:
    predictor = vitkit.load(model, device="cpu")
    source = vitkit.open_data(f"{photos}:all", classes=predictor.class_names)
    measured = measure(predictor.model, source, predictor.preprocessing, batch_size=10)
    logits, _ = logits_of(model, photos)
    np.testing.assert_allclose(measured.logits, logits, atol=1e-5)
    same = evaluate(model, f"{photos}:all", device="cpu")
    assert measured.numbers().to_json().items() <= same.to_json().items()
    wrong = measured.mistakes(5)
    confidence = measured.answers.confidence
    assert not measured.is_right[wrong].any() and (np.diff(confidence[wrong]) <= 0).all()
    assert confidence[wrong[0]] == confidence[~measured.is_right].max()
    with pytest.raises(
        InputError, match="the head has 7 classes and .* has 3: open the data with the head's classes"
    ):
        measure(predictor.model, vitkit.open_data(f"{photos}:all"), predictor.preprocessing)


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(model: str, photos: str, several: str, tmp_path: Path) -> None:
    """33 images in shares of 16 and 17, one image, of which a process has none, and multi-label images."""
    cases = [f"{photos}:all", f"{photos}:all[:1]", several]
    with two_ranks(__file__, str(tmp_path), model, *cases):
        pass
    first, second = (json.loads((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert second == first
    for case, found in zip(cases, first, strict=True):
        alone = evaluate(model, case, device="cpu", batch_size=4).to_json()
        assert found.keys() == alone.keys()
        for key, value in alone.items():
            assert found[key] == (pytest.approx(value) if isinstance(value, float) else value), key


@pytest.mark.slow
@pytest.mark.skipif(not (WEIGHTS.exists() and PHOTOS.exists()), reason="needs the shared weights and photos")
def test_86_of_99_photos_are_right(tmp_path: Path) -> None:
    for photo in sorted(PHOTOS.glob("*.JPEG")):
        folder = tmp_path / "val" / photo.name.partition("_")[0]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / photo.name).symlink_to(photo)
    found = evaluate(f"Ti/16@{WEIGHTS}", tmp_path / "val", device="cpu")
    assert (found.images, found.classes) == (99, 1000)
    assert round(found.accuracy * 99) == 86
    assert 0 < found.calibration_error < 0.15
    alone = evaluate(f"Ti/16@{WEIGHTS}", tmp_path / "val", device="cpu", classes="data")
    assert alone.classes == 99 and alone.accuracy > found.accuracy


def main(folder: str, model: str, *cases: str) -> None:
    answers = [evaluate(model, case, device="cpu", batch_size=4).to_json() for case in cases]
    (Path(folder) / os.environ["RANK"]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
