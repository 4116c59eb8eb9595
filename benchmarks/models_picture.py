"""Draw the README's picture: every listed model by parameters and multiply-adds, from `vitkit.costs`.

python benchmarks/models_picture.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

from vitkit.costs import cost_of
from vitkit.models.names import COMPACTS, HYBRIDS, VITS, list_models, model_config

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "models.png"
FAMILIES = {
    "Vision Transformers": (VITS, "#2563eb", "o"),
    "hybrids": (list(HYBRIDS), "#d97706", "D"),
    "BiT ResNets": ([name for name in list_models() if name.startswith("BiT")], "#6b7280", "s"),
    "Compact Transformers": (list(COMPACTS), "#059669", "^"),
}
LABELS = (
    "mu/16 Ti/16 S/32 B/32 B/16 B/8 L/16 H/14 G/14 e/14 R+Ti/16 R26+S/32 R50+L/32 BiT-R26x1 "
    "CCT-2/3x2 CCT-6/3x1 CCT-14/7x2 CVT-7/8 ViT-Lite-7/16"
).split()

BELOW = ("CCT-6/3x1", "BiT-R26x1", "H/14", "CCT-14/7x2", "CVT-7/8", "L/16")


def main() -> None:
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(10, 5.6), dpi=150)
    for family, (names, color, marker) in FAMILIES.items():
        costs = {name: cost_of(model_config(name)) for name in names}
        axes.scatter(
            [cost.macs / 1e9 for cost in costs.values()],
            [cost.parameters / 1e6 for cost in costs.values()],
            s=38, c=color, marker=marker, alpha=0.85, linewidths=0, label=f"{family} ({len(names)})",
        )  # fmt: skip
        for name in names:
            if name in LABELS:
                place = (costs[name].macs / 1e9, costs[name].parameters / 1e6)
                axes.annotate(
                    name,
                    place,
                    xytext=(6, -9 if name in BELOW else 5),
                    textcoords="offset points",
                    fontsize=8,
                    color="#374151",
                )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="multiply-adds per image, in billions",
        ylabel="parameters, in millions",
    )
    axes.set_title("Every model of the papers, by name", loc="left", fontsize=13, fontweight="bold")
    axes.grid(True, which="major", color="#e5e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE)
    print(PICTURE)


if __name__ == "__main__":
    main()
