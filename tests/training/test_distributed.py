"""Two processes (gloo) train as one does: the same curve for ddp and fsdp, resumed on any number of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests import two_ranks
from tests.training import tiny_runs
from tests.training.test_microbatch import limited as LIMITED
from vitkit.errors import InputError
from vitkit.runs import read_record

# Groups of two processes take seconds to start.
pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
# A checkpoint falls between two lines of metrics; 33 images are measured in unequal shares: 16 and 17.
SETTINGS = [
    "duration=24",
    "log_every=6",
    "evaluate_every=12",
    "checkpoint_every=12",
    "data.evaluate=digits:test[:33]",
]
# A run that is stopped goes on with one process, then two.
STOPPED: dict[str, list[str]] = {
    "ddp": ["parallel=ddp", "micro_batch=4"],
    "fsdp": ["parallel=fsdp", "optimizer.name=adafactor"],
}
STRAIGHT: dict[str, list[str]] = {
    "ddp straight": ["parallel=ddp"],
    "fsdp in parts": ["parallel=fsdp", "micro_batch=4"],
    "fsdp in bf16": ["parallel=fsdp", "precision=bfloat16"],
    "fsdp of axial blocks": ["parallel=fsdp", "model.attention=axial"],
    "ddp in parts and bf16": ["parallel=ddp", "precision=bfloat16", "micro_batch=4"],
}
# Each process has 16 images a step; the second one alone is out of memory with more than 8, in one of both passes.
SEARCHED: dict[str, list[str]] = {
    "ddp": ["parallel=ddp"],
    "fsdp": ["parallel=fsdp", "optimizer.name=adafactor"],
}
# The second process can read none of the images that it is to measure.
SKIPPED: dict[str, list[str]] = {
    name: [*changes, "parallel=fsdp", "data.pipeline=resize(8)", "data.workers=0", "batch_size=8", "duration=2", "evaluate_every=1"]
    for name, changes in {
        "skipped": [],
        "skipped by mae": ["objective={name: mae, decoder_width: 16, decoder_depth: 1}", "average=null"],
    }.items()
}  # fmt: skip
SEARCH = ["batch_size=32", "duration=3", "log_every=1", "evaluate_every=3", "checkpoint_every=3"]


def free_port() -> int:
    with contextlib.closing(socket.socket()) as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def close_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        learned = torch.ones_like(tensor, dtype=torch.bool)
        if "qkv.bias" in name and tensor.ndim:
            # Softmax ignores what all keys share: the gradient of their bias is noise, which Adam makes large.
            learned[len(tensor) // 3 : 2 * len(tensor) // 3] = False
        torch.testing.assert_close(
            tensor[learned],
            theirs[name][learned],
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def close(path: Path, other: Path, tolerance: float) -> None:
    """Compare metrics and final weights of two runs."""
    ours, theirs = tiny_runs.lines(path), tiny_runs.lines(other)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert our == pytest.approx(their, rel=tolerance, abs=tolerance), path.name
    close_tensors(tiny_runs.tensors(path), tiny_runs.tensors(other), tolerance)
    assert read_record(path)["best"] == pytest.approx(read_record(other)["best"])


@contextlib.contextmanager
def two_trainers(folder: Path, part: str) -> Iterator[list[subprocess.Popen[str]]]:
    tiny_runs.write_recipe(folder)
    with two_ranks.two_ranks(__file__, part, str(folder)) as ranks:
        yield ranks


def write_photos(root: Path) -> None:
    """Write 16 images to learn from and 8 to measure on, of which the second half can't be read."""
    for number in range(24):
        path = root / ("train" if number < 16 else "val") / "ab"[number % 8 // 4] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (10 * number, 0, 0)).save(path)
    for path in (root / "val" / "b").iterdir():
        path.write_bytes(b"no image")


def write_messy(root: Path) -> None:
    """Write 40 images to learn from and 8 to measure on, of which 6 and 2, too many of both, can't be read."""
    for number in range(48):
        path = root / ("train" if number < 40 else "val") / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (5 * number, 0, 0)).save(path)
        if number in (0, 1, 8, 9, 16, 17, 40, 47):
            path.write_bytes(b"no image")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with two processes to step 3, with one to step 15, and with two to the end; beside it with one alone."""
    folder = tmp_path_factory.mktemp("ranks")
    write_photos(folder / "photos")
    write_messy(folder / "messy")
    with two_trainers(folder, "stopped") as ranks:
        for name, changes in STOPPED.items():
            tiny_runs.run_tiny(folder / "one" / name, *SETTINGS, *changes)
        patience = time.monotonic() + 100
        while not (folder / "half").exists():
            for rank in ranks:
                assert rank.poll() is None, rank.communicate()[0]
            assert time.monotonic() < patience
            time.sleep(0.05)
        for name, changes in STOPPED.items():
            stop = {15: lambda: signal.raise_signal(signal.SIGTERM)}
            recipe = folder / "tiny.yaml"
            answer = tiny_runs.run_tiny(folder / name, *SETTINGS, *changes, at=stop, recipe=recipe)
            assert (answer.status, answer.step) == ("stopped", 15)
        (folder / "go").touch()
    return folder


@pytest.mark.parametrize("name", STOPPED)
def test_two_processes_then_one_then_two_give_the_curve_of_one(folder: Path, name: str) -> None:
    """They stop between two lines of metrics, at first by a signal to one of both alone."""
    assert [(folder / f"{name}.stopped{rank}").read_text() for rank in range(2)] == ["3 stopped"] * 2
    close(folder / name, folder / "one" / name, 2e-4)
    assert read_record(folder / name)["environment"]["processes"] == 2


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("name", SEARCHED)
def test_micro_batch_auto_of_two_processes_leaves_no_trace(folder: Path, name: str, where: str) -> None:
    """A size that fails on one fails on both, none waits for the other, and the run is that of the size given."""
    run = folder / f"{name} {where}"
    seen = [(folder / f"{run.name}{rank}").read_text() for rank in range(2)]
    assert seen == ["[4, 4, 8, 8, 16]"] * 2
    assert read_record(run)["micro_batch"] == 8
    assert tiny_runs.differences(folder / f"{name} given", run) == []


@pytest.mark.slow
def test_two_processes_give_the_curve_of_one(tmp_path: Path) -> None:
    with two_trainers(tmp_path, "straight"):
        for name, changes in STRAIGHT.items():
            tiny_runs.run_tiny(tmp_path / "one" / name, *SETTINGS, *changes)
    for name in STRAIGHT:
        close(tmp_path / name, tmp_path / "one" / name, 0.03 if "bf16" in name else 2e-4)


@pytest.mark.slow
def test_a_killed_process_is_restarted_by_torchrun_and_nothing_is_lost(tmp_path: Path) -> None:
    """One of both gets SIGKILL; torchrun starts both again, from the last checkpoint."""
    run, recipe = tmp_path / "run", tiny_runs.write_recipe(tmp_path)
    settings = [*SETTINGS, "duration=60", "checkpoint_every=5", "evaluate_every=30"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    # Without the dashes torchrun takes --run for an abbreviation of its own --run-path.
    command = ["-m", "--", "vitkit", "train", str(recipe), *settings, "--run", str(run), "--device", "cpu"]
    with two_ranks.started([*torchrun, *rendezvous, *command], seconds=100) as [torchrun_process]:
        patience = time.monotonic() + 100
        while len(list(run.glob("checkpoints/[0-9]*"))) < 2:
            assert torchrun_process.poll() is None and time.monotonic() < patience
            time.sleep(0.05)
        children = (
            Path(f"/proc/{torchrun_process.pid}/task/{torchrun_process.pid}/children").read_text().split()
        )
        ranks = [child for child in children if b"vitkit" in Path(f"/proc/{child}/cmdline").read_bytes()]
        assert len(ranks) == 2
        os.kill(int(ranks[1]), signal.SIGKILL)
    record = read_record(run)
    assert (record["status"], record["step"]) == ("done", 60)
    tiny_runs.run_tiny(tmp_path / "one", *settings)
    # Sixty steps drift apart in the last bits; what counts is that each step was done once.
    ours, theirs = tiny_runs.lines(run), tiny_runs.lines(tmp_path / "one")
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for our, their in zip(ours[:10], theirs[:10], strict=True):
        assert our == pytest.approx(their, rel=1e-2, abs=1e-2)


@pytest.mark.parametrize("name", SKIPPED)
def test_a_process_without_an_image_to_measure_keeps_pace(folder: Path, name: str) -> None:
    """A sharded model runs on all processes or none; what one of them left out all know of."""
    found = json.loads((folder / f"{name}.json").read_text())
    assert (found["status"], len(found["unreadable"])) == ("done", 4)


@pytest.mark.parametrize(("name", "what"), [("met in training", "messy:train"), ("measured", "messy:val")])
def test_too_many_unreadable_images_of_all_processes_are_an_error_of_each(
    folder: Path, name: str, what: str
) -> None:
    """A process alone meets too few of them."""
    texts = [(folder / f"{name}{rank}").read_text() for rank in range(2)]
    assert texts[0] == texts[1]
    number = 2 if name == "measured" else r"\d"
    assert re.match(rf"{number} of \d+ images of {folder / what} can't be read, so results would", texts[0])
    assert texts[0].endswith("; repair these files, or continue without them: data.bad_images=any")
    assert len(json.loads((folder / "any.json").read_text())["unreadable"]) == 6


def test_models_of_two_processes_load(folder: Path) -> None:
    import vitkit

    for name in ("ddp", "fsdp"):
        ours, theirs = (vitkit.load(path / name, device="cpu") for path in (folder, folder / "one"))
        close_tensors(ours.model.state_dict(), theirs.model.state_dict(), 2e-4)


def test_an_error_is_the_same_on_every_process(folder: Path) -> None:
    texts = [(folder / f"error{rank}").read_text() for rank in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].startswith(f"{folder / 'ddp'} holds a run with other settings: seed is 0 there, 1 here")


def main(part: str, folder: Path) -> None:
    rank = int(os.environ["RANK"])

    def run(name: str, *changes: str, **options: Any) -> Any:
        return tiny_runs.run_tiny(folder / name, *SETTINGS, *changes, recipe=folder / "tiny.yaml", **options)

    if part == "straight":
        for name, changes in STRAIGHT.items():
            run(name, *changes)
        return
    for name, changes in STOPPED.items():
        answer = run(name, *changes, at={3: lambda: signal.raise_signal(signal.SIGTERM)})
        (folder / f"{name}.stopped{rank}").write_text(f"{answer.step} {answer.status}")
    try:
        run("ddp", *STOPPED["ddp"], "seed=1")
    except InputError as error:
        (folder / f"error{rank}").write_text(str(error))
    if rank == 0:
        (folder / "half").touch()
    for name, changes in SEARCHED.items():
        run(f"{name} given", *SEARCH, *changes, "micro_batch=8")
        for where in ("forward", "backward"):
            with LIMITED(lambda parts, images: images > 8 and rank == 1, where) as seen:
                run(f"{name} {where}", *SEARCH, *changes, "micro_batch=auto")
            (folder / f"{name} {where}{rank}").write_text(str(seen[:5]))
    photos = f"{folder / 'photos'}"
    data = [f"data.train={photos}:train", f"data.evaluate={photos}:val", "data.bad_images=any"]
    for name, changes in SKIPPED.items():
        answer = run(name, *data, *changes)
        if rank == 0:
            (folder / f"{name}.json").write_text(json.dumps(answer.to_json()))
    for name, measured in {"met in training": "null", "measured": f"{folder / 'messy'}:val"}.items():
        data = [f"data.train={folder / 'messy'}:train", f"data.evaluate={measured}"]
        try:
            run(name, *data, *SKIPPED["skipped"], "duration=5", "evaluate_every=2")
        except InputError as error:
            (folder / f"{name}{rank}").write_text(str(error))
    answer = run("any", f"data.train={folder / 'messy'}:train", "data.evaluate=null", *SKIPPED["skipped"], "duration=5", "data.bad_images=any")  # fmt: skip
    if rank == 0:
        (folder / "any.json").write_text(json.dumps(answer.to_json()))
    while not (folder / "go").exists():
        time.sleep(0.05)
    for name, changes in STOPPED.items():
        run(name, *changes)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
