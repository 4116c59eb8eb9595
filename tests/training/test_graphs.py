"""A recorded step does what the step does that isn't recorded, dropout included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import vitkit
from vitkit.models.configs import Preprocessing
from vitkit.objectives.supervised import Supervised
from vitkit.training.graphs import Recorded, both_passes
from vitkit.training.loop import seed_model

pytestmark = pytest.mark.gpu
TINY = {"width": 64, "depth": 2, "heads": 1, "mlp_width": 64, "patch": 8, "image_size": 32}


def trained(recorded: bool, steps: int = 6) -> tuple[dict[str, Tensor], list[float]]:
    torch.manual_seed(0)
    model = vitkit.create_model("Ti/16", num_classes=4, dropout=0.2, attention_dropout=0.2, **TINY).cuda()
    objective = Supervised(model, Preprocessing(32), sigmoid=False, label_smoothing=0.1).cuda().train()
    objective.dtype = torch.bfloat16
    passes = Recorded(objective) if recorded else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    losses = []
    for step in range(steps):
        draw = torch.Generator().manual_seed(step)
        batch = {
            "image": torch.randint(0, 256, (16, 3, 32, 32), generator=draw, dtype=torch.uint8).cuda(),
            "label": torch.randint(0, 4, (16,), generator=draw).cuda(),
        }
        seed_model(0, step, torch.device("cuda"))
        values = passes(batch) if passes else both_passes(objective, batch)
        losses.append(values["loss"].item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {name: tensor.cpu() for name, tensor in model.state_dict().items()}, losses


def test_a_replayed_step_is_the_step() -> None:
    plain, losses = trained(recorded=False)
    replayed, theirs = trained(recorded=True)
    assert theirs == pytest.approx(losses, rel=1e-3)
    for name, tensor in plain.items():
        torch.testing.assert_close(replayed[name], tensor, rtol=1e-2, atol=1e-3)
    assert len(set(losses)) == len(losses)
