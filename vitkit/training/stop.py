"""SIGTERM, Ctrl-C and a closed terminal ask a run to stop after its step; a second Ctrl-C stops it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether someone asked the run to stop, and how."""

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
    """Return the request that signals go to now, if any."""
    owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return owner if isinstance(owner, StopRequest) else None


def obey(*_: object) -> None:
    """Interrupt work that is no training, and tells of its progress by calling this, where it was asked to stop."""
    if listened():
        raise KeyboardInterrupt


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Turn the signals into requests, where this is the main thread; their old meaning comes back at the end.

    Inside another `listening` it is that one's request: who asked in one part of the work asked for all of it.
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
