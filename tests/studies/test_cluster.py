"""A study on a Ray cluster of this machine alone: a worker that is killed costs no bit of the results."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import ray

from tests.studies.test_run import NAMES, TEXT, checkpoint_of, study
from tests.training import tiny_runs
from vitkit import run_study
from vitkit.errors import InputError
from vitkit.studies.cluster import device_of, shares

assert study
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


def test_each_worker_has_the_same_share_wherever_it_is() -> None:
    machines = [{"CPU": 0.0, "GPU": 0.0}, {"CPU": 16.0, "GPU": 2.0}, {"CPU": 64.0, "GPU": 4.0}]
    assert shares(machines, "cuda", 2) == (0.5, 4)
    assert shares(machines, "cuda", 16) == (1 / 16, 0.5)
    assert shares(machines, "cpu", 4) == (0, 4)
    assert device_of(machines, "auto") == "cuda" and device_of(machines[:1], "auto") == "cpu"
    with pytest.raises(InputError, match="no machine of the Ray cluster has a GPU"):
        device_of(machines[:1], "cuda")
    with pytest.raises(InputError, match="expected auto, cpu or cuda"):
        device_of(machines, "mps")
    with pytest.raises(InputError, match="has a CPU for its tasks"):
        shares(machines[:1], "cpu", 1)


def test_where_runs_can_be(study: Path) -> None:
    with pytest.raises(InputError, match="^--on is 'slurm'; expected ray, or ray=ADDRESS"):
        run_study(study, on="slurm")
    with pytest.raises(InputError, match="^--on is 'ray=head'; expected HOST:PORT"):
        run_study(study, on="ray=head")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"^no Ray cluster answers at 127\.0\.0\.1:{port}: "):
            run_study(study, on=f"ray=127.0.0.1:{port}")


def test_without_ray(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r'^--on ray needs ray: pip install "vitkit\[cluster\]"'):
        run_study(study, on="ray")


def processes(word: bytes) -> set[int]:
    """Return the processes that live whose command has a word."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return found


@pytest.fixture
def cluster() -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options = {"include_dashboard": False, "logging_level": "ERROR", "object_store_memory": 100_000_000}
    ray.init("local", num_cpus=2, log_to_driver=False, **options)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_killed_workers_are_replaced_and_every_bit_is_the_same(
    study: Path, cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(TEXT.replace("duration: 12", "duration: 80, checkpoint_every: 4"))
    command = [sys.executable, "-m", "vitkit", "study", "run", "mine.yaml", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--run", "whole"], env=environment, check=True, capture_output=True)

    cut, killed = Path("runs/cut"), list[bytes]()

    def kill() -> None:
        for word in (b"vitkit.cli.worker", b"ray::RemoteWorker"):  # the process of a run, then an actor
            before = checkpoint_of(cut)
            while checkpoint_of(cut) == before:
                time.sleep(0.05)
            time.sleep(0.3)
            os.kill(min(processes(word)), signal.SIGKILL)
            killed.append(word)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    result = run_study(study, on="ray", workers=2, device="cpu", run="cut")
    killer.join(1)
    assert len(killed) == 2, "make the runs longer"
    assert (result.status, [run.status for run in result.runs]) == ("done", ["done"] * 4)
    for name in NAMES:
        assert tiny_runs.differences(cut / name, Path("runs/whole", name)) == []
    assert list(cut.glob(".cluster*")) == []
    heard = capsys.readouterr().err
    assert "its process was ended by SIGKILL" in heard and "its worker was lost; it resumes" in heard
