"""Data sets of the Hugging Face hub, through its `datasets` library; code from the hub is never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitkit.data.sources.files import ask
from vitkit.data.sources.labels import Label, clean, name_classes, number_labels, say_classes
from vitkit.data.sources.parquet import IMAGES, LABELS
from vitkit.data.sources.source import Picture, Source
from vitkit.data.spec import HUB, DataSpec
from vitkit.data.splits import WORDS, Default, choose_split
from vitkit.errors import InputError


class Hub(Source):
    """Images of a data set of the `datasets` library, which maps its files into memory."""

    def __init__(self, name: str, split: str, data: Any, column: str) -> None:
        self.name, self.split, self.data, self.column = name, split, data, column

    def read(self, index: int) -> Picture:
        image = self.data[index][self.column]
        picture = image.get("bytes") or image.get("path")
        if not picture:
            raise InputError(f"{self.where(index)} has no image")
        return picture


def open_hub(spec: DataSpec, default: Default, classes: Sequence[str] | None = None) -> Source:
    """Return a data set of the hub, named hf-hub:ORG/NAME.

    Where the hub states no names of classes, and no `classes` are given, they are those of train's labels.
    """
    name, repository = spec.source, spec.source.removeprefix(HUB)
    datasets, theirs = _look_up(name, repository)
    split, notes = choose_split(list(theirs), spec.split, default, name)
    wanted = "+".join(theirs.values()) if split == "all" else theirs[split]
    data = ask(name, lambda: datasets.load_dataset(repository, split=wanted))
    image, label = _column(data, IMAGES, name), _column(data, LABELS, name)
    data = ask(name, lambda: data.cast_column(image, datasets.Image(decode=False)))
    source = Hub(name, split, data, image)
    values = _labels(data, label, f"{name}:{split}")
    names = getattr(data.features[label], "names", None)
    if names:
        source.class_names = tuple(map(clean, names))
    elif classes is None and "train" in theirs and split != "train":
        train = ask(name, lambda: datasets.load_dataset(repository, split=theirs["train"]))
        source.class_names = name_classes(_labels(train, _column(train, LABELS, name), f"{name}:train"))
    else:
        source.class_names = name_classes(values)
    source.labels = number_labels(values, source.class_names, lambda index: f"{source.where(index)},", name)
    source.notes = (
        *notes,
        say_classes(name, source.class_names, "as on the hub" if names else None),
    )
    return source


def list_hub_splits(name: str) -> list[str]:
    """Return the splits of a data set of the hub, by our names."""
    return list(_look_up(name, name.removeprefix(HUB))[1])


def _look_up(name: str, repository: str) -> tuple[Any, dict[str, str]]:
    """Return the hub's library, and our name of each split of a data set -> the hub's."""
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise InputError(f"{name!r} names no data set of the hub; expected {HUB}ORG/NAME")
    try:
        import datasets
    except ImportError:
        raise InputError('hub data sets need the datasets library: pip install "vitkit[hub]"') from None
    if int(datasets.__version__.partition(".")[0]) < 4:
        raise InputError(
            f"datasets {datasets.__version__} may run code from the hub: pip install 'datasets>=4'"
        )
    found: list[str] = ask(name, lambda: datasets.get_dataset_split_names(repository))
    # A name of ours is theirs too, unless they have it themselves: validation next to dev.
    return datasets, {
        split if WORDS.get(split) in found else WORDS.get(split, split): split for split in found
    }


def _column(data: Any, names: tuple[str, ...], name: str) -> str:
    for column in names:
        if column in data.features:
            return column
    raise InputError(
        f"{name} has columns {', '.join(data.features)}; expected one named {' or '.join(names)}"
    )


def _labels(data: Any, column: str, where: str) -> list[Label]:
    labels = data[column][:]
    if None in labels:
        raise InputError(f"{where}, image {labels.index(None)}, has no label")
    return [clean(label) if isinstance(label, str) else label for label in labels]
