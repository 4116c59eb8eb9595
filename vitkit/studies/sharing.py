"""`--workers auto`: how many runs at once a GPU trains fastest, found by training with 1, 2, 4 and 8 for a few seconds."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty

from vitkit.config import to_dict
from vitkit.files import write_json
from vitkit.machine import num_cores
from vitkit.notes import Note, say
from vitkit.runs.reading import finite, mapping
from vitkit.runs.records import read_object
from vitkit.studies.config import StudyRun
from vitkit.studies.jobs import Job
from vitkit.studies.workers import ENDS, LocalWorker, Place, Reports, Site, Worker, threads
from vitkit.training.config import TrainConfig

FILE = "workers.json"
"In the study's folder: what was found."
COUNTS = (1, 2, 4, 8)
SECONDS = 5.0
"Time of training with each number of workers."
PATIENCE = 300.0
"Seconds until all of them train: they compile first."
WARM = 5
"First steps, which aren't counted."
GAIN = 1.05
"More workers must be this much faster in all."
ENDLESS = 10_000_000
"Steps of a run that is cut off."


def best_sharing(runs: Sequence[StudyRun], folder: Path, site: Site, progress: bool) -> int:
    """Return how many workers share each device best for the study's most common model: one on a CPU."""
    counts = [count for count in COUNTS if count <= len(runs)]
    if site.device != "cuda" or len(counts) < 2:
        return 1
    config = most_common([run.config for run in runs])
    key = {"device": site.device_name, "settings": _digest(config)}
    known = read_object(folder / FILE)
    rates = {
        int(count): finite(rate) or 0.0 for count, rate in mapping(known.get("images_per_second")).items()
    }
    if any(known.get(name) != value for name, value in key.items()) or not rates:
        if progress:
            say(Note("measuring how many runs share a GPU best", "progress"))
        rates = site.call(measure_rates, config, counts, site.device)
        content = {**key, "images_per_second": rates}
        write_json(folder / FILE, content)
    best = fastest({count: rate for count, rate in rates.items() if count in counts})
    if progress:
        found = ", ".join(f"{rate:,.0f} with {count}" for count, rate in rates.items())
        say(Note(f"workers on each GPU: {best}; images/s are {found} ({folder / FILE})", "summary"))
    return best


def known_sharing(folder: Path) -> tuple[int, float]:
    """Return the workers per device that were found for a study, and how many times as fast they are as one."""
    found = mapping(read_object(folder / FILE).get("images_per_second"))
    rates = {int(count): finite(rate) or 0.0 for count, rate in found.items()}
    best = fastest(rates)
    return best, rates[best] / rates[1] if best > 1 and rates.get(1) else 1.0


def fastest(rates: Mapping[int, float]) -> int:
    """Return the number of workers to use: more of them only if they are clearly faster, since each takes memory."""
    best = 1
    for count, rate in sorted(rates.items()):
        if rate >= GAIN * rates.get(best, 0.0):
            best = count
    return best


def most_common(configs: Sequence[TrainConfig]) -> TrainConfig:
    """Return the first of the configs whose model, batches and precision most of them have."""
    counts = Counter(map(_digest, configs))
    return max(configs, key=lambda config: counts[_digest(config)])


def _digest(config: TrainConfig) -> str:
    """Return what tells configs apart whose steps take different time."""
    parts = (config.model, config.batch_size, config.precision, config.compile, config.data.pipeline)
    text = json.dumps([*parts, config.micro_batch, to_dict(config.objective)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measure_rates(config: TrainConfig, counts: Sequence[int], device: str) -> dict[int, float]:
    """Return the images per second in all with each number of workers, up to the first that is no faster.

    Workers go on while more are started, so that each starts once. They train as in the study, in a temporary folder.
    """
    config = replace(
        config,
        duration=ENDLESS,
        evaluate_every=ENDLESS,
        checkpoint_every=ENDLESS,
        frozen=replace(config.frozen, evaluators=()),
        track=(),
    )
    place = Place(threads(num_cores() / max(counts)), max(counts))
    reports, crew, rates = Reports(), list[LocalWorker](), dict[int, float]()
    with tempfile.TemporaryDirectory() as folder:
        try:
            for count in counts:
                while len(crew) < count:
                    name = f"run-{len(crew)}"
                    crew.append(LocalWorker(place, reports))
                    crew[-1].send(Job(name, Path(folder, name), config, (), device), ["vit"])
                steps = _steps_per_second(crew, reports)
                if steps is None:  # no memory for so many
                    break
                rates[count] = steps * config.batch_size
                if fastest(rates) != count:
                    break
        finally:
            for worker in crew:
                worker.close()
    return rates


def _steps_per_second(crew: Sequence[Worker], reports: Reports) -> float | None:
    """Return the steps per second of all workers at once, after their first steps; None if one of them ends."""
    counting_since, patience = None, time.monotonic() + PATIENCE
    warm: dict[Worker, int] = {}
    heard: dict[Worker, list[tuple[float, int]]] = {worker: [] for worker in crew}
    while (now := time.monotonic()) < patience:
        if (
            counting_since is not None
            and now - counting_since >= SECONDS
            and all(len(each) > 1 for each in heard.values())
        ):
            return sum(
                (each[-1][1] - each[0][1]) / max(each[-1][0] - each[0][0], 1e-9) for each in heard.values()
            )
        try:
            worker, report = reports.get(timeout=0.1)
        except Empty:
            continue
        if report is None or report["kind"] in ENDS:
            return None
        if report["kind"] != "step":
            continue
        if counting_since is not None:
            heard[worker].append((time.monotonic(), report["step"]))
            continue
        warm[worker] = report["step"]
        if len(warm) == len(crew) and min(warm.values()) >= WARM:
            counting_since = time.monotonic()
    return None
