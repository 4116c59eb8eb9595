"""Files of embeddings: nearest images are those of brute force, other weights are refused, images are found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import vitkit
from vitkit import open_embeddings
from vitkit.errors import InputError
from vitkit.evaluation import embeddings as module
from vitkit.evaluation.embeddings import Embeddings
from vitkit.predictor import Predictor


def model_of(seed: int = 0, **changes: Any) -> Predictor:
    torch.manual_seed(seed)
    return vitkit.load(vitkit.create_model("mu/16", num_classes=10, image_size=32, **changes), device="cpu")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    out = tmp_path_factory.mktemp("features") / "features.parquet"
    vitkit.embed(model_of(), "digits:test[:100]", out, device="cpu", progress=False)
    return open_embeddings(out)


def test_nearest_is_brute_force(found: Embeddings, monkeypatch: pytest.MonkeyPatch) -> None:
    x = found.features()
    unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    similarities = unit[:7] @ unit.T
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :5]
    for queries in (1, 3, 1024):
        monkeypatch.setattr(module, "QUERIES", queries)
        near = found.nearest(x[:7], 5)
        np.testing.assert_allclose(
            near.similarities.numpy(), np.take_along_axis(similarities, order, 1), atol=1e-6
        )
        np.testing.assert_array_equal(near.numbers.numpy(), order)
    assert near.numbers[:, 0].tolist() == list(range(7)) and near.similarities.max() <= 1
    assert found.nearest(x[:2], 1000).numbers.shape == (2, 100)
    assert found.nearest(x[:0], 5).numbers.shape[0] == 0


def test_large_files_are_read_in_blocks(
    found: Embeddings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROW_GROUP", 30)
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    out = tmp_path / "features.parquet"
    vitkit.embed(model_of(), "digits:test[:100]", out, device="cpu", progress=False)
    parts = open_embeddings(out)
    assert [len(block) for block in parts.blocks()] == [30, 30, 30, 10]
    for ours, theirs in zip(
        parts.nearest(found.features(), 3), found.nearest(found.features(), 3), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    assert parts._kept is None and found._kept is not None


def test_other_queries_are_refused(found: Embeddings) -> None:
    with pytest.raises(InputError, match=r"queries have shape \(2, 5\); expected \(queries, 32\)"):
        found.nearest(np.zeros((2, 5), np.float32))
    with pytest.raises(InputError, match="k must be at least 1"):
        found.nearest(found.features()[:1], 0)
    with pytest.raises(InputError, match="features are not finite"):
        found.nearest(np.full((1, 32), np.nan, np.float32))


def test_other_weights_and_preprocessing_are_refused(found: Embeddings) -> None:
    assert found.check(model_of()).spec.startswith("module:")
    with pytest.raises(InputError, match="was made with other weights than those of module:"):
        found.check(model_of(1))
    other = model_of()
    other._preprocessing = vitkit.models.configs.Preprocessing(image_size=(32, 32), mean=(0.1,) * 3)
    with pytest.raises(InputError, match="was made with another preprocessing"):
        found.check(other)
    again = model_of()
    again.model.reset_head(3)
    found.check(again)  # features don't depend on the head


def test_images_are_found_again(found: Embeddings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = vitkit.open_data("digits:test[:100]")
    np.testing.assert_array_equal(np.asarray(found.read(7)), source[7][0].permute(1, 2, 0).numpy())
    folder = tmp_path / "photos" / "cat"
    folder.mkdir(parents=True)
    Image.new("RGB", (20, 20), "red").save(folder / "a.png")
    monkeypatch.chdir(tmp_path)
    vitkit.embed(model_of(), "./photos", "features.parquet", device="cpu", progress=False)
    monkeypatch.chdir("/")
    moved = open_embeddings(tmp_path / "features.parquet")
    assert moved.images[0] == "./photos/cat/a.png"
    assert moved.read(0).size == (20, 20)  # next to the file
    (folder / "a.png").unlink()
    with pytest.raises(InputError):
        moved.read(0)


def damaged(path: Path, found: Embeddings, **changes: Any) -> Path:
    table = pyarrow.parquet.read_table(found.path)
    text = {**json.loads(table.schema.metadata[b"vitkit"]), **changes}
    pyarrow.parquet.write_table(table.replace_schema_metadata({b"vitkit": json.dumps(text)}), path)
    return path


def test_damaged_files_are_refused(found: Embeddings, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file: .*; `vit embed MODEL DATA --out .*` makes one"):
        open_embeddings(tmp_path / "none.parquet")
    path = tmp_path / "f.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match="cannot read"):
        open_embeddings(path)
    pyarrow.parquet.write_table(pyarrow.table({"features": [1.0]}), path)
    with pytest.raises(InputError, match="is not a file of features that vit embed wrote"):
        open_embeddings(path)
    with pytest.raises(InputError, match="is not a file of features"):
        open_embeddings(damaged(path, found, format="vitkit features 2"))
    for changes in ({"preprocessing": {"mean": 3, "size": 4}}, {"preprocessing": None}, {"unreadable": 3}):
        with pytest.raises(InputError, match="has damaged metadata"):
            open_embeddings(damaged(path, found, **changes))
    assert len(open_embeddings(damaged(path, found))) == 100
