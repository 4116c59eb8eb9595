"""Calibration error of probes and of quick fine-tuning, before and after the fitted temperature, on subsets of data.

    python benchmarks/calibration.py Ti/16@weights.safetensors ./cifar10 ./cifar100 ./faces:all digits

For each DATA, some images of train and test, equally many per class, are written as class folders, which are then used like
a user's photos. DATA that ends in :all has no splits: 40% of each class become test. Results are written after each row; the
same command resumes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitkit
from vitkit.data.decode import read_pixels
from vitkit.data.open import open_data
from vitkit.data.sources.source import Source
from vitkit.evaluation.probe import probe
from vitkit.evaluation.temperature import Calibration
from vitkit.transfer.finetune import finetune

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "calibration.json"
TEST_SHARE = 0.4
"Share of test images, for data without splits."
COLUMNS = (
    "data",
    "model",
    "train",
    "test",
    "accuracy",
    "before",
    "after",
    "by chance",
    "temperature",
    "fitted on",
)


def parts(data: str, train: int, test: int) -> list[tuple[str, Source, list[int]]]:
    """Return the images of both splits: about this many of each, equally many per class."""
    if not data.endswith(":all"):
        sources = [(split, open_data(f"{data}:{split}")) for split in ("train", "test")]
        return [
            (split, source, drawn(source, count / source.num_classes))
            for (split, source), count in zip(sources, (train, test), strict=True)
        ]
    source = open_data(data)
    held = drawn(source, TEST_SHARE * len(source) / source.num_classes)
    rest = sorted(set(range(len(source))) - set(held))
    return [("train", source, rest), ("test", source, held)]


def drawn(source: Source, each: float) -> list[int]:
    """Return about this many images of each class, always the same ones."""
    random = np.random.default_rng(0)
    chosen: list[int] = []
    for number in range(source.num_classes):
        members = random.permutation(np.flatnonzero(source.labels == number))
        chosen += members[: max(1, round(each))].tolist()
    return sorted(chosen)


def write_folder(data: str, folder: Path, train: int, test: int) -> None:
    """Write the subset as PNG files, unless it exists."""
    if (folder / "test").is_dir():
        return
    hidden = folder.with_name(f".{folder.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    for split, source, indices in parts(data, train, test):
        for index in indices:
            name = source.class_names[source.labels[index]].replace("/", "-")
            path = hidden / split / name / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(read_pixels(source, index).permute(1, 2, 0).numpy()).save(path)
    hidden.rename(folder)


def row(kind: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the results of a probe or of fine-tuning."""
    data = str(folder.absolute())
    counts: dict[str, Any]
    result: Any
    if kind == "probe":
        result = probe(arguments.model, data, device=arguments.device)
        counts = {"train": result.num_train, "test": result.num_test, "l2": result.l2}
    else:
        changes = ["protocol=quick", *arguments.set]
        run = str((Path(arguments.folder) / "runs" / folder.name).absolute())
        result = finetune(arguments.model, data, changes, run=run, device=arguments.device)
        counts = {"train": result.train_images, "test": result.test_images, "steps": result.steps}
        counts |= {"kept": result.kept, "settings": changes}
    found = result.calibration
    assert isinstance(found, Calibration)
    measured = {**found.to_json(), "fitted_on": found.fitted_on.replace(data, "DATA")}
    return {**counts, "accuracy": result.accuracy, **measured, "seconds": round(result.seconds)}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|" + "---:|" * (len(COLUMNS) - 2)]
    for key, found in rows.items():
        data, kind = key.rsplit("/", 1)
        shares = [
            f"{found[name]:.1%}" for name in ("accuracy", "error_before", "error_after", "error_by_chance")
        ]
        cells = [data, kind, f"{found['train']:,}", f"{found['test']:,}", *shares]
        lines.append(
            f"| {' | '.join([*cells, format(found['temperature'], '.2f'), format(found['images'], ',')])} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("data", nargs="+")
    parser.add_argument("--train", type=int, default=1000, help="images to learn from, about")
    parser.add_argument("--test", type=int, default=2000, help="images to measure on, about")
    parser.add_argument("--set", nargs="*", default=["minutes=1"], help="key=value for fine-tuning")
    parser.add_argument("--folder", default="calibration", help="for the subsets and the runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    known = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {"rows": {}}
    for data in arguments.data:
        name = f"{Path(data.removesuffix(':all')).name}-{arguments.train}"
        folder = Path(arguments.folder) / name
        write_folder(data, folder, arguments.train, arguments.test)
        for kind in ("probe", "finetune"):
            if (key := f"{name}/{kind}") in known["rows"]:
                continue
            known["rows"][key] = row(kind, folder, arguments)
            known["environment"] = {
                "model": Path(arguments.model).name,
                "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
                "threads": torch.get_num_threads(),
                "versions": {"vitkit": vitkit.__version__, "torch": torch.__version__},
                "date": datetime.date.today().isoformat(),
            }
            arguments.out.write_text(json.dumps(known, indent=1) + "\n")
            print(
                key,
                f"{known['rows'][key]['error_before']:.2%} {known['rows'][key]['error_after']:.2%}",
                flush=True,
            )
    print(table(known["rows"]))


if __name__ == "__main__":
    main()
