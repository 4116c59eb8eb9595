"""What few-shot, probe and nearest neighbours share: pairs of data, evaluators that skip bad images, statistics in blocks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.pytorch_data import Digits
from vitkit import create_model
from vitkit.data.fetch import in_memory
from vitkit.data.open import open_data
from vitkit.data.sources.source import Subset
from vitkit.data.unreadable import BadImages
from vitkit.errors import InputError
from vitkit.evaluation.features import load_frozen
from vitkit.evaluation.fewshot import FewShotEvaluator, fewshot
from vitkit.evaluation.frozen import mean_and_std, open_pair, row_blocks
from vitkit.evaluation.knn import KNNEvaluator, knn
from vitkit.evaluation.passes import SourcePass
from vitkit.evaluation.probe import ProbeEvaluator, probe
from vitkit.models.configs import Preprocessing
from vitkit.world import World


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))


def test_pairs() -> None:
    pair = open_pair("digits:train[:50%]", None)
    assert (pair.train.data_name, pair.test.data_name) == ("digits:train[:50%]", "digits:test")
    assert (pair.train.split, pair.test.split, len(pair.test)) == ("train", "test", 382)
    assert open_pair("digits", "digits:val[:20]").test.data_name == "digits:val[:20]"
    assert open_pair("digits:train[:600]", "digits:train[600:]").test.data_name == "digits:train[600:]"


def test_verbs_take_loaded_models_and_open_sources() -> None:
    predictor, train = load_frozen("mu/16", "cpu", 32), open_data("digits:train[:200]")
    test = open_data("digits:test[:50]")
    same = ("model", "train", "test", "num_train", "num_test", "accuracy", "results")
    for verb, options in ((fewshot, {"shots": [5]}), (probe, {"l2": 1.0}), (knn, {})):
        by_value = verb(predictor, train, evaluate=test, **options)
        by_name = verb(
            "mu/16", "digits:train[:200]", evaluate="digits:test[:50]", device="cpu", image_size=32, **options
        )
        for key in same:
            assert getattr(by_value, key, None) == getattr(by_name, key, None)
    assert open_pair(train, None).test.data_name == "digits:test"
    with pytest.raises(InputError, match="name the images to measure on"):
        open_pair(Subset(train, np.arange(200)), None)


def test_pytorch_data_sets_are_measured_as_sources_are_and_nothing_is_kept(tmp_path: Path) -> None:
    predictor = load_frozen("mu/16", "cpu", 32)
    train, test = Digits("digits:train[:100]"), Digits("digits:test[:30]")
    for verb, options in ((fewshot, {"shots": [5]}), (probe, {"l2": 1.0}), (knn, {})):
        found = verb(predictor, train, evaluate=test, **options)
        known = verb(predictor, in_memory(train.source), evaluate=in_memory(test.source), **options)
        assert [getattr(found, key, None) for key in ("num_train", "num_test", "accuracy", "results")] == [
            getattr(known, key, None) for key in ("num_train", "num_test", "accuracy", "results")
        ]
        assert found.train.startswith("torch:Digits-") and found.test != found.train
    kept = sorted((tmp_path / "cache/features").rglob("*"))
    train.source = open_data("digits:train[100:200]")  # others under the same labels
    changed = probe(predictor, train, evaluate=test, l2=1.0)
    assert changed.accuracy != probe(predictor, Digits("digits:train[:100]"), evaluate=test, l2=1.0).accuracy
    assert sorted((tmp_path / "cache/features").rglob("*")) == kept
    with pytest.raises(InputError) as error:
        open_pair(test, None)
    assert str(error.value).endswith("pass the data set itself, and the one to measure on as evaluate=")
    with pytest.raises(InputError, match="holds 30 of the images that would be measured"):
        open_pair(test, test)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for split, names in {"train": "abc", "test": "ab", "more": "abd"}.items():
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (9, 9), "red").save(tmp_path / split / name / "0.png")
    table = "path,label,split\n" + "".join(
        f"train/{name}/0.png,{labels},{split}\n"
        for name, labels, split in (("a", "x;y", "train"), ("b", "x", "train"), ("c", "y", "test"))
    )
    (tmp_path / "several.csv").write_text(table)
    return tmp_path


@pytest.mark.parametrize(
    ("data", "evaluate", "message"),
    [
        ("digits:test", None, "digits:test holds 382 of the images that would be measured (digits:test)"),
        ("digits", "digits:training", "digits:train holds 1,157 of the images that would be measured"),
        ("digits:all", "digits:test", "digits:all holds 382 of the images that would be measured"),
        ("digits:all", None, "digits:all holds 382 of the images that would be measured (digits:test)"),
        ("digits:train[:3]", None, "no image of 3, 4, 5, 6, 7 and 2 more, but digits:test does"),
        ("{}/train:all", "{}/more:all", "has class 'd', which is none of the 3 expected"),
        (
            "{}/several.csv:train",
            "{}/several.csv:test",
            "is multi-label; frozen features are measured with one label per image",
        ),
        ("digits:train[:1]", "digits:train[10:11]", "only has images of one class"),
        ("digits", "digts", "unknown data source 'digts'; did you mean 'digits'"),
    ],
)
def test_pairs_that_cannot_be_measured(folders: Path, data: str, evaluate: str | None, message: str) -> None:
    with pytest.raises(InputError) as error:
        open_pair(data.format(folders), evaluate and evaluate.format(folders))
    assert message in str(error.value)


def test_a_class_that_is_not_measured_is_noted(folders: Path) -> None:
    pair = open_pair(f"{folders}/train:all", f"{folders}/test:all")
    assert any("no image of 1 of the 3 classes" in note for note in pair.test.notes)
    assert pair.test.class_names == ("a", "b", "c")


def test_a_class_of_one_image_and_an_empty_one_stop_nothing(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, count in {"a": 6, "b": 7, "rare": 1, "empty": 0}.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 256, (9, 9, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    data = tmp_path / "photos"
    for verb, options in ((fewshot, {"shots": [1]}), (probe, {}), (knn, {"k": 3})):
        found = verb("mu/16", data, device="cpu", image_size=32, **options)
        assert (found.num_classes, found.num_train, found.num_test) == (3, 10, 2)
        assert f"{data}: skipped 1 class folder without images: empty" in found.notes
        assert f"{data}: too few images to measure 1 class, used for training only: rare" in found.notes
    found = fewshot("mu/16", data, shots=[1, 5], device="cpu", image_size=32)
    assert [row.shots for row in found.results] == [1, 5]
    assert "2 classes have fewer than 5 images; all of them are used: a (4), rare (1)" in found.notes
    with pytest.raises(InputError, match="6shot: class 'a' has only 4 images; ask for fewer shots$"):
        fewshot("mu/16", data, shots=[1, 6])


@given(st.integers(1, 40), st.integers(1, 50), st.booleans())
@settings(max_examples=30)
def test_statistics_do_not_depend_on_blocks(count: int, size: int, some: bool) -> None:
    random = np.random.default_rng(count)
    x = (random.normal(size=(count, 3)) + 1000).astype(np.float32)
    rows = np.sort(random.choice(count, size=-(-count // 2), replace=False)) if some else None
    mean, std = mean_and_std(x, size, rows)
    chosen = x.astype(np.float64) if rows is None else x[rows].astype(np.float64)
    np.testing.assert_allclose(mean, chosen.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, chosen.std(0), rtol=1e-9, atol=1e-12)
    joined = np.concatenate([block for _, block in row_blocks(x, size, rows)])
    np.testing.assert_array_equal(joined, chosen)


def test_images_that_cannot_be_read_are_skipped_by_all_evaluators(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(60):
        folder = tmp_path / ("train" if number < 40 else "test") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{number:02}.png")
    bad = [tmp_path / "train" / "a" / "00.png", tmp_path / "test" / "b" / "41.png"]

    def measured(bad_images: BadImages = "skip") -> dict[str, float]:
        train, test = (open_data(f"{tmp_path / split}:all") for split in ("train", "test"))
        options: dict[str, Any] = dict(
            world=World(0, 1, torch.device("cpu")), workers=0, bad_images=bad_images
        )
        passes = partial(SourcePass, preprocessing=Preprocessing(image_size=8), **options)
        found: dict[str, float] = {}
        for evaluator in (
            FewShotEvaluator(train, test, passes, shots=19),
            KNNEvaluator(train, test, passes, k=5),
            ProbeEvaluator(train, test, passes, l2=0.1),
        ):
            found |= evaluator.run(model)
            unreadable.update(entry.image for entry in evaluator.unreadable)
        return found

    model = create_model(
        "Ti/16", num_classes=10, image_size=8, patch=4, width=16, depth=1, heads=2, mlp_width=16
    )
    unreadable: set[str] = set()
    for path in bad:
        path.write_bytes(b"no image")
    found = measured()
    assert unreadable == {str(path) for path in bad}
    with pytest.raises(InputError, match="cannot read .*00.png"):
        measured("error")
    for path in bad:
        path.unlink()
    assert measured()["knn_5"] == found["knn_5"] and measured()["probe"] == found["probe"]
    assert [*found] == ["fewshot_19", "knn_5", "probe"]
