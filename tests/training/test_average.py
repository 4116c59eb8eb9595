"""The average of weights: its formula, and that lending it to a model leaves no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitkit.training.average import Average


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.table = nn.Parameter(torch.randn(2), requires_grad=False)


def move(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape, generator=generator))


def bits(model: nn.Module) -> dict[str, bytes]:
    return {name: tensor.detach().numpy().tobytes() for name, tensor in model.state_dict().items()}


def test_the_formula() -> None:
    model = Toy()
    average = Average(model, decay=0.9)
    expected = model.first.weight.detach().double()
    for step in range(20):
        move(model, step)
        average.update()
        expected = 0.9 * expected + 0.1 * model.first.weight.detach().double()
    torch.testing.assert_close(average.state_dict()["first.weight"].double(), expected, rtol=0, atol=1e-6)


def test_the_decay_is_one_in_ten_thousand_and_not_corrected() -> None:
    model = Toy()
    start = model.first.weight.detach().clone()
    average = Average(model)
    with torch.no_grad():
        model.first.weight.add_(1.0)
    average.update()
    moved = average.state_dict()["first.weight"] - start
    torch.testing.assert_close(moved, torch.full_like(moved, 1e-4), rtol=0, atol=1e-6)


def test_what_is_averaged() -> None:
    names = Average(Toy()).state_dict().keys()
    assert names == {"first.weight", "first.bias", "norm.weight", "norm.bias"}


def test_the_average_is_its_own_memory() -> None:
    model = Toy()
    average = Average(model)
    before = average.state_dict()["first.weight"].clone()
    move(model, 1)
    assert average.state_dict()["first.weight"].equal(before)


def test_lending_leaves_no_trace() -> None:
    model = Toy()
    average = Average(model, decay=0.5)
    move(model, 1)
    with torch.no_grad():
        model.first.weight[0, 0] = -0.0
        model.first.weight[0, 1] = 1e-42
    average.update()
    own, kept = bits(model), {name: weight.clone() for name, weight in average.state_dict().items()}
    with average.applied():
        assert model.first.weight.equal(kept["first.weight"])
        assert bits(model)["norm.running_mean"] == own["norm.running_mean"]
        assert bits(model)["table"] == own["table"]
        assert model.first.weight.requires_grad
    assert bits(model) == own
    assert all(weight.equal(kept[name]) for name, weight in average.state_dict().items())


def test_a_failed_evaluation_gives_the_weights_back() -> None:
    model = Toy()
    average = Average(model, decay=0.5)
    move(model, 1)
    own = bits(model)
    with pytest.raises(ZeroDivisionError), average.applied():
        _ = 1 / 0
    assert bits(model) == own


def test_half_precision_weights_have_a_float32_average() -> None:
    model = Toy().bfloat16()
    average = Average(model, decay=0.999)
    move(model, 1)
    before = average.state_dict()["first.weight"].clone()
    average.update()
    own = model.first.weight.detach().clone()
    assert average.state_dict()["first.weight"].dtype == torch.float32
    assert not average.state_dict()["first.weight"].equal(before)
    with average.applied():
        assert model.first.weight.dtype == torch.bfloat16
    assert model.first.weight.equal(own)
