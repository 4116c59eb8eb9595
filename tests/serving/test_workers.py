"""Several workers behind one port: their counters are summed, and one that dies is replaced while the others answer."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from fastapi import FastAPI

import vitkit
from tests.serving.client import Client
from tests.serving.conftest import picture
from tests.serving.test_run import folder, served
from vitkit.errors import InputError
from vitkit.predictor import Predictor

assert FastAPI and folder


def children(process: int) -> list[int]:
    """Workers of a server; multiprocessing's own helper is no worker."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in found if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


def total(client: Client, name: str) -> float:
    [number] = re.findall(
        rf"^{re.escape(name)} (\S+)$", client.get("/metrics").content.decode(), re.MULTILINE
    )
    return float(number)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_while_the_other_answers(folder: Path, heard: None) -> None:
    with served(str(folder), "--latency", "20s", "--workers", "2", "--json", "--threads", "1") as (
        process,
        client,
    ):
        first = children(process.pid)
        assert len(first) == 2
        assert total(client, "vit_workers") == 2
        statuses, broken, ended = list[int](), list[float](), threading.Event()

        def ask() -> None:
            while not ended.is_set():
                try:
                    statuses.append(client.post("/predict", {"a": picture(1)}).status)
                except OSError:
                    broken.append(time.monotonic())

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        killed = time.monotonic()
        os.kill(first[0], signal.SIGKILL)
        deadline, is_back = time.monotonic() + 60, False
        while not is_back:
            assert time.monotonic() < deadline
            time.sleep(0.2)
            with suppress(OSError):  # this one may have been the killed worker's
                is_back = (
                    total(client, "vit_workers") == 2 and total(client, "vit_worker_restarts_total") == 1
                )
        ended.set()
        for thread in threads:
            thread.join(30)
        assert set(statuses) == {200}
        # Only what the killed one had: accepted, or waiting to be accepted while the system closed its socket.
        assert all(killed <= at < killed + 2 for at in broken)
        second = children(process.pid)
        assert len(second) == 2 and first[1] in second and first[0] not in second
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0
        assert err == "worker 0 has ended (status -9) and is started again\n" or "worker 1 has ended" in err
        assert json.loads(out)["images"] == len(statuses)
    for child in second:
        assert not Path(f"/proc/{child}").exists()


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(folder: Path) -> None:
    with served(str(folder), "--latency", "20s", "--workers", "2", "--threads", "1") as (process, _):
        workers = children(process.pid)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{child}").exists() for child in workers):
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.slow
def test_what_a_worker_finds_wrong_is_one_line(vit, folder: Path) -> None:  # type: ignore[no-untyped-def]
    answer = vit("serve", str(folder), "--port", "0", "--workers", "2", "--latency", "0.001ms")
    assert answer.status == 2 and "can't be kept: give at least" in answer.err and answer.err.count("\n") == 1


def test_workers_need_a_model_that_they_can_load(predictor: Predictor) -> None:
    with pytest.raises(InputError, match="several workers load the model themselves: give its name or path"):
        vitkit.serve(predictor, port=0, workers=2)
