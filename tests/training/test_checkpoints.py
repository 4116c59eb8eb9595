"""A checkpoint comes back bit for bit or not at all: killed writers, full disks, broken files, other rank counts."""

from __future__ import annotations

import errno
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.two_ranks import two_ranks
from vitkit.errors import InputError
from vitkit.training import checkpoints
from vitkit.training.checkpoints import latest, save
from vitkit.world import World, join_world

ROOT = Path(__file__).parents[2]
FILES = ["__0_0.distcp", ".metadata", "state.json", "manifest.json"]


def refuse(message: str) -> None:
    raise AssertionError(message)


def example(seed: int) -> dict[str, Any]:
    """Every kind of tensor that training state has, and some that float comparison would get wrong."""
    draw = torch.Generator().manual_seed(seed)
    return {
        "model": {
            "weight": torch.randn(3, 5, generator=draw),
            "half": torch.randn(4, generator=draw).bfloat16(),
        },
        "optimizer": {
            0: {"step": torch.tensor(float(seed)), "moment": torch.randn(6, 2, generator=draw).t()},
            1: {"count": torch.tensor(seed), "flag": torch.tensor(True)},
        },
        "odd": torch.tensor([-0.0, float("nan"), float("-inf"), 1e-45]),
        "empty": torch.zeros(0, 3),
        "parameter": nn.Parameter(torch.randn(2, generator=draw)),
        "part_of_a_larger_one": torch.randn(8, 8, generator=draw)[2:4, 1:3],
    }


def blank(tensors: dict[Any, Any]) -> dict[Any, Any]:
    return {
        name: blank(value) if isinstance(value, dict) else torch.zeros_like(value)
        for name, value in tensors.items()
    }


def bits(tensors: dict[Any, Any]) -> dict[Any, Any]:
    return {
        name: bits(value)
        if isinstance(value, dict)
        else (value.dtype, value.shape, value.detach().contiguous().flatten().view(torch.uint8).tolist())
        for name, value in tensors.items()
    }


def steps(folder: Path) -> list[int]:
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    return sorted(int(path.name) for path in folder.iterdir())


def assert_latest(folder: Path, step: int) -> None:
    found = latest(folder, refuse)
    assert found is not None
    assert (found.step, found.state) == (step, {"step": step})
    tensors = blank(example(step))
    found.load(tensors)
    assert bits(tensors) == bits(example(step))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of the steps 10, 20 and 30."""
    folder = tmp_path / "run" / "checkpoints"
    for step in (10, 20, 30):
        save(folder, step, example(step), {"step": step}, keep=3)
    return folder


def test_what_is_saved_comes_back_bit_for_bit(folder: Path) -> None:
    assert_latest(folder, 30)


def test_tensors_are_filled_in_place(folder: Path) -> None:
    tensors = blank(example(0))
    weight = tensors["model"]["weight"]
    found = latest(folder, refuse)
    assert found is not None
    found.load(tensors)
    assert torch.equal(weight, example(30)["model"]["weight"])


def test_state_is_plain_json(folder: Path) -> None:
    state = {"seconds": 0.1 + 0.2, "best": None, "words": ["ä"], "nested": {"step": 7}}
    save(folder, 40, {"x": torch.ones(1)}, state, keep=3)
    assert json.loads((folder / "00000040" / "state.json").read_text()) == state
    found = latest(folder, refuse)
    assert found is not None and found.state == state


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    assert latest(tmp_path / "checkpoints", refuse) is None
    (tmp_path / ".00000010.part").mkdir()
    assert latest(tmp_path, refuse) is None


def test_the_last_are_kept(folder: Path) -> None:
    save(folder, 40, example(40), {"step": 40}, keep=2)
    assert steps(folder) == [30, 40]
    save(folder, 50, example(50), {"step": 50}, keep=1)
    assert steps(folder) == [50]


def test_what_lies_ahead_is_removed_and_never_kept_instead(folder: Path) -> None:
    (folder / "00000030" / "manifest.json").unlink()
    save(folder, 25, example(25), {"step": 25}, keep=1)
    assert steps(folder) == [25]
    assert_latest(folder, 25)


def test_what_killed_processes_left_is_removed(folder: Path) -> None:
    for name in (".00000035.part", ".00000010.old.part", ".00000030.old"):
        shutil.copytree(folder / "00000010", folder / name)
    save(folder, 40, example(40), {"step": 40}, keep=4)
    assert steps(folder) == [10, 20, 30, 40]


def test_a_step_can_be_saved_again(folder: Path) -> None:
    save(folder, 30, {"x": torch.ones(1)}, {"again": True}, keep=3)
    assert steps(folder) == [10, 20, 30]
    found = latest(folder, refuse)
    assert found is not None and found.state == {"again": True}


def test_dying_while_a_step_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def die(path: Path, target: Path) -> Path:
        if path.name.endswith(".part"):
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        save(folder, 30, example(31), {"step": 31}, keep=1)
    monkeypatch.undo()
    assert not (folder / "00000030").exists()
    assert_latest(folder, 30)
    save(folder, 30, example(30), {"step": 30}, keep=1)
    assert steps(folder) == [30]


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "shorter":
        path.write_bytes(content[:-1])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


@pytest.mark.parametrize("how", ["missing", "shorter", "empty", "flipped"])
@pytest.mark.parametrize("name", FILES)
def test_a_broken_one_gives_way_to_the_one_before(folder: Path, name: str, how: str) -> None:
    if (name, how) == ("manifest.json", "shorter"):
        how = "empty"  # the last byte is a line's end, without which it says the same
    damage(folder / "00000030" / name, how)
    said: list[str] = []
    found = latest(folder, said.append)
    assert found is not None and found.step == 20
    (line,) = said
    assert "\n" not in line
    assert line.startswith(f"checkpoint {folder / '00000030'} is broken: ")
    assert line.endswith("; trying the one before it")
    if name != "manifest.json":
        cause = {
            "missing": "is missing",
            "flipped": "has the wrong checksum",
            "shorter": "bytes instead of",
            "empty": "has 0 bytes",
        }
        assert f"{name} " in line and cause[how] in line


def test_a_manifest_that_lists_nothing(folder: Path) -> None:
    (folder / "00000030" / "manifest.json").write_text('{"files": {}}')
    said: list[str] = []
    found = latest(folder, said.append)
    assert found is not None and found.step == 20
    assert "manifest.json lacks state.json" in said[0]


def test_none_is_whole(folder: Path) -> None:
    for path in folder.iterdir():
        damage(path / "state.json", "missing")
    said: list[str] = []
    with pytest.raises(
        InputError, match="restore one from a backup, or remove the folder to start"
    ) as caught:
        latest(folder, said.append)
    assert len(said) == 3 and "\n" not in str(caught.value)


def test_other_tensors_are_refused(folder: Path) -> None:
    found = latest(folder, refuse)
    assert found is not None
    for change, message in [
        ({"odd": torch.zeros(5)}, r"'odd' is float32 \[4\] there, float32 \[5\] here"),
        ({"odd": torch.zeros(4).double()}, r"'odd' is float32 \[4\] there, float64 \[4\] here"),
        ({"more": torch.zeros(1)}, r"'more' is missing there, float32 \[1\] here"),
        ({"empty": {}}, r"'empty' is float32 \[0, 3\] there, missing here"),
    ]:
        tensors = blank(example(30)) | change
        with pytest.raises(InputError, match=message):
            found.load(tensors)
        assert not tensors["model"]["weight"].any()


class Writes:
    """Pickled, a call that writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "run"))


def forge(checkpoint: Path, metadata: bytes) -> None:
    """Replace the .metadata of a checkpoint by another, with a manifest that fits."""
    (checkpoint / ".metadata").write_bytes(metadata)
    files = {
        path.name: checkpoints._digest(path) for path in checkpoint.iterdir() if path.name != "manifest.json"
    }
    (checkpoint / "manifest.json").write_text(json.dumps({"files": files}))


def described(checkpoint: Path) -> Any:
    return pickle.loads((checkpoint / ".metadata").read_bytes())


@pytest.mark.parametrize("where", ["whole", "entry", "other tensor", "other file", "compressed", "no pickle"])
def test_metadata_of_a_stranger_runs_nothing(folder: Path, where: str) -> None:
    checkpoint, written = folder / "00000030", folder / "written"
    content = described(checkpoint)
    if where == "whole":
        content = Writes(written)
    elif where == "entry":
        content.planner_data = [Writes(written)]
    elif where == "other tensor":  # which DCP would unpickle from its shard
        content.state_dict_metadata["odd"] = BytesStorageMetadata()
    elif where == "other file":
        next(iter(content.storage_data.values())).relative_path = "../00000020/__0_0.distcp"
    elif where == "compressed":
        next(iter(content.storage_data.values())).transform_descriptors = ["stream.zstd"]
    forge(checkpoint, b"\x80\x04nothing" if where == "no pickle" else pickle.dumps(content))
    found = latest(folder, refuse)
    assert found is not None
    names = {
        "whole": "pathlib.Path",
        "entry": "pathlib.Path",
        "other tensor": ".*BytesStorageMetadata",
        "other file": "the file '../00000020/",
        "compressed": "transformed data",
    }
    what = f"it names {names[where]}" if where in names else "it can't be read"
    with pytest.raises(InputError, match=rf"metadata does not only describe tensors \({what}") as failure:
        found.load(blank(example(30)))
    assert "\n" not in str(failure.value)
    assert not written.exists()


@pytest.mark.slow
def test_a_stranger_is_refused_without_asserts_too(folder: Path) -> None:
    checkpoint = folder / "00000030"
    content = described(checkpoint)
    next(iter(content.storage_data.values())).relative_path = "../00000020/__0_0.distcp"
    forge(checkpoint, pickle.dumps(content))
    code = f"from vitkit.training.checkpoints import _Reader; _Reader({str(checkpoint)!r}).read_metadata()"
    answer = subprocess.run(
        [sys.executable, "-O", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode and "it names the file '../00000020/" in answer.stderr


def test_a_folder_with_the_name_of_another_step(folder: Path) -> None:
    (folder / "00000030").rename(folder / "00000035")
    said: list[str] = []
    found = latest(folder, said.append)
    assert found is not None and found.step == 20
    [line] = said
    assert "00000035 is broken: its name doesn't match its step" in line


def test_a_file_that_goes_away_before_loading(folder: Path) -> None:
    found = latest(folder, refuse)
    assert found is not None
    (found.path / FILES[0]).unlink()
    with pytest.raises(InputError, match="00000030 can't be read: No such file or directory"):
        found.load(blank(example(30)))


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5, 6])
def test_a_full_disk_leaves_the_one_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    # In order: tensors, their index, state, manifest, the new folder, and the folder around it.
    calls = 0

    def fsync(_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(InputError, match="^[^\n]*00000040 can't be written: No space left on device$"):
        save(folder, 40, example(40), {"step": 40}, keep=1)
    monkeypatch.undo()
    # After the renaming it is whole, only not yet sure to outlast a power cut.
    assert steps(folder) == ([10, 20, 30, 40] if failing == 6 else [10, 20, 30])
    assert_latest(folder, 40 if failing == 6 else 30)


def test_a_write_that_is_cut_short(folder: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(InputError, match="^[^\n]*00000040 can't be written: File too large$"):
            save(folder, 40, {"large": torch.zeros(100_000)}, {}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert steps(folder) == [10, 20, 30]


def test_a_folder_that_is_read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(InputError, match="00000040 can't be written: Read-only file system"):
        save(folder, 40, example(40), {"step": 40}, keep=1)
    monkeypatch.undo()
    assert_latest(folder, 30)


def test_a_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="can't be written: Not a directory"):
        save(tmp_path / "file" / "checkpoints", 1, {"x": torch.ones(1)}, {}, keep=1)


def test_an_error_of_our_own_is_not_disguised(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_data(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(checkpoints._Writer, "write_data", write_data)
    with pytest.raises(ZeroDivisionError):
        save(folder, 40, example(40), {"step": 40}, keep=1)
    assert steps(folder) == [10, 20, 30]


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from vitkit.training.checkpoints import latest, save

torch.set_num_threads(1)
folder = Path(sys.argv[1])

def example(step):
    return {f"tensor {number}": torch.full((50, 50), step + number / 64) for number in range(20)}

def refuse(message):
    sys.exit(message)

def go_on():
    found = latest(folder, refuse)
    step = 0
    if found is not None:
        step = found.step
        tensors = {name: torch.zeros(50, 50) for name in example(step)}
        found.load(tensors)
        assert found.state == {"step": step}
        assert all(torch.equal(tensors[name], value) for name, value in example(step).items())
    while True:
        step += 1
        save(folder, step, example(step), {"step": step}, keep=2)

# Forking costs less than starting anew; this process itself computes nothing.
draw = random.Random(0)
amid_writing = kills = 0
while kills < 8 or (amid_writing == 0 and kills < 40):
    child = os.fork()
    if child == 0:
        try:
            go_on()
        except BaseException as error:
            print(repr(error), flush=True)
        os._exit(1)
    time.sleep(draw.uniform(0.1, 0.5))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the process ended by itself"
    kills += 1
    amid_writing += any(folder.glob(".*.part"))
print("amid writing:", amid_writing)
"""


@pytest.mark.slow
def test_killing_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert int(answer.stdout.split()[-1]) > 0
    found = latest(tmp_path, refuse)
    assert found is not None and found.step >= 8
    tensors = {f"tensor {number}": torch.zeros(50, 50) for number in range(20)}
    found.load(tensors)
    assert all(
        torch.equal(tensors[f"tensor {number}"], torch.full((50, 50), found.step + number / 64))
        for number in range(20)
    )


def work_as_one_of_two(folder: Path, world: World) -> None:
    """Load what one process saved, save as two, and note what is refused."""
    module = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(module.parameters())
    torch.stack([parameter.sum() for parameter in module.parameters()]).sum().backward()
    optimizer.step()

    def state() -> dict[str, Any]:
        return {"model": module.state_dict(), "optimizer": optimizer.state_dict()["state"]}

    def whole(values: dict[Any, Any]) -> dict[Any, Any]:
        return {
            name: value.full_tensor() if isinstance(value, DTensor) else value
            for name, value in values.items()
        }

    tensors = state()
    assert isinstance(tensors["model"]["0.weight"], DTensor)
    said: list[str] = []
    found = latest(folder, said.append)
    assert found is not None and (found.step, found.state) == (1, {"from": "one process"})
    assert len(said) == (1 if world.is_first else 0)
    found.load(tensors)
    for name, value in whole(module.state_dict()).items():
        assert torch.equal(value, torch.arange(value.numel()).reshape(value.shape) / 3), name

    optimizer.step()
    save(folder, 2, state(), {"from": f"rank {world.rank}"}, keep=5)
    expected = {
        "model": whole(state()["model"]),
        "optimizer": {number: whole(entry) for number, entry in state()["optimizer"].items()},
    }
    torch.save(expected, folder.parent / f"expected{world.rank}")

    if not world.is_first:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
    with pytest.raises(InputError, match="00000003 can't be written: File too large$"):
        save(folder, 3, state(), {}, keep=1)
    again = latest(folder, said.append)
    assert again is not None and again.step == 2
    tensors["model"]["more"] = torch.zeros(1)
    with pytest.raises(InputError, match="'model.more' is missing there, float32 \\[1\\] here"):
        found.load(tensors)


@pytest.mark.slow
def test_one_rank_to_two_and_back(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    module = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    for parameter in module.parameters():
        parameter.data = torch.arange(parameter.numel()).reshape(parameter.shape) / 3
    optimizer = torch.optim.AdamW(module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learning_rate, optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"], 0.0
    optimizer.step()
    optimizer.param_groups[0]["lr"] = learning_rate
    tensors = {"model": module.state_dict(), "optimizer": optimizer.state_dict()["state"]}
    save(folder, 1, tensors, {"from": "one process"}, keep=5)
    (folder / "00000009").mkdir()  # a broken one, of which rank 0 alone speaks

    with two_ranks(__file__, str(folder)):
        pass
    assert steps(folder) == [1, 2]
    assert {path.name for path in (folder / "00000002").glob("*.distcp")} == {"__0_0.distcp", "__1_0.distcp"}
    found = latest(folder, refuse)
    assert found is not None and found.state == {"from": "rank 0"}
    tensors = blank(tensors)
    found.load(tensors)
    for rank in range(2):
        expected = torch.load(tmp_path / f"expected{rank}", weights_only=True)
        assert bits(tensors) == bits(expected)


if __name__ == "__main__":
    with join_world(torch.device("cpu")) as world:
        work_as_one_of_two(Path(sys.argv[1]), world)
