"""Search among many rows: exact and by an index, as `vit search` does it.

    python benchmarks/search.py --rows 1000000 --width 192 exact
    python benchmarks/search.py --rows 200000 --width 192 exact index duplicates

Rows are random, in clusters of about 100, which is harder for an index than rows without clusters. Each part adds to
docs/results/search.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch

import vitkit
from vitkit.data.sources.source import Source
from vitkit.evaluation.approximate import Index
from vitkit.evaluation.embeddings import Embeddings, Origin, make_table, open_embeddings, write_tables
from vitkit.models.configs import Preprocessing

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "search.json"
CLUSTER, NOISE, PART = 100, 0.8, 50_000
K = 10


class Names(Source):
    """Images that are nowhere."""

    def __init__(self, count: int) -> None:
        self.name, self.split, self.class_names = "rows", "all", tuple(f"class {n}" for n in range(1000))
        self.labels = np.arange(count) % 1000

    def where(self, index: int) -> str:
        return f"./photos/class {index % 1000}/{index:08d}.jpg"


def tables(count: int, width: int) -> Iterator[pyarrow.Table]:
    random, source = np.random.default_rng(0), Names(count)
    centres = random.standard_normal((count // CLUSTER, width), dtype=np.float32)
    for start in range(0, count, PART):
        places = np.arange(start, min(start + PART, count))
        noise = random.standard_normal((len(places), width), dtype=np.float32)
        yield make_table(
            places, source, centres[random.integers(0, len(centres), len(places))] + NOISE * noise
        )


def made(count: int, width: int) -> Path:
    """Return a file of rows, written unless it is there."""
    path = Path(tempfile.gettempdir()) / f"vitkit-rows-{count}-{width}.parquet"
    if not path.is_file():
        origin = Origin("random", f"random {count} {width}", Preprocessing(), "rows", "random")
        write_tables(path, tables(count, width), asdict(origin))
    return path


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def exact(path: Path, _: Embeddings) -> dict[str, float]:
    opened, rows = seconds(lambda: open_embeddings(path))
    queries = next(rows.blocks())[:100]
    first, _ = seconds(lambda: rows.nearest(queries[:1], K))
    one = [
        seconds(lambda number=number: rows.nearest(queries[number : number + 1], K))[0]
        for number in range(20)
    ]
    hundred, _ = seconds(lambda: rows.nearest(queries, K))
    return {
        "open": opened,
        "first_query": first,
        "next_query": statistics.median(one),
        "hundred_queries": hundred,
    }


def index(path: Path, rows: Embeddings) -> dict[str, float]:
    os.environ["VITKIT_CACHE"] = tempfile.mkdtemp()
    build, graph = seconds(lambda: Index(rows))
    again, _ = seconds(lambda: Index(rows))
    queries = next(rows.blocks())[:1000]
    one = [
        seconds(lambda number=number: graph.nearest(queries[number : number + 1], K))[0]
        for number in range(100)
    ]
    answers, truth = (
        found.numbers.tolist() for found in (graph.nearest(queries, K), rows.nearest(queries, K))
    )
    shares = [len({*ours} & {*theirs}) / K for ours, theirs in zip(answers, truth, strict=True)]
    return {
        "build": build,
        "open": again,
        "query": statistics.median(one),
        "found": statistics.mean(shares),
    }


def duplicates(path: Path, _: Embeddings) -> dict[str, float]:
    return {"exact": seconds(lambda: vitkit.find_duplicates(path, device="cpu", progress=False))[0]}


PARTS = {"exact": exact, "index": index, "duplicates": duplicates}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=192)
    arguments = parser.parse_args()
    path = made(arguments.rows, arguments.width)
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"seconds": {}}
    for part in arguments.parts:
        name = f"{arguments.rows} x {arguments.width}"
        known["seconds"].setdefault(name, {})[part] = PARTS[part](path, open_embeddings(path))
        known["environment"] = {
            "device": platform.machine(),
            "threads": torch.get_num_threads(),
            "load_before": os.getloadavg()[0],
            "versions": {"vitkit": vitkit.__version__, "torch": torch.__version__},
            "date": datetime.date.today().isoformat(),
        }
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
        print(name, part, json.dumps(known["seconds"][name][part]), flush=True)


if __name__ == "__main__":
    main()
