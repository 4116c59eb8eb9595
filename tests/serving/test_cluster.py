"""A model as a Ray Serve application, on a cluster of this machine alone."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import ray

import vitkit
from tests.serving.client import Client
from tests.serving.conftest import picture
from tests.serving.test_run import folder
from vitkit.errors import InputError
from vitkit.predictor import Predictor
from vitkit.serving.cluster import build

assert folder


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_replicas_need_a_model_that_they_can_load(predictor: Predictor) -> None:
    with pytest.raises(InputError, match="replicas load the model themselves"):
        vitkit.ray_application(predictor)
    with pytest.raises(InputError, match="name the model"):
        build({})
    with pytest.raises(InputError, match="there are no API keys"):
        vitkit.ray_application("Ti/16", host="0.0.0.0")


@pytest.fixture
def client(folder: Path) -> Iterator[Client]:
    from ray import serve

    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = opened.getsockname()[1]
    ray.init(
        address="local",
        num_cpus=3,
        include_dashboard=False,
        logging_level="ERROR",
        object_store_memory=100_000_000,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build({"model": str(folder), "latency": "20s", "replicas": "2"}))
        yield Client(port)
    finally:
        serve.shutdown()
        ray.shutdown()


def replicas() -> set[int]:
    """Processes of the replicas that live."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"ServeReplica:default:vitkit" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_replica_that_is_killed_under_load_is_replaced(client: Client, predictor: Predictor) -> None:
    first = client.post("/predict?top=2", {"a.jpg": picture(3)})
    expected = [(guess.name, guess.index) for guess in predictor.predict(picture(3), top=2)[0]]
    assert [(row["name"], row["index"]) for row in first.json["predictions"][0]["classes"]] == expected
    assert client.get("/info").json["latency_ms"] == 20_000
    assert client.post("/predict", {"a": b"text"}).status == 400
    assert client.get("/info", Host="attacker.example").status == 421

    before = replicas()
    assert len(before) == 2
    statuses, ended = list[tuple[float, int]](), threading.Event()

    def ask() -> None:
        while not ended.is_set():
            statuses.append((time.monotonic(), client.post("/predict", {"a": picture(1)}).status))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    killed = time.monotonic()
    os.kill(min(before), signal.SIGKILL)
    deadline = killed + 90
    while len(replicas()) < 2 or replicas() == before:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    time.sleep(2)
    ended.set()
    for thread in threads:
        thread.join(30)
    wrong = [(at, status) for at, status in statuses if status != 200]
    assert len(wrong) <= 8 and all(at < killed + 10 for at, _ in wrong)  # what the killed one had
    assert sum(status == 200 for at, status in statuses if at > killed) > 20
