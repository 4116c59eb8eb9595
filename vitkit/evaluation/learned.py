"""Whether a run's model is measured on images that it learned from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitkit.data.open import open_data, stated_splits
from vitkit.data.sources.source import Source, Subset, fingerprint, shared_images
from vitkit.data.spec import HUB, DataSpec, as_spec
from vitkit.data.splits import WORDS
from vitkit.errors import InputError
from vitkit.notes import Note
from vitkit.runs import CONFIG, read_config, read_record
from vitkit.runs.reading import FINETUNE, mapping, text


def warn_if_learned(model: str, source: Source) -> list[Note]:
    """Return a warning where a MODEL that is a run learned from images of a source; none where that can't be known."""
    run = model.removesuffix("@last")
    try:
        found = _learned_from(Path(run).expanduser())
        if found is None or _is_apart(as_spec(found.data), source):
            return []
        learned = open_data(found.data, default="train", labelled=found.is_labelled)
        skipped = {entry["image"] for entry in found.record["unreadable"]}
        kept = [index for index in range(len(learned)) if learned.where(index) not in skipped]
        count = shared_images(Subset(learned, np.array(kept, np.int64)), source)
        known = found.record["data"]
        now = {"images": len(learned), "fingerprint": fingerprint(learned, labelled=found.is_labelled)}
    except (InputError, OSError):  # the data has moved, or the run's settings can't be read
        return []
    if count:
        words = f"{run} was trained on {count:,} of these images; its accuracy on new images will be lower"
    elif any(known.get(name, value) != value for name, value in now.items()):
        words = (
            f"{learned.name} has changed since {run} was trained, and splits made by content change with it: {run} may "
            "have been trained on some of these images"
        )
    else:
        return []
    return [Note(words, "warning")]


class Learned(NamedTuple):
    """What a run or fine-tuning learned from."""

    data: str
    is_labelled: bool
    record: Mapping[str, Any]


def _learned_from(run: Path) -> Learned | None:
    settings: Mapping[str, Any]
    if (run / FINETUNE).is_file():
        record, is_labelled = read_record(run, "finetune"), True
        settings = mapping(record["settings"])
        data = settings.get("data")
    elif (run / CONFIG).is_file():
        record, settings = read_record(run), read_config(run)
        data = mapping(settings.get("data")).get("train")
        is_labelled = mapping(settings.get("objective")).get("name", "supervised") == "supervised"
    else:
        return None
    return None if text(data) is None else Learned(str(data), is_labelled, record)


def _is_apart(learned: DataSpec, source: Source) -> bool:
    """Say, without opening images, whether data can share none with a source, or would be downloaded."""
    spec = source.spec
    if spec is None or learned.download or learned.source.startswith(HUB) or "://" in learned.source:
        return True
    if (_place(learned), learned.root) == (_place(spec), spec.root):
        split = WORDS.get(learned.split or "train", learned.split)
        if "all" in (split, source.split) or split == source.split:
            return False
        return not learned.is_path or bool(
            stated_splits(learned)
        )  # of a folder, made splits change with its images
    paths, others = ([Path(_place(one)) for one in each.paths] for each in (learned, spec))
    return not any(
        path.is_relative_to(other) or other.is_relative_to(path) for path in paths for other in others
    )


def _place(data: DataSpec | Path) -> str:
    """Return where data is, however its path is spelled; of data with a name, its name."""
    if isinstance(data, DataSpec) and not data.is_path:
        return data.source
    return os.path.realpath(os.path.expanduser(data if isinstance(data, Path) else data.source))
