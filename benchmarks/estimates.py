"""How well `vit finetune` foresees its time: the estimate that it prints, and the seconds from there to its result.

    python benchmarks/estimates.py Ti/16@pretrained ./photos

Each row is a quick fine-tuning with other settings, in a folder and with a cache of its own, so that nothing is computed
already. Run it on a machine that does nothing else. It prints a Markdown table and writes docs/results/estimates.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import vitkit
from vitkit.machine import cpu_name
from vitkit.notes import Note, kind_of
from vitkit.progress import Silent

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "estimates.json"
SETTINGS: tuple[dict[str, Any], ...] = (
    {"minutes": 1},
    {"minutes": 3},
    {"minutes": 3, "image_size": 160},
    {"minutes": 3, "head_first": False},
    {"minutes": 2, "seeds": 2},
    {"duration": 20},
)
UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}


class Foreseen(Silent):
    """Keeps the estimate, and the moment in which it is said."""

    seconds = said = 0.0

    def note(self, line: Note) -> None:
        found = re.search(r"about ([\d.]+) (\w+) left", line)
        if kind_of(line) == "summary" and found:
            self.seconds, self.said = float(found[1]) * UNITS[found[2]], time.perf_counter()


def measure(model: str, data: str, settings: dict[str, Any]) -> dict[str, Any]:
    listener = Foreseen()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VITKIT_CACHE"] = f"{folder}/cache"
        result = vitkit.finetune(
            model,
            data,
            run=Path(folder, "run"),
            device="cpu",
            listener=listener,
            protocol="quick",
            **settings,
        )
        measured = time.perf_counter() - listener.said
    return {
        "settings": settings,
        "steps": result.steps,
        "estimate": listener.seconds,
        "measured": measured,
        "ratio": measured / listener.seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("data", help="a folder of photos")
    arguments = parser.parse_args()
    vitkit.load(arguments.model)  # a download is no part of the time
    rows = []
    print("| settings | steps | estimate, s | measured, s | measured / estimate |\n|---|---|---|---|---|")
    for settings in SETTINGS:
        row = measure(arguments.model, arguments.data, settings)
        rows.append(row)
        words = " ".join(f"{name}={value}" for name, value in settings.items())
        print(
            f"| `{words}` | {row['steps']:,} | {row['estimate']:.0f} | {row['measured']:.0f} | {row['ratio']:.2f} |",
            flush=True,
        )
    document = {
        "model": arguments.model,
        "data": arguments.data,
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
