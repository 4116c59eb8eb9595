"""Losses by hand and by torch.nn.functional: softmax, sigmoid, smoothing, soft targets."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from vitkit import create_model
from vitkit.data.operations import normalize
from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing
from vitkit.objectives import ObjectiveConfig, build_objective
from vitkit.objectives.supervised import Supervised, cross_entropy, one_hot, share_right


def test_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3)]])
    target = torch.tensor([[1.0, 0.0]])
    assert float(cross_entropy(logits, target)) == pytest.approx(math.log(4))
    # -log(sigmoid(0)) for the class that is there, -log(1 - sigmoid(log 3)) for the one that isn't: summed.
    assert float(cross_entropy(logits, target, sigmoid=True)) == pytest.approx(math.log(2) + math.log(4))
    # Smoothing 0.2 over two classes makes targets 0.9 and 0.1.
    smooth = 0.9 * math.log(4) + 0.1 * math.log(4 / 3)
    assert float(cross_entropy(logits, target, label_smoothing=0.2)) == pytest.approx(smooth)
    apart = 0.9 * math.log(2) + 0.1 * math.log(2) + 0.1 * math.log(4 / 3) + 0.9 * math.log(4)
    assert float(cross_entropy(logits, target, sigmoid=True, label_smoothing=0.2)) == pytest.approx(apart)


@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.1, 0.5]), st.integers(1, 5), st.integers(2, 7))
def test_equals_torch(seed: int, smoothing: float, images: int, classes: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, classes, generator=draw) * 3
    labels = torch.randint(classes, (images,), generator=draw)
    ours = cross_entropy(logits, one_hot(labels, classes), label_smoothing=smoothing)
    torch.testing.assert_close(
        ours, F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")
    )
    soft = torch.rand(images, classes, generator=draw).softmax(1)
    torch.testing.assert_close(cross_entropy(logits, soft), F.cross_entropy(logits, soft, reduction="none"))
    several = torch.randint(2, (images, classes), generator=draw).float()
    torch.testing.assert_close(
        cross_entropy(logits, several, sigmoid=True),
        F.binary_cross_entropy_with_logits(logits, several, reduction="none").sum(1),
    )


def test_share_right() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 5.0, 1.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    targets = torch.tensor([[1.0, 0, 0], [0.6, 0.4, 0], [0, 0.5, 0.5], [0, 1, 1]])
    assert float(share_right(logits, targets)) == 0.5
    assert float(share_right(logits, torch.zeros(4, 3))) == 0.0  # images of no class


def objective(loss: Literal["auto", "softmax", "sigmoid"], several: bool) -> Supervised:
    model = create_model(
        "Ti/16", num_classes=3, image_size=8, patch=4, width=8, depth=1, heads=1, mlp_width=8
    )
    config = ObjectiveConfig(loss=loss, label_smoothing=0.1)
    built = build_objective(
        config, model, Preprocessing(image_size=8, mean=(0.4,) * 3, std=(0.2,) * 3), several
    )
    assert isinstance(built, Supervised)
    return built


@pytest.mark.parametrize(
    ("loss", "several", "sigmoid"),
    [("auto", False, False), ("auto", True, True), ("sigmoid", False, True), ("softmax", True, False)],
)
def test_which_loss(loss: Literal["auto", "softmax", "sigmoid"], several: bool, sigmoid: bool) -> None:
    assert objective(loss, several).sigmoid is sigmoid


def test_a_model_without_a_pool_is_refused() -> None:
    model = create_model(
        "Ti/16", num_classes=3, image_size=8, patch=4, width=8, depth=1, heads=1, pool="none"
    )
    with pytest.raises(InputError, match=r"gives logits for each token, .*: set model\.pool=mean"):
        build_objective(ObjectiveConfig(), model, Preprocessing(8), False)


def test_forward_normalizes_and_averages() -> None:
    step = objective("softmax", False)
    with torch.no_grad():
        step.model.head.weight.normal_()  # it begins at zero
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    labels = torch.tensor([0, 1, 2, 2])
    loss, metrics = step({"image": images, "label": labels})
    logits = step.model(normalize(images, (0.4,) * 3, (0.2,) * 3))
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, label_smoothing=0.1))
    assert float(metrics["accuracy"]) == float((logits.argmax(1) == labels).float().mean())
    assert {"loss", "gradient_norm", *metrics} == set(step.metric_names)


def test_multi_label_images_have_no_plain_accuracy() -> None:
    """What is counted is whether the top class is one of the image's."""
    step = objective("auto", True)
    labels = torch.tensor([[1.0, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 1]])
    _, metrics = step({"image": torch.zeros(4, 3, 8, 8, dtype=torch.uint8), "label": labels})
    assert [*metrics] == ["top_class_accuracy"]
    assert step.metric_names == ("loss", "top_class_accuracy", "gradient_norm")


def test_smoothing_has_a_range() -> None:
    with pytest.raises(InputError, match="label_smoothing must be at least 0 and below 1, not 1"):
        ObjectiveConfig(label_smoothing=1.0)
