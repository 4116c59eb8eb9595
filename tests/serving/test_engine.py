"""A model behind the batcher gives what the model itself gives, for every picture by itself."""

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import vitkit
from tests.serving.conftest import picture
from vitkit.errors import InputError
from vitkit.predictor import Predictor
from vitkit.serving.decoding import FORMATS, read_header
from vitkit.serving.engine import Answer, Attention, Engine, Look, Outputs, Task
from vitkit.serving.schedule import Refused


def ask(engine: Engine, *pictures: bytes, task: Task = None) -> list[Answer]:
    headers = [engine.header(data) for data in pictures]
    return engine.submit(pictures, headers, time.monotonic(), task).result(30)


def test_answers_are_the_models_own(engine: Engine, predictor: Predictor) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(lambda number: ask(engine, picture(number))[0], range(40))]
    for number, outputs in enumerate(found):
        assert isinstance(outputs, Outputs) and outputs.features is not None
        expected = predictor.predict(picture(number), top=3)[0]
        assert [(row.name, row.index) for row in engine.classes(outputs, 3)] == [
            (row.name, row.index) for row in expected
        ]
        np.testing.assert_allclose(outputs.features, predictor.embed(picture(number))[0], atol=1e-4)


def test_a_broken_picture_is_an_error_of_its_own(engine: Engine) -> None:
    whole = picture(1, size=(200, 200))
    good, bad, last = ask(engine, whole, whole[: len(whole) // 2], whole)
    assert isinstance(good, Outputs) and isinstance(last, Outputs)
    assert isinstance(bad, InputError) and "truncated" in str(bad)


def test_attention_is_drawn_over_the_picture(engine: Engine) -> None:
    assert engine.attention == Attention(layers=2, heads=3)
    seen = set()
    for look in (Look(), Look(0), Look(1), Look(0, 0), Look(0, 2)):
        [png] = ask(engine, picture(3), task=look)
        assert isinstance(png, bytes)
        with Image.open(io.BytesIO(png)) as image:
            assert image.format == "PNG" and image.size == (672, 672)
        seen.add(png)
    assert len(seen) == 5
    assert engine.batcher.counts().late == 0


@pytest.mark.slow
def test_an_exported_model_hides_its_attention(predictor: Predictor, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    vitkit.export(predictor, tmp_path / "graph", "onnx")
    exported = Engine(vitkit.load(tmp_path / "graph"), latency=5.0, batch_size=2)
    assert exported.attention is None
    assert exported.attention_reason == (
        "an exported model hides its attention: serve the model folder that it was made from"
    )
    [outputs] = ask(exported, picture(2))
    assert isinstance(outputs, Outputs) and outputs.features is not None
    assert exported.classes(outputs, 1)[0].index == predictor.predict(picture(2), top=1)[0][0].index
    exported.close(10)


class Own(nn.Module):
    """Three logits and no features."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) * torch.tensor([1.0, 2.0, 3.0])


def test_a_module_without_features_classifies() -> None:
    engine = Engine(vitkit.wrap(Own(), 16, class_names=["a", "b", "c"]), latency=5.0, batch_size=2)
    [outputs] = ask(engine, picture(1))
    assert isinstance(outputs, Outputs) and outputs.features is None and engine.num_features is None
    assert {row.name for row in engine.classes(outputs, 3)} == {"a", "b", "c"}
    engine.close(10)


def test_a_model_without_a_head_embeds() -> None:
    model = vitkit.create_model(
        "Ti/16", num_classes=0, image_size=32, depth=1, width=24, heads=3, mlp_width=32
    )
    engine = Engine(vitkit.load(model), latency=5.0, batch_size=2)
    [outputs] = ask(engine, picture(1))
    assert isinstance(outputs, Outputs) and outputs.logits is None and engine.num_features == 24
    assert not engine.can_classify
    engine.close(10)


def test_a_bound_below_one_image_is_refused_at_start(predictor: Predictor) -> None:
    with pytest.raises(InputError, match=r"so a bound of 0.001 ms can't be kept: give at least \d+ms"):
        Engine(predictor, latency=0.000001)


def test_large_pictures_cost_more_than_small_ones(engine: Engine) -> None:
    small, large = (engine.header(picture(1, size=size)) for size in ((40, 30), (3000, 2000)))
    assert engine._extra(small) == 0.0
    assert engine._extra(large) > 0.002
    noisy = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (2000, 3000, 3), np.uint8)).save(noisy, "JPEG")
    assert engine._extra(engine.header(noisy.getvalue())) > 1.5 * engine._extra(large)


def test_what_takes_longer_than_the_bound_is_refused_for_good(predictor: Predictor) -> None:
    engine = Engine(predictor, latency=0.1, batch_size=2, max_pixels=1 << 40)
    data = picture(1)
    header = read_header(data, 1 << 40)
    huge = type(header)(header.format, 10**9, len(data))
    with pytest.raises(Refused, match="this image takes at least") as refused:
        engine.submit([data], [huge], time.monotonic())
    assert refused.value.retry_after is None
    engine.close(10)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_headers_say_format_and_pixels(engine: Engine, kind: str) -> None:
    header = engine.header(picture(1, kind))
    assert header.format == kind and header.pixels == 1200 and kind in FORMATS


def test_headers_count_the_scans_of_a_progressive_jpeg(engine: Engine) -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "teal").save(file, "JPEG", progressive=True)
    assert engine.header(file.getvalue()).scans > 1
    assert engine.header(picture(1)).scans == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"GIF89a", "cannot read"),
        (b"nothing", "it is not an image in a known format"),
        (picture(1, "TIFF"), "it is a TIFF file; expected one of JPEG"),
        (
            picture(1, "PNG", (2000, 2000)),
            "it has 2000x2000 pixels, 4,000,000 in all; expected at most 1,000,000",
        ),
    ],
    ids=["empty", "cut", "text", "tiff", "large"],
)
def test_what_is_no_picture_for_a_server_is_refused_by_its_header(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_header(data, 1_000_000)
