"""Small models and pictures for the server's tests."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import torch
from PIL import Image

import vitkit
from vitkit.predictor import Predictor
from vitkit.serving.engine import Engine


def picture(number: int = 0, kind: str = "JPEG", size: tuple[int, int] = (40, 30)) -> bytes:
    """An image's bytes, different for each number."""
    file = io.BytesIO()
    Image.new("RGB", size, (37 * number % 256, 91 * number % 256, 200)).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="session")
def predictor() -> Predictor:
    torch.manual_seed(0)
    model = vitkit.create_model(
        "Ti/16", num_classes=7, image_size=32, depth=2, width=24, heads=3, mlp_width=32
    )
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.normal_(std=0.2)
    return vitkit.load(model)


@pytest.fixture(scope="session")
def engine(predictor: Predictor) -> Iterator[Engine]:
    made = Engine(predictor, latency=5.0, batch_size=4)
    yield made
    assert made.close(10)
