"""One process alone is a world of its own; torchrun's variables make it join others."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from vitkit.world import World, join_world, wait


def test_alone() -> None:
    with join_world(torch.device("cpu")) as world:
        assert world == World(0, 1, torch.device("cpu"))
        assert world.is_first and not dist.is_initialized()
        values = torch.tensor([1.0, 2.0])
        assert torch.equal(world.sum(values), values)
        assert torch.equal(world.gather(values), values)
        assert world.any(True) and not world.any(False)
        world.barrier()


def test_torchrun_with_one_process_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    for name, value in {**variables, "TORCHELASTIC_RUN_ID": "none"}.items():
        monkeypatch.setenv(name, value)
    with join_world(torch.device("cpu")) as world:
        assert dist.is_initialized() and world.ranks == 1
    assert not dist.is_initialized()


@pytest.mark.parametrize("name", ["cpu", "cuda", "mps"])
def test_every_device_is_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr("torch.cuda.synchronize", lambda _: waited.append("cuda"))
    monkeypatch.setattr("torch.mps.synchronize", lambda: waited.append("mps"))
    wait(torch.device(name))
    assert waited == [name] * (name != "cpu")
