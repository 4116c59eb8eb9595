"""Counters of a server, one row per process in shared memory, and their sum in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import MutableSequence, Sequence

LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
STATUSES = (200, 400, 401, 403, 404, 405, 408, 413, 415, 421, 500, 501, 503)
OUTCOMES = ("answered", "unreadable", "refused", "late", "failed")

# name -> (kind, help, label, values of the label; or upper bounds of a histogram)
FAMILIES: dict[str, tuple[str, str, str, tuple[object, ...]]] = {
    "vit_requests_total": ("counter", "Requests by the status of their answer.", "status", STATUSES),
    "vit_images_total": (
        "counter",
        "Images by what became of them; late ones were answered too.",
        "outcome",
        OUTCOMES,
    ),
    "vit_latency_seconds": (
        "histogram",
        "From a request's last byte to the first byte of its answer, of accepted requests.",
        "le",
        LATENCIES,
    ),
    "vit_batch_images": ("histogram", "Images computed together.", "le", BATCHES),
    "vit_compute_seconds_total": ("counter", "Time in which batches were computed.", "", ()),
    "vit_waiting_images": ("gauge", "Images that were accepted and are not yet computed.", "", ()),
    "vit_body_bytes": ("gauge", "Bytes of requests that are being read or answered.", "", ()),
    "vit_resident_memory_bytes": ("gauge", "Memory of the server's processes.", "", ()),
    "vit_workers": ("gauge", "Processes that answer.", "", ()),
    "vit_worker_restarts_total": ("counter", "Processes that were started again after they died.", "", ()),
}


GAUGES = tuple(name for name, (kind, *_) in FAMILIES.items() if kind == "gauge")


def _places() -> dict[str, int]:
    """Return where each family's numbers begin in a row; a histogram ends with its overflow and its sum."""
    places, place = dict[str, int](), 0
    for name, (kind, _, _, values) in FAMILIES.items():
        places[name] = place
        place += len(values) + 2 if kind == "histogram" else max(1, len(values))
    return {**places, "": place}


_PLACE = _places()
ROW = _PLACE.pop("")
"Numbers that a process keeps."


class Metrics:
    """One process's row, of which it is the only writer, and those of all."""

    def __init__(self, rows: Sequence[MutableSequence[float]] | None = None, own: int = 0) -> None:
        """rows: ROW numbers for each process, in memory that they share. Default: one, of this process alone."""
        self._rows = [[0.0] * ROW] if rows is None else rows
        self._own = self._rows[own]

    def add(self, name: str, label: object = None, amount: float = 1.0) -> None:
        """Add to a counter."""
        self._own[self._place(name, label)] += amount

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        self._own[_PLACE[name]] = value

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        bounds = FAMILIES[name][3]
        place = _PLACE[name]
        self._own[place + bisect_left(bounds, value)] += 1  # type: ignore[type-var]
        self._own[place + len(bounds) + 1] += value

    def total(self, name: str, label: object = None) -> float:
        """Return a counter or a gauge, summed over processes."""
        place = self._place(name, label)
        return sum(row[place] for row in self._rows)

    def text(self) -> str:
        """Return all numbers, summed over processes, as Prometheus reads them."""
        lines = []
        for name, (kind, about, label, values) in FAMILIES.items():
            place = _PLACE[name]
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
            if kind == "histogram":
                count = 0.0
                for offset, bound in enumerate((*values, "+Inf")):
                    count += sum(row[place + offset] for row in self._rows)
                    lines.append(f'{name}_bucket{{le="{bound}"}} {_written(count)}')
                whole = sum(row[place + len(values) + 1] for row in self._rows)
                lines += [f"{name}_sum {_written(whole)}", f"{name}_count {_written(count)}"]
            elif values:
                lines += [
                    f'{name}{{{label}="{value}"}} {_written(self.total(name, value))}' for value in values
                ]
            else:
                lines.append(f"{name} {_written(self.total(name))}")
        return "\n".join([*lines, ""])

    def _place(self, name: str, label: object) -> int:
        values = FAMILIES[name][3]
        return _PLACE[name] + (values.index(label) if values else 0)


def _written(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
