"""What a run is said to cost: PyTorch's own count of a training step, whatever the objective."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitkit.costs import cost_of, training_exaflops
from vitkit.data.draws import Draw
from vitkit.models import create_model
from vitkit.models.configs import Preprocessing
from vitkit.objectives import ObjectiveConfig, build_objective
from vitkit.objectives.objective import Objective
from vitkit.training.estimate import estimate

SUPERVISED = ObjectiveConfig()
# The decoder is far smaller than the encoder, or far larger.
MAE = ObjectiveConfig("mae", decoder_width=32, decoder_depth=1)
PATCHES = ObjectiveConfig("masked_patches")
PATCHES_LARGE = ObjectiveConfig("masked_patches", corrupt_share=0.3, target="colors_4x4")
MAE_LARGE = ObjectiveConfig("mae", mask_share=0.4, decoder_width=128, decoder_depth=6)


def make(config: ObjectiveConfig, **settings: Any) -> Objective:
    shape = {"image_size": (32, 48), "patch": 4, "width": 64, "depth": 4, "heads": 4, "mlp_width": 160}
    model = create_model(
        "Ti/16", num_classes=10 if config.name == "supervised" else 0, **{**shape, **settings}
    )
    return build_objective(config, model, Preprocessing(image_size=(32, 48)), False)


def counted_flops(objective: Objective, backward: bool) -> int:
    """Return what PyTorch counts for a step of one image."""
    given = {"image": torch.zeros(1, 3, 32, 48, dtype=torch.uint8), "label": torch.zeros(1, dtype=torch.long)}
    batch = objective.prepare(given, Draw(0, 0, np.arange(1)))
    with FlopCounterMode(display=False) as counter:
        loss, _ = objective(batch)
        if backward:
            loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "config",
    [SUPERVISED, MAE, MAE_LARGE, PATCHES, PATCHES_LARGE],
    ids=["supervised", "mae", "mae-large", "patches", "patches-large"],
)
@pytest.mark.parametrize("settings", [{}, {"pool": "map"}, {"registers": 3, "pool": "mean"}], ids=str)
def test_the_cost_is_that_of_a_step(config: ObjectiveConfig, settings: dict[str, Any]) -> None:
    objective = make(config, **settings)
    found = estimate(objective, 7, torch.device("cpu"), torch.float32, 1)
    assert found.exaflops * 1e18 == pytest.approx(7 * found.flops_per_image)
    assert found.flops_per_image == pytest.approx(3 * counted_flops(objective, backward=False))
    # The pixels need no gradient, and fused attention computes its weights once more.
    assert found.flops_per_image == pytest.approx(counted_flops(objective, backward=True), rel=0.05)
    assert found.parameters == sum(parameter.numel() for parameter in objective.parameters())


@pytest.mark.parametrize("config", [SUPERVISED, PATCHES], ids=["supervised", "patches"])
def test_every_head_multiplies_by_relative_positions(config: ObjectiveConfig) -> None:
    objective = make(config, positions="relative")
    found = estimate(objective, 1, torch.device("cpu"), torch.float32, 1)
    assert found.flops_per_image == pytest.approx(3 * counted_flops(objective, backward=False))


def test_labels_cost_what_the_model_does() -> None:
    objective = make(SUPERVISED)
    found = estimate(objective, 5, torch.device("cpu"), torch.float32, 1)
    cost = cost_of(objective.model.config)
    assert (found.parameters, found.exaflops) == (cost.parameters, training_exaflops(cost.macs, 5))


@pytest.mark.parametrize(
    ("config", "has_decoder"), [(SUPERVISED, False), (PATCHES, False), (MAE, False), (MAE_LARGE, True)]
)
def test_ways_to_shorten_name_a_decoder_that_is_larger_than_the_model(
    config: ObjectiveConfig, has_decoder: bool
) -> None:
    found = estimate(make(config), 5, torch.device("cpu"), torch.float32, 1)
    assert ("objective.decoder_width, objective.decoder_depth" in found.notes(5, "a GPU")[1]) == has_decoder
    assert found.notes("3 epochs", "a GPU")[1].endswith("smaller images, a GPU")
    assert found.notes(5, "")[1].endswith("smaller images")
