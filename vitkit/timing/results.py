"""What `bench` returns, and its columns: timm's names where timm has them."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vitkit.display import png_files
from vitkit.files import is_local
from vitkit.results import Result, as_json
from vitkit.timing.candidates import Candidate
from vitkit.timing.measure import Measured, Timed
from vitkit.timing.ways import LIBRARIES


@dataclass(frozen=True, kw_only=True)
class BenchRow(Result):
    """A model in one way at one batch size. Its document has timm's names of columns."""

    model: str
    library: str
    "Whose code runs it: vitkit, timm, transformers, torchvision, onnxruntime or openvino."
    runs: Literal["eager", "compiled", "graph"]
    device: str
    precision: str
    merge: int
    "Patches that each layer merges."
    scales: Literal["static", "dynamic"] | None
    "Of float8: measured once, or for each token."
    threads: int
    measures: Literal["infer", "train"]
    "Forward passes, or training steps with forward pass, backward pass and update."
    batch_size: int
    image_size: tuple[int, int]
    images_per_second: float
    "Median of the rounds."
    p50: float
    "Seconds of a batch: the median of all passes."
    p95: float
    p99: float
    passes: int
    ratio: float
    "Rate of this row as a multiple of the first candidate's, round by round: the median."
    ratio_low: float
    "The lower quartile of the rounds."
    ratio_high: float
    "The upper quartile."
    matrix_share: float | None
    "Operations per second as a share of those of a large matrix product in the same rounds."
    peak_memory_bytes: int | None
    "On a CPU the growth of a process's resident memory after imports; on a GPU weights and what a step allocates."
    logits_difference: float | None
    "Largest difference of a logit from the model as it was loaded; None if it is that model itself."
    accuracy: float | None
    "Top-1, from 0 to 1."
    parameters: int
    macs: int

    _leads = ("model", "library", "runs", "batch_size", "images_per_second", "p50", "ratio", "accuracy")

    def to_json(self) -> dict[str, Any]:
        """Return the row under the names of its columns."""
        height, width = self.image_size
        kind = self.measures
        names: dict[str, object] = {
            "model": self.model,
            "library": self.library,
            "runs": self.runs,
            "device": self.device,
            "precision": self.precision,
            "threads": self.threads,
            f"{kind}_samples_per_sec": round(self.images_per_second, 3),
            f"{kind}_step_time": round(1000 * self.batch_size / self.images_per_second, 3),
            f"{kind}_step_time_p50": round(1000 * self.p50, 3),
            f"{kind}_step_time_p95": round(1000 * self.p95, 3),
            f"{kind}_step_time_p99": round(1000 * self.p99, 3),
            f"{kind}_passes": self.passes,
            f"{kind}_batch_size": self.batch_size,
            f"{kind}_img_size": height if height == width else f"{height}x{width}",
            "infer_gmacs": round(self.macs / 1e9, 2),
            "param_count": round(self.parameters / 1e6, 2),
            "merge": self.merge,
            "scales": self.scales,
            "ratio": self.ratio,
            "ratio_low": self.ratio_low,
            "ratio_high": self.ratio_high,
            "matrix_share": self.matrix_share,
            "peak_memory_bytes": self.peak_memory_bytes,
            "logits_difference": self.logits_difference,
            "top1": self.accuracy,
        }
        return {name: as_json(value) for name, value in names.items()}


@dataclass(frozen=True, kw_only=True)
class BenchResult(Result):
    """What `bench` measured, and on what."""

    device: str
    "The name of the processor or GPU."
    threads: int
    rounds: int
    matrix_flops_per_second: dict[str, float]
    "Of a large matrix product, by precision: the median of the rounds."
    data: str | None = field(default=None, metadata={"optional": True})
    versions: dict[str, str]
    rows: tuple[BenchRow, ...]
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    _tables = ("rows",)

    def _pictures(self) -> list[tuple[str, bytes]]:
        return png_files(self.files)


def as_csv(rows: Sequence[BenchRow]) -> str:
    """Return rows as CSV; top1 is in percent, as in timm's tables."""
    text = io.StringIO()
    documents = [row.to_json() for row in rows]
    table = csv.DictWriter(text, list(documents[0]), lineterminator="\n")
    table.writeheader()
    for document in documents:
        top1 = document["top1"]
        table.writerow({**document, "top1": None if top1 is None else round(100 * top1, 3)})
    return text.getvalue()


# Head of a column -> whether it is right-aligned.
SPEEDS = {
    "candidate": False, "batch": True, "images/s": True, "p50 ms": True, "p95": True, "p99": True, "ratio": True,
}  # fmt: skip
FACTS = {
    "candidate": False, "params": True, "GMACs": True, "memory": True, "of peak": True, "differs": True, "top-1": True,
}  # fmt: skip
CAPTION = (
    "Milliseconds per batch. Ratio: rate divided by the first candidate's, median of the rounds ± half the distance "
    "between the quartiles. Memory is in MB; it and the share of the matrix rate are at the largest batch. Differs: "
    "largest difference of a logit from the loaded model."
)


def in_rows(
    candidates: Sequence[Candidate],
    measured: Measured,
    grown: Sequence[dict[int, int]] = (),
    differences: Sequence[float | None] = (),
    accuracies: Sequence[float | None] = (),
    train: bool = False,
) -> tuple[BenchRow, ...]:
    """Return what was measured as rows; what is given of each candidate stands in its order."""
    places = {id(item): place for place, item in enumerate(candidates)}

    def row(timed: Timed) -> BenchRow:
        item, place = timed.candidate, places[id(timed.candidate)]
        peak = grown[place].get(timed.batch_size) if grown else None
        return BenchRow(
            model=item.model,
            library=item.way.library,
            runs="graph" if item.is_graph else "compiled" if item.way.is_compiled else "eager",
            device=item.way.device,
            precision=item.precision,
            merge=item.way.merge,
            scales=None if item.precision != "float8" else "dynamic" if item.way.is_dynamic else "static",
            threads=item.way.threads,
            measures="train" if train else "infer",
            batch_size=timed.batch_size,
            image_size=item.network.config.size,
            **vars(timed.speed),
            matrix_share=timed.matrix_share,
            peak_memory_bytes=peak if timed.peak_bytes is None else timed.peak_bytes,
            logits_difference=differences[place] if differences else None,
            accuracy=accuracies[place] if accuracies else None,
            parameters=item.parameters,
            macs=item.macs,
        )

    return tuple(row(timed) for timed in measured.timed)


def brief(rows: Sequence[BenchRow]) -> dict[str, str]:
    """Return a short name of each model: a path's last part, a name without its file, where that is still unique."""
    models = dict.fromkeys(row.model for row in rows)
    names = [name if (name := model.partition("@")[0]) and "/." not in name else model for model in models]
    names = [os.path.basename(os.path.abspath(name)) if is_local(name) else name for name in names]
    return {
        model: name if names.count(name) == 1 else model for model, name in zip(models, names, strict=True)
    }


def named(rows: Sequence[BenchRow]) -> list[str]:
    """Return the name of each row's candidate, without what it shares with the first row or with all rows."""
    names, first = brief(rows), rows[0]
    one = len(names) == 1
    libraries = {row.library for row in rows} != {"vitkit"}
    return [
        " ".join(
            [
                *([] if one and libraries else [names[row.model]]),
                *([LIBRARIES[row.library]] if libraries else []),
                *(["compiled"] if row.runs == "compiled" else []),
                *([f"merging {row.merge}"] if row.merge else []),
                *(["dynamic scales"] if row.scales == "dynamic" else []),
                *([row.precision] if row.precision != first.precision else []),
                *([f"x{row.threads}"] if row.threads != first.threads else []),
            ]
        )
        for row in rows
    ]


def speed_cells(rows: Sequence[BenchRow]) -> list[list[str]]:
    """Return the cells of the table of speeds."""
    return [
        [
            name,
            str(row.batch_size),
            short(row.images_per_second),
            short(1000 * row.p50),
            short(1000 * row.p95),
            short(1000 * row.p99),
            f"{row.ratio:.2f} ±{(row.ratio_high - row.ratio_low) / 2:.2f}",
        ]
        for name, row in zip(named(rows), rows, strict=True)
    ]


def fact_cells(rows: Sequence[BenchRow]) -> list[list[str]]:
    """Return the cells of the table of facts: each candidate at its largest batch."""
    largest = dict[str, BenchRow]()
    for name, row in zip(named(rows), rows, strict=True):
        if name not in largest or row.batch_size > largest[name].batch_size:
            largest[name] = row
    return [
        [
            name,
            f"{row.parameters / 1e6:.1f}M",
            f"{row.macs / 1e9:.2f}",
            "" if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / 1e6:,.0f}",
            "" if row.matrix_share is None else f"{row.matrix_share:.0%}",
            "" if row.logits_difference is None else f"{row.logits_difference:.1e}",
            "" if row.accuracy is None else f"{row.accuracy:.1%}",
        ]
        for name, row in largest.items()
    ]


def title(result: BenchResult) -> str:
    """Return the line above the tables."""
    first = result.rows[0]
    threads = "" if first.device == "cuda" else f", {result.threads} thread{'s' * (result.threads > 1)}"
    peaks = ", ".join(
        f"{rate / 1e12:,.3g} TFLOP/s in {name}" for name, rate in result.matrix_flops_per_second.items()
    )
    what = "training steps" if first.measures == "train" else "inference"
    models = f"{first.model}: " if len({row.model for row in result.rows}) == 1 else ""
    return f"{models}{what} in {first.precision} on {result.device}{threads}; matrix products: {peaks or 'not measured'}"


def short(value: float) -> str:
    """Return a number with three digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_markdown(result: BenchResult) -> str:
    """Return both tables in Markdown."""
    parts = [f"{title(result)}."]
    for columns, cells in ((SPEEDS, speed_cells(result.rows)), (FACTS, fact_cells(result.rows))):
        lines = ["| " + " | ".join(columns) + " |"]
        lines.append("|" + "|".join("---:" if right else "---" for right in columns.values()) + "|")
        lines += ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in cells]
        parts.append("\n".join(lines))
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    parts.append(f"{CAPTION} {result.rounds} rounds. {versions}.")
    if result.notes:
        parts.append("\n".join(f"- {note}" for note in result.notes))
    return "\n\n".join(parts) + "\n"
