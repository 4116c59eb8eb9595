"""`vitkit.search` and `vitkit.find_duplicates`: what brute force finds, on sheets and in tables; bad queries are named."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.sparse.csgraph import connected_components

import vitkit
from vitkit import find_duplicates, open_embeddings, search
from vitkit.errors import InputError
from vitkit.evaluation import groups as module
from vitkit.evaluation.groups import Groups, similar_pairs

CPU: dict[str, Any] = dict(device="cpu", progress=False)


def picture(number: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8)).resize(
        (40, 40)
    )


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve photos of two classes; dog/11 is cat/0 in other pixels."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(12):
        path = folder / ("cat" if number < 6 else "dog") / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        image = picture(0).rotate(10) if number == 11 else picture(number)
        image.save(path)
    return folder


@pytest.fixture(scope="module")
def features(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("features") / "features.parquet"
    vitkit.embed("mu/16", photos, out, image_size=32, **CPU)
    return out


def test_the_nearest_images(photos: Path, features: Path) -> None:
    queries = [photos / "cat" / "3.png", photos / "dog" / "11.png"]
    result = search(features, queries, k=3, **CPU)
    assert (result.images, result.model) == (12, "mu/16")
    found = open_embeddings(features)
    vectors = found.check(device="cpu").embed(queries).astype(np.float64)
    rows = found.features().astype(np.float64)
    expected = (vectors @ rows.T) / np.linalg.norm(vectors, axis=1)[:, None] / np.linalg.norm(rows, axis=1)
    for query, path, row in zip(result.queries, queries, expected, strict=True):
        assert query.image == str(path) and query.nearest is not None
        assert [near.row for near in query.nearest] == np.argsort(-row)[:3].tolist()
        np.testing.assert_allclose(
            [near.similarity for near in query.nearest], np.sort(row)[::-1][:3], atol=1e-5
        )
        assert str(path) in {near.image for near in query.nearest}
        assert all(Path(near.image).parent.name == near.label for near in query.nearest)
    assert len(search(features, photos, **CPU).queries) == 12


def test_unreadable_queries_are_named(photos: Path, features: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    first, second = search(features, [tmp_path / "broken.png", photos / "cat" / "3.png"], k=1, **CPU).queries
    assert first.nearest is None and first.error and "not an image" in first.error
    assert second.nearest and second.error is None
    only = search(features, [tmp_path / "broken.png"], out=tmp_path / "sheet.png", **CPU)
    assert only.queries[0].error and only.notes


def test_other_models_are_refused(photos: Path, features: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    other = vitkit.create_model("mu/16", image_size=32)
    with pytest.raises(InputError, match="was made with other weights than those of module:"):
        search(features, photos, model=other, **CPU)
    vitkit.embed(other, photos, tmp_path / "own.parquet", **CPU)
    with pytest.raises(InputError, match="was made with a module of your own: give it as model="):
        search(tmp_path / "own.parquet", photos, **CPU)
    assert len(search(tmp_path / "own.parquet", photos, model=other, **CPU).queries) == 12


def test_near_duplicates(photos: Path, features: Path) -> None:
    rows = open_embeddings(features).features().astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    similarities = rows @ rows.T - 2 * np.eye(12)
    at_least = float(np.sort(similarities[np.triu_indices(12, 1)])[-5])  # five pairs
    result = find_duplicates(features, at_least=at_least, **CPU)
    assert (result.images, result.pairs) == (12, 5)
    _, numbers = connected_components(similarities >= at_least - 1e-6)
    sizes = sorted((size for size in np.bincount(numbers).tolist() if size > 1), reverse=True)
    assert [len(group.images) for group in result.groups] == sizes
    assert result.duplicates == sum(sizes) - len(sizes)
    for group in result.groups:
        assert group.has_several_labels == (len({image.label for image in group.images}) == 2)
        for image in group.images:
            assert image.similarity == pytest.approx(similarities[image.row].max(), abs=1e-5)
    assert not find_duplicates(features, at_least=1, **CPU).groups


@pytest.mark.parametrize("links", [0, 1 << 22])
def test_groups_are_components(links: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 7)
    monkeypatch.setattr(module, "COLUMNS", 10)
    monkeypatch.setattr(module, "_MOST_LINKS", links)
    rows = np.random.default_rng(1).standard_normal((60, 3))
    rows[30:40] = rows[0]  # equal rows
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    told: list[tuple[int, int]] = []
    groups, similarities = Groups(60), rows @ rows.T
    for pairs in similar_pairs(torch.from_numpy(rows).float(), 0.99, lambda *counts: told.append(counts)):
        groups.add(pairs)
    assert groups.pairs == np.count_nonzero(np.triu(similarities >= 0.99 - 1e-6, 1))
    assert told[-1] == (60 * 59 // 2, 60 * 59 // 2) and all(done <= total for done, total in told)
    count, numbers = connected_components(similarities >= 0.99 - 1e-6)
    expected = {tuple(np.flatnonzero(numbers == number)) for number in range(count)}
    found = groups.members()
    assert {tuple(group) for group in found} == {group for group in expected if len(group) > 1}
    assert [len(group) for group in found] == sorted(map(len, found), reverse=True)


def test_no_groups() -> None:
    assert Groups(0).members() == [] and Groups(3).members() == []


def test_the_command(vit: Callable[..., Any], photos: Path, features: Path, tmp_path: Path) -> None:
    query, sheet = str(photos / "cat" / "3.png"), str(tmp_path / "sheet.png")
    answer = vit("search", str(features), query, "--k", "2", "--device", "cpu", "--out", sheet)
    assert answer.status == 0, answer.err
    assert f"{features}: 12 images by mu/16" in answer.out and f"written: {sheet}" in answer.err
    lines = [line.split() for line in answer.out.splitlines() if ".png" in line]
    assert len(lines) == 2 and lines[0] == [query, "1.000", query, "cat"]
    with Image.open(sheet) as drawn:
        assert drawn.width >= 640
    again = vit("search", str(features), query, "--out", sheet)
    assert again.status == 2 and "--force overwrites it" in again.err
    document = json.loads(vit("search", str(features), query, "--k", "2", "--json", "--device", "cpu").out)
    expected = search(features, query, k=2, **CPU).to_json()
    assert document.pop("seconds") >= 0 and expected.pop("seconds") >= 0 and document == expected
    (tmp_path / "broken.png").write_bytes(b"")
    assert vit("search", str(features), str(tmp_path / "broken.png")).status == 1


def test_the_command_finds_duplicates(vit: Callable[..., Any], features: Path, tmp_path: Path) -> None:
    flags = ("--duplicates", "--at-least", "0.1", "--device", "cpu")
    answer = vit("search", str(features), *flags, "--out", str(tmp_path / "groups.png"))
    assert answer.status == 0, answer.err
    assert (
        "11 of 12 images are near-duplicates of others (1 group, cosine similarity of 0.1 or more)"
        in answer.out
    )
    assert "1 group has images of different classes." in answer.out
    document = json.loads(vit("search", str(features), *flags, "--json").out)
    assert [len(group["images"]) for group in document["groups"]] == [12]
    none = vit("search", str(features), "--duplicates", "--at-least", "1", "--device", "cpu")
    assert none.out.startswith(f"{features}: 0 of 12 images are near-duplicates")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give images to search for, or --duplicates"),
        (["a.png", "--duplicates"], "give images to search for, or --duplicates, not both"),
        (["a.png", "--at-least", "0.5"], "--at-least is for --duplicates"),
        (["a.png"], "no such file or folder: a.png"),
        (["--duplicates", "--at-least", "2"], "at_least must be above 0 and at most 1, not 2"),
        (
            ["--duplicates", "--out", "sheet.jpg"],
            "the contact sheet is a PNG, not 'sheet.jpg': name it sheet.png",
        ),
    ],
)
def test_bad_input(vit: Callable[..., Any], features: Path, arguments: list[str], message: str) -> None:
    answer = vit("search", str(features), *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("error: ") and message in answer.err and answer.err.count("\n") == 1


@pytest.fixture
def indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of indexes."""
    pytest.importorskip("faiss", reason="pip install 'vitkit[search]'")
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "indexes"


def test_an_index_finds_the_same(photos: Path, features: Path, indexed: Path) -> None:
    """Among few images it looks at all of them."""
    exact, quick = (search(features, photos, k=20, approximate=flag, **CPU) for flag in (False, True))
    for ours, theirs in zip(quick.queries, exact.queries, strict=True):
        assert ours.nearest and theirs.nearest and len(ours.nearest) == 12
        assert [near.row for near in ours.nearest] == [near.row for near in theirs.nearest]
        for one, other in zip(ours.nearest, theirs.nearest, strict=True):
            assert one.similarity == pytest.approx(other.similarity, abs=1e-5)
    [file] = indexed.iterdir()
    before = file.stat()
    for at_least in (0.1, 0.9, 1.0):
        one, other = (
            find_duplicates(features, at_least=at_least, approximate=flag, **CPU) for flag in (True, False)
        )
        assert one.pairs == other.pairs and one.duplicates == other.duplicates
        assert [[image.row for image in group.images] for group in one.groups] == [
            [image.row for image in group.images] for group in other.groups
        ]
    assert file.stat().st_mtime_ns == before.st_mtime_ns  # built once
    file.write_bytes(b"damaged")
    search(features, photos, k=1, approximate=True, **CPU)
    assert file.stat().st_size > 1000


def test_an_index_needs_faiss(features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r'approximate search needs faiss: pip install "vitkit\[search\]"'):
        find_duplicates(features, approximate=True, **CPU)
