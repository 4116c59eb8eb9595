"""Malformed requests get 4xx or a closed connection, and leave nothing behind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI

from tests.serving.client import Client, running
from tests.serving.conftest import picture
from tests.serving.malformed import malformed
from vitkit.serving.engine import Engine
from vitkit.serving.service import resident_bytes

assert FastAPI
SMALL: dict[str, Any] = {"max_bytes": 1_000_000, "head_seconds": 0.3, "body_seconds": 0.3, "idle_seconds": 1}
ALLOWED = {200, 400, 401, 403, 404, 405, 408, 413, 415, 421, 501, 503}


def ask_all(client: Client, seeds: Iterable[int]) -> Counter[int]:
    """Send requests, eight at a time, and count answers by status; 0 is a connection that was closed without one."""

    def ask(seed: int) -> int:
        try:
            answer = client.raw(malformed(seed), seconds=20)
        except (ConnectionResetError, BrokenPipeError):
            return 0
        except TimeoutError:
            return -1
        found = re.match(rb"HTTP/1.1 (?:100 Continue\r\n\r\nHTTP/1.1 )?(\d+)", answer)
        assert found or not answer, (seed, answer[:100])
        status = int(found[1]) if found else 0
        assert status in ALLOWED | {0}, (seed, answer[:300])
        if status == 503:
            assert b"retry-after" in answer, seed
        return status

    with ThreadPoolExecutor(8) as threads:
        return Counter(threads.map(ask, seeds))


def test_malformed_requests_are_refused(engine: Engine) -> None:
    with running(engine, **SMALL, max_pixels=1_000_000) as client:
        found = ask_all(client, range(40, 160))
        assert -1 not in found and found[400] > 30 and {413, 415} <= set(found)
        assert client.post("/predict", {"a": picture(1)}).status == 200
        assert client.get("/healthz").status == 200


@pytest.mark.slow
def test_ten_thousand_malformed_requests_leave_nothing_behind(engine: Engine) -> None:
    with running(engine, **SMALL) as client:
        ask_all(client, range(10_000, 12_000))
        before = resident_bytes()
        found = ask_all(client, range(10_000))
        after = resident_bytes()
        print(dict(found), f"{before / 1e6:.0f} MB before, {after / 1e6:.0f} MB after")
        assert -1 not in found
        assert after < before + 250e6  # with the client's threads, which are in this process too
        assert client.post("/predict", {"a": picture(1)}).status == 200
        text = client.get("/metrics").content.decode()
        for line in ('vit_images_total{outcome="failed"} 0', "vit_waiting_images 0", "vit_body_bytes 0"):
            assert f"{line}\n" in text
        assert 'vit_requests_total{status="500"} 0\n' in text
