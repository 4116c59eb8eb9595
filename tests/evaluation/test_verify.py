"""`vitkit.verify`: measures of pairs by cosine similarity, from folders and from files of pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

import vitkit
from vitkit.errors import InputError
from vitkit.evaluation.features import frozen_features, load_for_features
from vitkit.evaluation.verify import Verification

CPU: dict[str, Any] = dict(image_size=32, device="cpu", progress=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten people by five noisy images."""
    folder = tmp_path_factory.mktemp("people")
    random = np.random.default_rng(0)
    for person in range(10):
        face = random.integers(0, 256, (8, 8, 3))
        (folder / f"p{person}").mkdir()
        for number in range(1, 6):
            noisy = (0.7 * face + 0.3 * random.integers(0, 256, (8, 8, 3))).astype(np.uint8)
            Image.fromarray(noisy).resize((32, 32)).save(folder / f"p{person}" / f"{number}.png")
    return folder


def verify(data: Any, **options: Any) -> Verification:
    return vitkit.verify("mu/16", data, **{**CPU, **options})


def test_measures_are_those_of_all_pairs(people: Path) -> None:
    result = verify(people)
    assert (result.images, result.identities, result.same_pairs, result.different_pairs) == (
        50,
        10,
        100,
        1125,
    )
    predictor = load_for_features("mu/16", "cpu", 32)
    features = frozen_features(predictor, f"{people}:all")
    unit = features.x / np.linalg.norm(features.x, axis=1, keepdims=True)
    first, second = np.array([*combinations(range(50), 2)]).T
    scores = (unit[first].astype(float) * unit[second]).sum(1)
    is_same = features.labels[first] == features.labels[second]
    assert result.auc == pytest.approx(roc_auc_score(is_same, scores), abs=1e-4)
    assert [rate.far for rate in result.accept_rates] == [0.1]
    [rate] = result.accept_rates
    different = np.sort(scores[~is_same])[::-1]
    assert rate.threshold == pytest.approx(different[111], abs=0.02)  # 112 of 1,125 are 10%
    assert rate.tar == pytest.approx(np.mean(scores[is_same] > different[112]), abs=1e-9)
    assert rate.interval and rate.interval.low <= rate.tar <= rate.interval.high
    assert result.auc_interval and result.auc_interval.low < result.auc < result.auc_interval.high
    at = scores >= result.equal_error_threshold
    assert np.mean(at[~is_same]) == pytest.approx(result.equal_error_rate, abs=0.02)
    assert np.mean(~at[is_same]) == pytest.approx(result.equal_error_rate, abs=0.02)
    assert result.accuracy and result.accuracy.folds == 5 and 0.5 < result.accuracy.mean <= 1
    assert 0 < result.latency.median <= result.latency.slowest
    again = verify(people).to_json()
    assert {**again, "latency": 0, "seconds": 0} == {**result.to_json(), "latency": 0, "seconds": 0}


def test_a_file_of_pairs(people: Path, tmp_path: Path) -> None:
    lines = [
        "2 2",
        "p0 1 2",
        "p1 1 2",
        "p0 1 p1 1",
        "p2 1 p3 1",
        "p4 1 2",
        "p5 1 2",
        "p4 1 p5 1",
        "p6 1 p7 1",
    ]
    (tmp_path / "pairs.txt").write_text("\n".join(lines))
    result = verify(people, pairs=tmp_path / "pairs.txt")
    assert (result.images, result.same_pairs, result.different_pairs) == (12, 4, 4)
    assert result.accept_rates == () and result.accuracy and result.accuracy.pairs == 8
    assert any("8" in note or "too few for a false accept rate of 10%" in note for note in result.notes)
    assert result.pairs == str(tmp_path / "pairs.txt")
    with pytest.raises(InputError, match="is not a folder; a file of pairs names images in folders"):
        verify("digits", pairs=tmp_path / "pairs.txt")


def test_unreadable_images_leave_with_their_pairs(people: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "people"
    shutil.copytree(people, copy)
    (copy / "p3" / "2.png").write_bytes(b"broken")
    result = verify(copy)
    assert (result.images, result.same_pairs, result.different_pairs) == (49, 96, 1080)
    assert [Path(entry.image).name for entry in result.unreadable] == ["2.png"]
    for path in (copy / "p3").iterdir():
        path.write_bytes(b"broken")
    assert verify(copy).identities == 9
    (copy / "p4" / "2.png").write_bytes(b"broken")
    with pytest.raises(InputError, match="6 of 50 images"):
        verify(copy)


def test_stated_splits_are_kept(people: Path, tmp_path: Path) -> None:
    for split, names in (("train", "p0 p1 p2"), ("test", "p3 p4")):
        for name in names.split():
            (tmp_path / "data" / split).mkdir(parents=True, exist_ok=True)
            (tmp_path / "data" / split / name).symlink_to(people / name)
    result = verify(tmp_path / "data")
    assert result.data.endswith(":test") and result.identities == 2
    assert result.accuracy is None and any(
        "accuracy over folds is not measured" in note for note in result.notes
    )


def test_images_of_nobody_are_skipped(people: Path, tmp_path: Path) -> None:
    for name in ("p3", "p4", "p5", "p6"):
        (tmp_path / name).symlink_to(people / name)
    (tmp_path / "loose.png").symlink_to(people / "p0" / "1.png")
    result = verify(tmp_path)
    assert (result.images, result.identities) == (20, 4)
    assert any("skipped 1 image in no class folder" in note for note in result.notes)
    with pytest.raises(InputError, match="has 0 identities"):
        verify(people / "p3")


def test_the_command(vit: Callable[..., Any], people: Path, tmp_path: Path) -> None:
    flags = ("--image-size", "32", "--device", "cpu")
    answer = vit("verify", "mu/16", str(people), *flags, "--out", str(tmp_path / "out"))
    assert answer.status == 0, answer.err
    result = verify(people)
    for words in (
        f"{result.auc:.4f}",
        f"{result.equal_error_rate:.2%}",
        "true accepts at 10% false ones",
        "accuracy over 5 folds",
        "latency per image, cpu",
        "50 images of 10 identities, 100 same and 1,125 different pairs",
    ):
        assert words in answer.out
    with Image.open(tmp_path / "out" / "roc.png") as drawn:
        assert drawn.width > 1000
    assert json.loads((tmp_path / "out" / "results.json").read_text())["auc"] == result.auc
    again = vit("verify", "mu/16", str(people), *flags, "--out", str(tmp_path / "out"))
    assert again.status == 2 and "--force overwrites it" in again.err
    document = json.loads(vit("verify", "mu/16", str(people), *flags, "--json").out)
    assert document["auc"] == result.auc and len(document["auc_interval"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits:test", "--num-pairs", "10"], "--num-pairs"),
        (["digits:test", "--pairs", "none.txt"], "digits:test is not a folder; a file of pairs names images"),
        (
            ["digits[1shot]"],
            "has 10 identities with at most 1 images; expected two or more, and one with two",
        ),
    ],
)
def test_bad_input(vit: Callable[..., Any], arguments: list[str], message: str) -> None:
    answer = vit("verify", "mu/16", *arguments)
    assert (answer.status, answer.out) == (2, "") and message in answer.err
