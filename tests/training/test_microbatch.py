"""`micro_batch=auto` finds the most that fits and leaves no trace: the run is that of the same size given."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training import tiny_runs
from vitkit.errors import InputError
from vitkit.runs import read_record
from vitkit.training import microbatch
from vitkit.training import run as run_module
from vitkit.training.build import RunParts

SETTINGS = ("batch_size=32", "duration=6", "log_every=1", "evaluate_every=3", "checkpoint_every=2")


class Full(torch.autograd.Function):
    """The identity, whose backward pass is out of memory."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("the memory of this test is full")


@contextmanager
def limited(is_full: Callable[[RunParts, int], bool], where: str) -> Iterator[list[int]]:
    """Give this machine a memory that says when it is full, in a pass of so many images; yield the sizes seen.

    Whatever was built before must be gone when something is built again.
    """
    seen: list[int] = []
    built: list[weakref.ref[nn.Module]] = []
    real = run_module.build

    def build(*arguments: Any) -> RunParts:
        assert [model for model in built if model() is not None] == []
        parts = real(*arguments)
        built.append(weakref.ref(parts.model))
        here = weakref.ref(parts)

        def pass_on(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            own = here()
            if not module.training or own is None:
                return output
            seen.append(len(output))
            if not is_full(own, len(output)):
                return output
            if where == "forward":
                raise torch.OutOfMemoryError("the memory of this test is full")
            return Full.apply(output)

        blocks: Any = parts.model.blocks
        blocks[0].mlp.register_forward_hook(pass_on)
        return parts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(microbatch, "SEARCHED", ("cpu",))
        patch.setattr(run_module, "build", build)
        yield seen
    gc.collect()


@pytest.mark.parametrize("where", [pytest.param("forward", marks=pytest.mark.slow), "backward"])
def test_the_search_leaves_no_trace(where: str, tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path / "given", *SETTINGS, "micro_batch=8")
    with limited(lambda parts, images: images > 8, where) as seen:
        tiny_runs.run_tiny(tmp_path / "found", *SETTINGS, "micro_batch=auto")
    assert seen[:5] == [4, 4, 8, 8, 16] and set(seen[5:]) == {8}
    assert read_record(tmp_path / "found")["micro_batch"] == 8
    assert tiny_runs.differences(tmp_path / "given", tmp_path / "found") == []


@pytest.mark.slow
def test_what_a_step_holds_beside_its_images_counts(tmp_path: Path) -> None:
    """Eight images alone would fit; beside gradients and the optimiser's memory they don't."""

    def is_full(parts: RunParts, images: int) -> bool:
        has_gradients = any(parameter.grad is not None for parameter in parts.model.parameters())
        return images + 4 * has_gradients + 4 * bool(parts.optimizer.state) > 15

    with limited(is_full, "forward"):
        assert tiny_runs.run_tiny(tmp_path / "run", *SETTINGS, "micro_batch=auto").status == "done"
    assert read_record(tmp_path / "run")["micro_batch"] == 4


def test_all_at_once_has_no_gradients_beside_it(tmp_path: Path) -> None:
    def is_full(parts: RunParts, images: int) -> bool:
        return any(parameter.grad is not None for parameter in parts.model.parameters()) and images > 16

    with limited(is_full, "forward") as seen:
        tiny_runs.run_tiny(tmp_path / "run", *SETTINGS, "micro_batch=auto")
    assert seen[:7] == [4, 4, 8, 8, 16, 16, 32] and set(seen[7:]) == {32}


def test_nothing_fits(tmp_path: Path) -> None:
    with limited(lambda parts, images: True, "backward"), pytest.raises(InputError) as error:
        tiny_runs.run_tiny(tmp_path / "run", *SETTINGS, "micro_batch=auto")
    assert str(error.value) == (
        "out of memory even with the smallest micro-batch: set activation_checkpointing=true, or use a smaller model"
    )


@pytest.mark.slow
def test_a_run_that_ended_before_its_first_checkpoint_begins_again_as_it_was(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("power cut")

    changes = [*SETTINGS, "micro_batch=auto"]
    with limited(lambda parts, images: images > 8, "backward") as seen:
        tiny_runs.run_tiny(tmp_path / "straight", *changes)
        with pytest.raises(RuntimeError, match="power cut"):
            tiny_runs.run_tiny(tmp_path / "cut", *changes, at={1: fail})
        assert read_record(tmp_path / "cut")["micro_batch"] == 8
        seen.clear()
        tiny_runs.run_tiny(tmp_path / "cut", *changes)
        assert set(seen) == {8}  # it is known
    assert tiny_runs.differences(tmp_path / "straight", tmp_path / "cut") == []


@pytest.mark.slow
def test_only_the_size_that_was_found_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    compiled: list[int] = []
    real_attempt, real_compile = microbatch.attempt, nn.Module.compile

    def attempt(parts: RunParts, batch: dict[str, Tensor], size: int) -> None:
        tried.append(size)
        real_attempt(parts, batch, size)
        if size > 8:
            raise torch.OutOfMemoryError("the memory of this test is full")

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        compiled.extend({len(value) for value in inputs if value.dtype == torch.uint8})
        return graph.forward

    monkeypatch.setattr(microbatch, "SEARCHED", ("cpu",))
    monkeypatch.setattr(microbatch, "attempt", attempt)
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **_: real_compile(self, dynamic=False, backend=backend)
    )
    tiny_runs.run_tiny(tmp_path / "run", *SETTINGS, "micro_batch=auto", "compile=true")
    assert (tried, compiled) == ([4, 8, 16], [8])


def test_a_device_that_does_not_say_when_it_is_full_takes_all_at_once(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path / "run", "duration=2", "micro_batch=auto")
    assert read_record(tmp_path / "run")["micro_batch"] == 16
