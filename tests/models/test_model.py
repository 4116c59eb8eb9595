"""Compute in bf16 on fp32 weights: every activation is bf16, weights and gradients stay fp32."""

from __future__ import annotations

import torch
from torch import nn

from vitkit import create_model
from vitkit.models.model import run_in


def test_activations_are_bf16_and_gradients_fp32() -> None:
    torch.manual_seed(0)
    model = create_model(
        "Ti/16", num_classes=4, image_size=8, patch=4, width=16, depth=2, heads=2, mlp_width=32
    )
    nn.init.normal_(model.head.weight)
    images = torch.randn(3, 3, 8, 8)
    seen: set[torch.dtype] = set()
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
        for module in model.modules()
    ]
    logits = run_in(torch.bfloat16, model, images)
    assert seen == {torch.bfloat16} == {logits.dtype}
    for hook in hooks:
        hook.remove()
    logits.float().sum().backward()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.testing.assert_close(logits.float(), model(images), rtol=0.05, atol=0.1)
    assert not torch.equal(logits.float(), model(images))


def test_fp32_is_the_module_itself() -> None:
    module = nn.Linear(3, 2)
    inputs = torch.randn(4, 3)
    assert torch.equal(run_in(torch.float32, module, inputs), module(inputs))


def test_whole_numbers_are_not_cast() -> None:
    table = nn.Embedding(5, 3)
    found = run_in(torch.bfloat16, table, torch.tensor([1, 4]))
    assert torch.equal(found, table.weight[[1, 4]].bfloat16())
