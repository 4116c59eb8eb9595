"""A model over a source: every image once and in order, on any number of processes, unreadable images by one rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitkit import create_model
from vitkit.data.open import open_data
from vitkit.data.operations import normalize
from vitkit.errors import InputError
from vitkit.evaluation.passes import SourcePass
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.world import World

ALONE = World(0, 1, torch.device("cpu"))
SETTINGS: dict[str, Any] = dict(image_size=8, patch=4, width=16, depth=1, heads=2, mlp_width=16, dropout=0.5)
PREPROCESSING = Preprocessing(image_size=8, mean=(0.3,) * 3, std=(0.4,) * 3)


def make_model() -> Model:
    torch.manual_seed(0)
    return create_model("Ti/16", num_classes=10, **SETTINGS)


def expected_features(model: Model, data: str) -> np.ndarray:
    images = open_data(data, default="measure").images
    assert images is not None
    with torch.no_grad():
        pixels = normalize(torch.from_numpy(images).permute(0, 3, 1, 2), (0.3,) * 3, (0.4,) * 3)
        return model.eval().features(pixels).numpy()


@pytest.mark.parametrize("batch_size", [7, 64])
def test_features_are_what_the_head_reads_in_order(batch_size: int) -> None:
    model, told = make_model().train(), []
    source = open_data("digits:test[:33]")
    x = (
        SourcePass(source, PREPROCESSING, world=ALONE, batch_size=batch_size)
        .features(model, progress=lambda *count: told.append(count))
        .values
    )
    assert model.training and x.dtype == np.float32 and told[-1] == (33, 33)
    np.testing.assert_allclose(x, expected_features(model, "digits:test[:33]"), rtol=1e-5, atol=1e-6)


def test_features_in_bf16_are_near() -> None:
    model, source = make_model(), open_data("digits:test[:33]")
    exact, near = (
        SourcePass(source, PREPROCESSING, world=ALONE).features(model, dtype).values
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert near.dtype == np.float32 and 0 < np.abs(exact - near).max() < 0.1


@pytest.mark.parametrize("name", ["CCT-2/3x2", pytest.param("BiT-R50x1", marks=pytest.mark.slow)])
def test_features_of_other_families(name: str) -> None:
    size = 32
    model = create_model(name, num_classes=3, image_size=size).eval()
    images = SourcePass(open_data("digits:test[:3]"), Preprocessing(image_size=size), world=ALONE)
    x = images.features(model).values
    with torch.no_grad():
        width = model.features(torch.zeros(1, 3, size, size)).shape[1]
    assert x.shape == (3, width) and np.abs(x[0] - x[1]).max() > 0


@pytest.mark.parametrize(("count", "ranks"), [(1, 2), (2, 3), (33, 2), (33, 4)])
def test_shares_make_up_the_whole_and_ranks_run_equally_often(count: int, ranks: int) -> None:
    """A rank without images still gives rows of the right width, and runs the model as often as the others."""
    model, source = make_model(), open_data(f"digits:test[:{count}]")
    calls, parts = [0] * ranks, []
    for rank in range(ranks):

        def counting(*_: object, rank: int = rank) -> None:
            calls[rank] += 1

        hook = model.register_forward_pre_hook(counting)
        world = World(rank, ranks, torch.device("cpu"))
        images = SourcePass(source, PREPROCESSING, world=world, batch_size=4)
        parts += images.batches(model, images.features_of(model))
        hook.remove()
    assert len(set(calls)) == 1 and calls[0] > 0
    expected = expected_features(model, f"digits:test[:{count}]")
    indices, values = (np.concatenate(share) for share in zip(*parts, strict=True))
    assert indices.tolist() == list(range(count))
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [[0], [3, 4, 5], [8]])
def test_images_that_cannot_be_read_are_skipped_and_calls_stay_equal(bad: list[int], tmp_path: Path) -> None:
    """Two ranks of 5 and 4 images; a batch of which nothing is left is made up for, too."""
    (tmp_path / "a").mkdir()
    for number in range(9):
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(tmp_path / "a" / f"{number}.png")
    for number in bad:
        (tmp_path / "a" / f"{number}.png").write_bytes(b"no image")
    source, model, calls = open_data(f"{tmp_path}:all"), make_model(), []
    rows, unreadable = [], {}
    for rank in range(2):
        images = SourcePass(
            source,
            PREPROCESSING,
            world=World(rank, 2, torch.device("cpu")),
            batch_size=2,
            workers=0,
        )
        hook = model.register_forward_pre_hook(lambda *_, rank=rank: calls.append(rank))
        rows += images.batches(model, lambda batch, _, images=images: images.compute(model, batch))
        hook.remove()
        unreadable |= images.loader.bad
    assert calls.count(0) == calls.count(1) == 3
    assert np.concatenate([indices for indices, _ in rows]).tolist() == [n for n in range(9) if n not in bad]
    assert [len(logits) for _, logits in rows] == [len(indices) for indices, _ in rows]
    assert {index: entry.image for index, entry in unreadable.items()} == {
        number: str(tmp_path / "a" / f"{number}.png") for number in bad
    }


def test_means_are_over_all_images() -> None:
    source = open_data("digits:test[:33]")
    images = SourcePass(source, PREPROCESSING, world=ALONE, batch_size=7)
    model = make_model().train()

    def columns(batch: Tensor, indices: np.ndarray) -> Tensor:
        assert not model.training and batch.dtype == torch.uint8
        return torch.stack((torch.from_numpy(indices).float(), torch.ones(len(batch))), 1)

    assert images.means(model, columns) == [16.0, 1.0]
    assert model.training


def test_out_of_memory_names_the_batch_size() -> None:
    def full(images: Tensor, indices: np.ndarray) -> Tensor:
        raise torch.OutOfMemoryError

    model = make_model().train()
    images = SourcePass(open_data("digits:test[:5]"), PREPROCESSING, world=ALONE, batch_size=3)
    with pytest.raises(InputError, match="out of memory with batch size 3: give a smaller one"):
        images.rows(model, full)
    assert model.training
