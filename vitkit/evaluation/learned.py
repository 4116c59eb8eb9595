"""Whether a run's model is measured on images that it learned from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitkit.data.open import open_data
from vitkit.data.sources.source import Source, shared_images
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
        if found is None or _is_apart(as_spec(found[0]), source):
            return []
        count = shared_images(open_data(found[0], default="train", labelled=found[1]), source)
    except (InputError, OSError):  # the data has moved, or the run's settings can't be read
        return []
    if not count:
        return []
    words = f"{run} was trained on {count:,} of these images; its accuracy on new images will be lower"
    return [Note(words, "warning")]


def _learned_from(run: Path) -> tuple[str, bool] | None:
    """Return the DATA that a run or fine-tuning learned from, and whether by its labels."""
    settings: Mapping[str, Any]
    if (run / FINETUNE).is_file():
        settings, is_labelled = mapping(read_record(run, "finetune")["settings"]), True
        data = settings.get("data")
    elif (run / CONFIG).is_file():
        settings = read_config(run)
        data = mapping(settings.get("data")).get("train")
        is_labelled = mapping(settings.get("objective")).get("name", "supervised") == "supervised"
    else:
        return None
    return None if text(data) is None else (str(data), is_labelled)


def _is_apart(learned: DataSpec, source: Source) -> bool:
    """Say, without opening anything, whether data can share no image with a source, or would be downloaded."""
    spec = source.spec
    if spec is None or learned.download or learned.source.startswith(HUB) or "://" in learned.source:
        return True
    if (_place(learned), learned.root) == (_place(spec), spec.root):
        split = WORDS.get(learned.split or "train", learned.split)
        return "all" not in (split, source.split) and split != source.split
    paths, others = ([Path(_place(one)) for one in each.paths] for each in (learned, spec))
    return not any(
        path.is_relative_to(other) or other.is_relative_to(path) for path in paths for other in others
    )


def _place(data: DataSpec | Path) -> str:
    """Return where data is, however its path is spelled; of data with a name, its name."""
    if isinstance(data, DataSpec) and not data.is_path:
        return data.source
    return os.path.realpath(os.path.expanduser(data if isinstance(data, Path) else data.source))
