"""Verification of faces by a model as it is, and after fine-tuning on half of the people, on the other half.

    python benchmarks/verification.py Ti/16@weights.safetensors ./faces

DATA has a folder for each person. For each seed, half of the people are drawn to learn from: two of each one's images are
kept to measure accuracy, the others train all weights, and the last weights are taken. All pairs of the other half's images
are compared, through the model as it is and through the fine-tuned one. Results are written after each seed; the same command
resumes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitkit
from vitkit.evaluation.features import frozen_features, load_frozen
from vitkit.evaluation.neighbours import unit_rows
from vitkit.evaluation.pairs import draw_protocol
from vitkit.evaluation.roc import roc
from vitkit.evaluation.verify import similarities
from vitkit.figures.roc import RocCurve, draw_roc

RESULTS = Path(__file__).parents[1] / "docs" / "results"
KEPT = 2
"Images of each person of the first half that are not learned from."
STATES = ("as it is", "fine-tuned")


def write_folders(data: Path, folder: Path, seed: int) -> None:
    """Link the images of a seed's two halves, unless they are there."""
    if (folder / "others").is_dir():
        return
    random = np.random.default_rng(seed)
    people = sorted(path.name for path in data.iterdir() if path.is_dir())
    known = {people[place] for place in random.permutation(len(people))[: len(people) // 2]}
    for name in people:
        images = sorted((data / name).iterdir())
        kept = {images[place] for place in random.permutation(len(images))[:KEPT]}
        for image in images:
            part = ("learn/test" if image in kept else "learn/train") if name in known else "others"
            link = folder / part / name / image.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(image.resolve())


def measured(model: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what `vit verify` measures, as JSON."""
    document = vitkit.verify(
        model, str(folder / "others"), device=arguments.device, **size(arguments)
    ).to_json()
    return {
        name: value for name, value in document.items() if name not in ("model", "data", "notes", "files")
    }


def size(arguments: argparse.Namespace) -> dict[str, Any]:
    return {} if arguments.image_size is None else {"image_size": arguments.image_size}


def run_seed(seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    folder = (Path(arguments.folder) / f"seed-{seed}").absolute()
    write_folders(Path(arguments.data), folder, seed)
    changes = ["protocol=quick", f"seed={seed}", *arguments.set]
    tuned = vitkit.finetune(
        arguments.model,
        f"{folder}/learn:train[:100%]",
        changes,
        evaluate=f"{folder}/learn:test",
        run=str(folder / "run"),
        device=arguments.device,
        **size(arguments),
    )
    models = (arguments.model, str(folder / "run"))
    return {
        "settings": changes,
        "steps": tuned.steps,
        "training_seconds": round(tuned.seconds),
        "accuracy_on_known_people": tuned.accuracy,
        **{state: measured(model, folder, arguments) for state, model in zip(STATES, models, strict=True)},
    }


def draw(arguments: argparse.Namespace, seed: int) -> bytes:
    """Return the ROC of both models on the other half of a seed."""
    folder = (Path(arguments.folder) / f"seed-{seed}").absolute()
    curves = []
    for state, model in zip(STATES, (arguments.model, str(folder / "run")), strict=True):
        predictor = load_frozen(model, arguments.device, arguments.image_size)
        features = frozen_features(predictor, f"{folder}/others:all")
        pairs = draw_protocol(features.labels).pairs
        rates = roc(similarities(unit_rows(features.x).numpy(), pairs), pairs.is_same)
        curves.append(RocCurve(f"{state}, AUC {rates.auc:.4f}", rates.far, rates.tar))
    return draw_roc(f"{len(np.unique(features.labels))} people not learned from", curves)


def table(rows: dict[str, Any]) -> str:
    """Return means over seeds as Markdown, with the least and the greatest."""
    names = {
        "AUC": lambda found: found["auc"],
        "equal error rate": lambda found: found["equal_error_rate"],
        "accuracy over folds": lambda found: found["accuracy"]["mean"],
    }
    for place, rate in enumerate(next(iter(rows.values()))[STATES[0]]["accept_rates"]):
        names[f"true accepts at {100 * rate['far']:g}% false ones"] = lambda found, place=place: found[
            "accept_rates"
        ][place]["tar"]
    lines = [f"| | {' | '.join(STATES)} |", "|---|---:|---:|"]
    for name, read in names.items():
        cells = []
        for state in STATES:
            values = [read(row[state]) for row in rows.values()]
            form = "{:.4f}" if name == "AUC" else "{:.1%}"
            texts = [form.format(value) for value in (np.mean(values), min(values), max(values))]
            cells.append(f"{texts[0]} ({texts[1]} to {texts[2]})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    known = [row["accuracy_on_known_people"] for row in rows.values()]
    lines.append(
        f"\nnew images of known people, classified: {np.mean(known):.1%} ({min(known):.1%} to {max(known):.1%})"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--set", nargs="*", default=["duration=100", "batch_size=32"], help="key=value for fine-tuning"
    )
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--folder", default="verification", help="for the halves and the runs")
    parser.add_argument("--name", default="verification", help="of the results in docs/results/")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    path = RESULTS / f"{arguments.name}.json"
    known = json.loads(path.read_text()) if path.is_file() else {"rows": {}}
    for seed in range(arguments.seeds):
        if str(seed) in known["rows"]:
            continue
        known["rows"][str(seed)] = run_seed(seed, arguments)
        known["environment"] = {
            "model": Path(arguments.model).name,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
            "threads": torch.get_num_threads(),
            "versions": {"vitkit": vitkit.__version__, "torch": torch.__version__},
            "date": datetime.date.today().isoformat(),
        }
        path.write_text(json.dumps(known, indent=1) + "\n")
        print(table(known["rows"]), flush=True)
    (RESULTS / f"{arguments.name}.png").write_bytes(draw(arguments, 0))
    print(table(known["rows"]))


if __name__ == "__main__":
    main()
