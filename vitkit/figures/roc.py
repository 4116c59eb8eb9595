"""How well similarity tells the same from different: rates at every threshold, and similarities of both kinds, as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitkit.figures.palette import THEME, plain_axes
from vitkit.figures.vector import drawing

BINS = 60
_SAME, _DIFFERENT = THEME["run-0"][0], THEME["run-1"][0]


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Rates from the strictest threshold to the loosest."""

    name: str
    far: np.ndarray
    tar: np.ndarray


def draw_roc(
    title: str,
    curves: Sequence[RocCurve],
    same: np.ndarray | None = None,
    different: np.ndarray | None = None,
) -> bytes:
    """Return a picture of curves on a log scale of false accepts; with similarities, their histograms next to it."""
    from matplotlib.figure import Figure

    ink, muted, line = (THEME[name][0] for name in ("ink", "muted", "line"))
    with drawing():
        panels = 1 if same is None or different is None else 2
        figure = Figure(figsize=(5.6 * panels, 4.4), dpi=150, layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        lowest = min(float(curve.far[curve.far > 0].min(initial=1)) for curve in curves)
        for number, curve in enumerate(curves):
            color = THEME[f"run-{number % 10}"][0]
            axes[0].step(curve.far, curve.tar, where="post", color=color, linewidth=1.8, label=curve.name)
        rates = np.geomspace(lowest, 1, 200)
        axes[0].plot(
            rates, rates, color=THEME["shade"][0], linewidth=1, linestyle=(0, (4, 3)), label="by chance"
        )
        plain_axes(axes[0], title)
        axes[0].set_xscale("log")
        axes[0].set_xlim(lowest, 1)
        axes[0].set_ylim(0, 1.02)
        axes[0].grid(True, axis="x", color=line, linewidth=0.8)
        for axis in (axes[0].xaxis, axes[0].yaxis):
            axis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        axes[0].set_xlabel("different pairs accepted (false accept rate)", fontsize=8.5, color=muted)
        axes[0].set_ylabel("same pairs accepted (true accept rate)", fontsize=8.5, color=muted)
        axes[0].legend(loc="lower right", frameon=False, fontsize=8.5, labelcolor=ink)
        if same is not None and different is not None:
            edges = np.linspace(min(same.min(), different.min()), max(same.max(), different.max()), BINS + 1)
            for values, color, name in ((different, _DIFFERENT, "different"), (same, _SAME, "same")):
                weights = np.full(len(values), 1 / len(values))
                axes[1].hist(values, edges, weights=weights, color=color, alpha=0.6, label=f"{name} pairs")
            plain_axes(axes[1], "similarity of pairs")
            axes[1].yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
            axes[1].set_xlabel("cosine similarity", fontsize=8.5, color=muted)
            axes[1].legend(frameon=False, fontsize=8.5, labelcolor=ink)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
