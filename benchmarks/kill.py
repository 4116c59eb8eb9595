"""Training killed with SIGKILL at random moments, also during checkpoints, compared with an uninterrupted run.

    python benchmarks/kill.py [--kills 25] [--seed 0]

The run is short and saves every second step, so many kills happen during a checkpoint. The same command resumes it each
time. At the end, parameters, optimiser, average, metrics (except timings) and model folders are compared bit by bit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import vitkit
from vitkit.doctor import cpu_name

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tiny runs of the tests
from tests.training import tiny_runs

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "kill.json"
SETTINGS = [
    *("duration=400", "log_every=7", "evaluate_every=31", "checkpoint_every=2", "micro_batch=8"),
    *("model.dropout=0.1", "model.stochastic_depth=0.1", "average=0.9", "optimizer.momentum_dtype=bfloat16"),
]


def start(recipe: Path, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "vitkit", "train", str(recipe), *SETTINGS, "--run", str(folder)]
    return subprocess.Popen(
        [*command, "--device", "cpu"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def newest(folder: Path) -> int:
    """Return the step of the newest checkpoint."""
    return max((int(path.name) for path in folder.glob("checkpoints/[0-9]*")), default=0)


def kill(recipe: Path, folder: Path, moment: random.Random) -> dict[str, Any]:
    """Start or resume the run, kill it at a random moment, and return what it was doing."""
    before = newest(folder)
    hidden = list(folder.glob(".*.part")) + list(folder.glob(".model*"))
    process = start(recipe, folder)
    if moment.random() < 0.2:  # at the start or while it resumes
        time.sleep(moment.uniform(1, 6))
    else:
        while newest(folder) == before and process.poll() is None:
            time.sleep(0.001)
        time.sleep(moment.uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        raise SystemExit(f"the run ended with {process.returncode} before it was killed: make it longer")
    after = newest(folder)
    left = [int(path.name.split(".")[1]) for path in folder.glob("checkpoints/.*.part")]
    if left:
        where = "writing a checkpoint" if max(left) > after else "removing an old checkpoint"
    elif len(list(folder.glob(".*.part")) + list(folder.glob(".model*"))) > len(hidden):
        where = "writing run.json, metrics or a model folder"
    else:
        where = "starting or resuming" if after == before else "training, measuring or logging"
    return {"from_step": before, "newest_checkpoint": after, "where": where}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moment = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recipe = tiny_runs.write_recipe(folder)
        straight = start(recipe, folder / "straight")
        kills = []
        for number in range(arguments.kills):
            kills.append(kill(recipe, folder / "killed", moment))
            print(f"{number + 1:3}  {kills[-1]}", flush=True)
        if start(recipe, folder / "killed").wait() or straight.wait():
            raise SystemExit("a run failed without being killed")
        different = tiny_runs.differences(folder / "straight", folder / "killed")
        compared = len(tiny_runs.tensors(folder / "straight"))
        steps = len(tiny_runs.lines(folder / "straight"))
    places = Counter(entry["where"] for entry in kills)
    for place, count in places.most_common():
        print(f"{count:4}  {place}")
    print(f"{compared} tensors, {steps} lines of metrics, two model folders: {different or 'all bits equal'}")
    RESULT.write_text(
        json.dumps(
            {
                "command": shlex.join(["python", "benchmarks/kill.py", *sys.argv[1:]]),
                "date": datetime.date.today().isoformat(),
                "machine": {"cpu": cpu_name(), "cores": os.cpu_count()},
                "versions": {"vitkit": vitkit.__version__, "torch": torch.__version__},
                "settings": SETTINGS,
                "number_of_kills": len(kills),
                "landed": dict(places),
                "kills": kills,
                "tensors_compared": compared,
                "lines_of_metrics_compared": steps,
                "different": different,
                "all_bits_equal": not different,
            },
            indent=2,
        )
        + "\n"
    )
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
