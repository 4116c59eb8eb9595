"""What every test shares: no downloads, no windows, no colours, signals that reach it, and `vit` as a function."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "agg"
os.environ["NO_COLOR"] = "1"

# Started in the background or under nohup, the tests and all they start would ignore these.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Cores are shared with other test processes, so that the time of one example says nothing.
settings.register_profile("vitkit", deadline=None)
settings.load_profile("vitkit")


class Answer(NamedTuple):
    """What a command answered."""

    status: int
    out: str
    err: str


@pytest.fixture
def vit(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run a command in this process: `vit("models", "--json")`."""
    from vitkit.cli import main

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        status = main(list(arguments))
        return Answer(status, *capsys.readouterr())

    return run
