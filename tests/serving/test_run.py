"""`vit serve` as a process: it answers, and a signal ends it after what was accepted is finished."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

import vitkit
from tests.serving.client import Client
from tests.serving.conftest import picture
from vitkit.errors import InputError
from vitkit.predictor import Predictor
from vitkit.serving.service import listen
from vitkit.weights.convert import save

assert FastAPI


@pytest.fixture(scope="module")
def folder(predictor: Predictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "model"
    save(predictor.as_loaded(), path)
    return path


@contextmanager
def served(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """Run `vit serve` on a free port."""
    command = [sys.executable, "-m", "vitkit", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        line = process.stderr.readline()
        found = re.search(r"http://[\w.]+:(\d+), answers within (\S+) ms; Ctrl-C stops", line)
        assert found, line + process.stderr.read()
        yield process, Client(int(found[1]))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_a_summary(folder: Path, number: signal.Signals, heard: None) -> None:
    with served(str(folder), "--latency", "5s", "--json", "--threads", "1") as (process, client):
        assert client.post("/predict", {"a": picture(1)}).status == 200
        assert client.post("/predict", {"a": b"text"}).status == 400
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert err == ""
        result = json.loads(out)
        assert result["model"] == str(folder)
        assert (result["requests"], result["images"], result["unreadable"]) == (2, 1, 1)
        assert result["refused"] == result["late"] == 0


def test_a_port_in_use_is_one_line(vit: Callable[..., Any], folder: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert vit("serve", str(folder), "--port", str(port)) == (
            2,
            "",
            f"error: cannot listen on 127.0.0.1 port {port}: Address already in use\n",
        )


def test_a_public_server_without_keys_is_refused(vit: Callable[..., Any], folder: Path) -> None:
    answer = vit("serve", str(folder), "--host", "0.0.0.0")
    assert answer.status == 2 and "there are no API keys: give --keys FILE or set VIT_KEYS" in answer.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--latency", "soon"], "latency is 'soon'; expected a time such as 100ms or 2s"),
        (["--latency", "0.001ms"], "can't be kept: give at least"),
        (["--max-bytes", "much"], "max_bytes is 'much'; expected a size"),
        (["--keys", "/nowhere"], "cannot read the keys in /nowhere"),
        (["--threads", "0"], "threads"),
        (["--host", "not a host"], "cannot listen on not a host"),
    ],
)
def test_wrong_settings_are_one_line(
    vit: Callable[..., Any], folder: Path, flags: list[str], words: str
) -> None:
    answer = vit("serve", str(folder), "--port", "0", "--public", *flags)
    assert answer.status == 2 and words in answer.err and answer.err.count("\n") == 1


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.serving.run.find_spec", lambda name: None if name == "fastapi" else object())
    with pytest.raises(InputError, match=r'serve needs fastapi: pip install "vitkit\[serve\]"'):
        vitkit.serve("Ti/16")
