"""The paper's suite: every data set of its tables that is here, fine-tuned alike, beside what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.evaluate.run import evaluate
from vitkit.train.log import Listener, Silent
from vitkit.train.runs import ROOT
from vitkit.transfer.finetune import finetune
from vitkit.transfer.vtab.run import vtab

SETS = ("imagenet", "cifar10", "cifar100", "pets", "flowers102")
REAL, VTAB = "real.json", "vtab"
ROWS = ("imagenet", "real", *SETS[1:], "vtab")
# Tables 2 and 5 of the ViT paper, in per cent, in the order of ROWS.
PUBLISHED: dict[str, tuple[float | None, ...]] = {
    "H/14 JFT, table 2": (88.55, 90.72, 99.50, 94.55, 97.56, 99.68, 77.63),
    "L/16 JFT, table 2": (87.76, 90.54, 99.42, 93.90, 97.32, 99.74, 76.28),
    "L/16 I21k, table 2": (85.30, 88.62, 99.15, 93.25, 94.67, 99.61, 72.72),
    "B/16 ImageNet, table 5": (77.91, 83.57, 98.13, 87.13, 93.81, 89.49, None),
    "B/16 I21k, table 5": (83.97, 88.35, 98.95, 91.67, 94.43, 99.38, None),
    "B/16 JFT, table 5": (84.15, 88.85, 99.00, 91.87, 95.80, 99.56, None),
}


def run_suite(
    model: str,
    suite: str = "paper",
    folder: str | None = None,
    changes: Sequence[str] = (),
    *,
    seeds: int = 3,
    run: str | None = None,
    device: str = "auto",
    force: bool = False,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """Fine-tune a model on every data set of a suite; return what `vit finetune --suite paper --json` prints.

    folder: where the data sets are: folders by their names, torchvision's, real.json, vtab; left open, the cache.
    """
    if suite != "paper":
        raise InputError(f"unknown suite {suite!r}; expected paper")
    listener = listener or Silent()
    specs, absent = find_sets(folder)
    if not specs and not _vtab_folder(folder):
        raise InputError("no data set of the suite is here: " + "; ".join(absent.values()))
    for name, why in absent.items():
        listener.note(f"left out {name}: {why}")
    path = Path(run) if run and Path(run).name != run else Path(ROOT, run or f"suite-{Path(model).name}")
    options: dict[str, Any] = {"seeds": seeds, "device": device, "force": force, "listener": listener}
    found: dict[str, dict[str, Any]] = {}
    for name, spec in specs.items():
        result = finetune(model, spec, changes, run=str(path / name), **options)
        if result["status"] == "stopped":
            return {"status": "stopped", "run": str(path)}
        found[name] = {key: result[key] for key in ("accuracy", "std", "values", "device_hours", "protocol")}
        if name == "imagenet" and folder and (real := Path(folder, REAL)).is_file():
            reassessed = evaluate(result["model"], result["measured_on"], real=str(real), device=device)
            found["real"] = {
                **found[name],
                "accuracy": reassessed["real"]["accuracy"],
                "std": None,
                "device_hours": 0.0,
            }
    if at := _vtab_folder(folder):
        result = vtab(
            model, str(at), seeds=seeds, run=str(path / VTAB), device=device, force=force, listener=listener
        )
        found["vtab"] = {
            "accuracy": result["mean"],
            "std": None,
            "device_hours": result["device_hours"],
            **result,
        }
    published = {
        name: {row: value / 100 for row, value in zip(ROWS, values, strict=True) if value is not None}
        for name, values in PUBLISHED.items()
    }
    hours = sum(row["device_hours"] for row in found.values())
    return {
        "status": "done",
        "run": str(path),
        "model": model,
        "seeds": seeds,
        "results": found,
        "absent": absent,
        "device_hours": hours,
        "published": published,
    }


def find_sets(folder: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return the data sets that are here as DATA, and why each other one isn't."""
    here, absent = {}, {}
    for name in SETS:
        spec = name
        if folder is not None:
            own = Path(folder, name)
            spec = str(own.absolute()) if own.is_dir() else f"{name}[root={folder}]"
        try:
            open_data(spec, default="train")
            open_data(spec, default="measure")
            here[name] = spec
        except InputError as error:
            absent[name] = str(error)
    return here, absent


def _vtab_folder(folder: str | None) -> Path | None:
    at = Path(folder, VTAB) if folder else None
    return at if at and at.is_dir() else None
