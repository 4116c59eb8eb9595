"""Measuring: loss, accuracy and mean average precision of every image exactly once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import average_precision_score
from torch import Tensor

from tests.training import tiny_runs
from vitkit import create_model
from vitkit.data.open import open_data
from vitkit.data.operations import normalize
from vitkit.data.sources.source import Subset
from vitkit.evaluation.held_out import Classification
from vitkit.evaluation.passes import SourcePass
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.world import World

ALONE = World(0, 1, torch.device("cpu"))
SETTINGS: dict[str, Any] = dict(image_size=8, patch=4, width=16, depth=1, heads=2, mlp_width=16, dropout=0.5)


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    made = create_model("Ti/16", num_classes=10, **SETTINGS)
    torch.nn.init.normal_(made.head.weight)
    return made.train()


@pytest.mark.parametrize("sigmoid", [False, True], ids=["softmax", "sigmoid"])
@pytest.mark.parametrize("batch_size", [7, 16, 64])
def test_loss_and_accuracy(model: Model, batch_size: int, sigmoid: bool) -> None:
    source = open_data("digits:test[:33]", default="measure")
    preprocessing = Preprocessing(image_size=8, mean=(0.3,) * 3, std=(0.4,) * 3)
    images = SourcePass(source, preprocessing, batch_size=batch_size, world=ALONE)
    evaluator = Classification(images, sigmoid=sigmoid)
    found = evaluator.run(model)
    assert model.training
    assert source.images is not None
    pixels = torch.from_numpy(source.images).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = model.eval()(normalize(pixels, (0.3,) * 3, (0.4,) * 3))
    labels = torch.from_numpy(source.labels)
    each = F.binary_cross_entropy_with_logits(logits, F.one_hot(labels, 10).float(), reduction="none").sum(1)
    expected = each.mean() if sigmoid else F.cross_entropy(logits, labels)
    assert found["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).double().mean()))


class SinglePrecision(Tensor):
    """A tensor of a device without double precision, as MPS is."""

    def double(self, *_: Any, **__: Any) -> Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.as_subclass(Tensor)


def test_a_device_needs_no_double_precision(model: Model) -> None:
    source, preprocessing = open_data("digits:test[:9]", default="measure"), Preprocessing(image_size=8)
    evaluator = Classification(SourcePass(source, preprocessing, batch_size=4, world=ALONE))
    expected = evaluator.run(model)
    model.register_forward_hook(lambda _module, _images, logits: logits.as_subclass(SinglePrecision))
    assert evaluator.run(model) == expected


@pytest.mark.parametrize(
    ("loss", "changes"),
    [
        ("softmax", []),
        ("sigmoid", []),
        ("softmax", ["data.train={several}:all", "data.evaluate={several}:all", "data.workers=0"]),
        ("sigmoid", ["data.train={several}:all", "data.evaluate={several}:all", "data.workers=0"]),
    ],
    ids=["softmax", "sigmoid", "several-softmax", "several-sigmoid"],
)
def test_training_and_measurement_have_one_loss(
    loss: str, changes: list[str], several: str, tmp_path: Path
) -> None:
    """Before it learns, and on the images that it learns from, both are the same number."""
    run = tmp_path / "run"
    images = ["data.train=digits:train[:48]", "data.evaluate=digits:train[:48]"]
    tiny_runs.run_tiny(
        run, *(images if not changes else [change.format(several=several) for change in changes]),
        f"objective.loss={loss}", "data.pipeline=resize(8)", "duration=1", "batch_size=48", "log_every=1",
        "schedule={name: constant}", "average=null", "optimizer.learning_rate=1e-9",
    )  # fmt: skip
    (line,) = [line["loss"] for line in tiny_runs.lines(run) if "loss" in line]
    (measured,) = [
        value for line in tiny_runs.lines(run) for name, value in line.items() if name.endswith("/loss")
    ]
    assert measured == pytest.approx(line, rel=1e-4)


@pytest.fixture
def several(tmp_path: Path) -> str:
    """Write images with the labels red, green and blue, as many as there is light of, none included."""
    random, rows = np.random.default_rng(0), ["path,label,split"]
    for number in range(48):
        present = random.integers(0, 2, 3)
        pixels = random.integers(0, 60, (8, 8, 3)) + present * 180
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{number}.png")
        names = [name for name, is_there in zip(("red", "green", "blue"), present, strict=True) if is_there]
        rows.append(f"{number}.png,{';'.join(names)},{'train' if number < 32 else 'test'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    return str(tmp_path / "labels.csv")


def test_images_with_multi_label_that_cannot_be_read_are_skipped(several: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = create_model("Ti/16", num_classes=3, **SETTINGS)
    torch.nn.init.normal_(made.head.weight)
    passes = partial(SourcePass, preprocessing=Preprocessing(image_size=8), world=ALONE, workers=0)
    (tmp_path / "33.png").write_bytes(b"no image")
    source = open_data(f"{several}:test")
    skipping = Classification(passes(source))
    kept = Subset(source, np.delete(np.arange(len(source)), 1))
    assert skipping.run(made) == Classification(passes(kept)).run(made)
    assert [entry.image for entry in skipping.unreadable] == [str(tmp_path / "33.png")]


def test_multi_label_train_with_sigmoid_by_themselves(several: str, tmp_path: Path) -> None:
    import vitkit

    run = tmp_path / "run"
    answer = tiny_runs.run_tiny(
        run, f"data.train={several}:train", f"data.evaluate={several}:test", "data.pipeline=resize(8)", "data.workers=0",
        "duration=40", "batch_size=16", "average=null", "optimizer.learning_rate=1e-2", "evaluate_every=40",
        "checkpoint_every=40", "log_every=20",
    )  # fmt: skip
    metrics = answer.metrics
    assert "test/accuracy" not in metrics
    assert answer.best.metric == "test/mean_average_precision"
    predictor = vitkit.load(run, device="cpu")
    assert predictor.class_names == ("blue", "green", "red")
    source = open_data(f"{several}:test", default="measure")
    images = SourcePass(source, predictor.preprocessing, world=ALONE, workers=0)
    scores, labels = torch.from_numpy(images.logits(predictor.model).values), torch.from_numpy(source.labels)
    expected = average_precision_score(labels.numpy(), scores.numpy(), average="macro")
    assert metrics["test/mean_average_precision"] == pytest.approx(expected, abs=1e-6)
    loss = F.binary_cross_entropy_with_logits(scores, labels.float(), reduction="none").sum(1).mean()
    assert metrics["test/loss"] == pytest.approx(float(loss), rel=1e-4)
    assert metrics["test/mean_average_precision"] > 0.9
