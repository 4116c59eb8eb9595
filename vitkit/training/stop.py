"""SIGTERM, Ctrl-C and a closed terminal stop a run after the current step; a second Ctrl-C stops it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether the run was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.by: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.by is not None

    def ask(self, number: int, frame: FrameType | None) -> None:
        if self.by == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.by = signal.Signals(number)
        os.write(2, b"stopping after this step\n")  # print isn't safe inside a signal handler


def listened() -> StopRequest | None:
    """Return the request that currently handles signals, if any."""
    owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return owner if isinstance(owner, StopRequest) else None


def obey(*_: object) -> None:
    """Interrupt other work than training if it was asked to stop; pass this as its progress callback."""
    if listened():
        raise KeyboardInterrupt


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Turn signals into a stop request, if this is the main thread; the old handlers are restored at the end.

    Nested calls share the outer stop request.
    """
    outer = listened()
    if outer is not None or threading.current_thread() is not threading.main_thread():
        yield StopRequest() if outer is None else outer
        return
    request = StopRequest()
    numbers = [signal.SIGTERM, signal.SIGINT]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # not under nohup
        numbers.append(signal.SIGHUP)
    old = {number: signal.signal(number, request.ask) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
