"""How a run used its device: the share of time in which the GPU had work, and how many runs shared it."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitkit.files import write_json
from vitkit.runs.reading import finite
from vitkit.runs.records import RECORD, read_object
from vitkit.studies.jobs import Tell

FILE = "device.json"
"In the run's folder."
EVERY = 0.5
"Seconds between two looks at the GPU."


@dataclass(frozen=True)
class Usage:
    """Of the training of a run, over all parts of one that was cut."""

    seconds: float = 0.0
    sharing: float = 1.0
    "How many workers shared the device."
    busy: float | None = None
    "Share of the time in which the GPU had work, of this run or another; None if NVML isn't there to ask."

    def joined(self, other: Usage) -> Usage:
        """Return the use of both parts of a run."""
        seconds = self.seconds + other.seconds
        if not self.seconds or not other.seconds:
            return self if self.seconds else other
        share = self.seconds / seconds
        sharing = self.sharing * share + other.sharing * (1 - share)
        known = [one for one in (self, other) if one.busy is not None]
        total = sum(one.seconds for one in known)
        busy = sum((one.busy or 0.0) * one.seconds for one in known) / total if known else None
        return Usage(seconds, sharing, busy)


def read_usage(path: Path) -> Usage:
    """Return how a run used its device, as far as its folder says."""
    found = read_object(path / FILE)
    seconds, sharing = finite(found.get("seconds")), finite(found.get("sharing"))
    return Usage(seconds or 0.0, max(1.0, sharing or 1.0), finite(found.get("busy")))


class Meter:
    """Passes on what a run reports, and looks at the GPU from its first step until it is measured."""

    def __init__(self, path: Path, tell: Tell, device: str, sharing: int) -> None:
        self.path, self.tell, self.device, self.sharing = path, tell, device, sharing
        self.began: float | None = None
        self.ended = threading.Event()
        self.looks: list[float] = []
        self.looker: threading.Thread | None = None

    def __call__(self, kind: str, **values: Any) -> None:
        if kind == "step" and self.began is None:
            self.began = time.monotonic()
            if self.device == "cuda":
                self.looker = threading.Thread(target=self._look, daemon=True)
                self.looker.start()
        elif kind == "measuring":
            self.close()
        self.tell(kind, **values)

    def close(self) -> None:
        """Write what was seen, once."""
        if self.began is None or self.ended.is_set():
            return
        seconds = time.monotonic() - self.began
        self.ended.set()
        if self.looker is not None:
            self.looker.join()
        if not (self.path / RECORD).exists():
            return
        busy = statistics.fmean(self.looks) if self.looks else None
        now = read_usage(self.path).joined(Usage(seconds, self.sharing, busy))
        write_json(self.path / FILE, asdict(now))

    def _look(self) -> None:
        import torch

        while not self.ended.wait(EVERY):
            try:
                self.looks.append(torch.cuda.utilization() / 100)
            except Exception:  # no NVML here, or one that can't say
                return
