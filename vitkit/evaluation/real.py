"""ImageNet-ReaL: accuracy by reassessed labels, of which an image may have several, or none (Beyer et al., 2020)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitkit.data.sources.source import Source
from vitkit.errors import InputError
from vitkit.evaluation.imagenet import NUM_CLASSES
from vitkit.files import read_file
from vitkit.results import Result

NUM_IMAGES = 50_000
"Images of ImageNet's validation set."
_NAME = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")


def read_real(path: str | os.PathLike[str]) -> list[list[int]]:
    """Return the labels of each validation image, in the order of file names."""
    path = Path(path).expanduser()
    content = read_file(path, "the ReaL labels in")
    try:
        lists = json.loads(content)
    except (ValueError, RecursionError):
        raise InputError(f"the ReaL labels in {path} are not JSON") from None
    if not isinstance(lists, list) or not all(isinstance(labels, list) for labels in lists):
        raise InputError(f"{path} is not a list of lists of labels, as ReaL's real.json is")
    if len(lists) != NUM_IMAGES:
        raise InputError(
            f"{path} has {len(lists):,} lists; expected {NUM_IMAGES:,}, one for each validation image of ImageNet"
        )
    for number, labels in enumerate(lists):
        for label in labels:
            if type(label) is not int or not 0 <= label < NUM_CLASSES:
                raise InputError(
                    f"{path}, list {number} of {NUM_IMAGES:,} from 0, has label {json.dumps(label)}; "
                    f"expected 0 to {NUM_CLASSES - 1}"
                )
    return lists


def validation_numbers(source: Source) -> np.ndarray:
    """Return each image's place among ImageNet's validation images, from 0, by its file name."""
    numbers = np.empty(len(source), np.int64)
    for index in range(len(source)):
        found = _NAME.findall(source.where(index))
        if not found or not 1 <= int(found[-1]) <= NUM_IMAGES:
            raise InputError(
                f"{source.where(index)}: ReaL's labels belong to file names, "
                f"ILSVRC2012_val_00000001.JPEG to ILSVRC2012_val_{NUM_IMAGES:08d}.JPEG"
            )
        numbers[index] = int(found[-1]) - 1
    return numbers


@dataclass(frozen=True)
class RealAccuracy(Result):
    """The share of images whose prediction is among their labels."""

    accuracy: float | None
    images: int
    left_out: int
    "Images without a label."


def real_accuracy(
    predictions: np.ndarray, numbers: np.ndarray, lists: Sequence[Sequence[int]]
) -> RealAccuracy:
    """Return the share of images whose prediction is among their labels; images without a label are skipped."""
    labels = [lists[number] for number in numbers.tolist()]
    right = [answer in known for answer, known in zip(predictions.tolist(), labels, strict=True) if known]
    return RealAccuracy(sum(right) / len(right) if right else None, len(right), len(labels) - len(right))
