"""Which classes of data mean which classes of a head: by name, by WordNet id, or by a file that says so."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitkit.data.sources.labels import clean
from vitkit.data.sources.source import Source, count_classes
from vitkit.data.splits import counted, listed
from vitkit.errors import InputError, did_you_mean
from vitkit.evaluation.imagenet import WORDNET_IDS, imagenet_places
from vitkit.files import read_text
from vitkit.predictor import default_names

Among = Literal["head", "data"]
HEADER = ["class", "head"]
SEVERAL = ";"


class HeadClasses:
    """The classes of a model's head, and the names that each goes by."""

    def __init__(self, model: str, class_names: Sequence[str]) -> None:
        self.model, self.class_names = model, tuple(class_names)
        self.imagenet = imagenet_places(self.class_names)
        "Place of each class in ImageNet's order; None for other classes."
        self.places: dict[str, set[int]] = {}
        "Name -> classes that go by it, more than one for a name that the head has twice."
        for place, name in enumerate(self.class_names):
            self.places.setdefault(clean(name), set()).add(place)
        if self.imagenet is not None:
            words = default_names(len(WORDNET_IDS))
            for place, number in enumerate(self.imagenet.tolist()):
                for name in (WORDNET_IDS[number], words[number]):
                    self.places.setdefault(name, {place})

    def __len__(self) -> int:
        return len(self.class_names)

    @property
    def unique_names(self) -> tuple[str, ...]:
        """Names of which none is there twice: to one that is, its place is added."""
        return tuple(
            name if len(self.places[clean(name)]) == 1 else f"{name} ({place})"
            for place, name in enumerate(self.class_names)
        )

    def find(self, name: str, who: str, advice: str) -> int:
        """Return the place of the class that goes by a name; `who` gives it and `advice` says what to do, for errors."""
        places = self.places.get(name)
        if places is None:
            if self.class_names == default_names(len(self)) and self.imagenet is None:
                raise InputError(f"{who}, and {self} have no names: --names FILE gives them, one per line")
            hint = did_you_mean(name, self.class_names) or ";"
            shown = ", ".join(self.class_names[:5]) + (", ..." if len(self) > 5 else "")
            raise InputError(f"{who}, which is none of {self}{hint} they are {shown}{advice}")
        if len(places) > 1:
            raise InputError(f"{who}, and {len(places)} of {self} have that name{advice}")
        [place] = places
        return place

    def __str__(self) -> str:
        return f"the {counted(len(self), 'class')} of {self.model}"


@dataclass(frozen=True)
class Matching:
    """How classes that are reported, classes of data and answers of the head belong together."""

    class_names: tuple[str, ...]
    "Classes that are reported."
    answers: np.ndarray
    "Places in the head among which an answer is chosen, int64 (answers,)."
    members: np.ndarray
    "Which answers are right for a class, bool (classes, answers)."
    places: np.ndarray
    "Reported class of each class of the data, int64; -1 for one that is left out."
    notes: tuple[str, ...] = ()


def match(
    source: Source, head: HeadClasses, mapping: Mapping[str, Sequence[int]] | None, among: Among
) -> Matching:
    """Match a source's classes with a head's; without a mapping by name, which every class with images must have.

    Classes of the head are reported, unless one of the data's means several of them: then the data's own are.
    """
    has_images = count_classes(source) > 0
    means: dict[int, Sequence[int]] = {}
    for number in np.flatnonzero(has_images).tolist():
        name = source.class_names[number]
        if mapping is None:
            advice = "; --mapping FILE says what other names mean"
            means[number] = [head.find(name, f"{source.name} has class {name!r}", advice)]
        elif mapping.get(name):
            means[number] = mapping[name]
    notes = list(_notes(source, mapping, means))
    if not means:
        raise InputError(
            f"the mapping lists none of the classes of {source.name}: {listed(source.class_names)}"
        )
    meant = sorted({place for places in means.values() for place in places})
    answers = np.array(meant) if among == "data" else np.arange(len(head))
    column = {place: number for number, place in enumerate(answers.tolist())}
    is_plain = all(len(places) == 1 for places in means.values())
    if is_plain:
        names = head.unique_names
        class_names = tuple(names[place] for place in answers.tolist())
        members = np.eye(len(answers), dtype=bool)
    else:
        class_names = tuple(source.class_names[number] for number in means)
        members = np.zeros((len(means), len(answers)), bool)
    places_of = np.full(source.num_classes, -1)
    for row, (number, places) in enumerate(means.items()):
        if is_plain:
            places_of[number] = column[places[0]]
        else:
            places_of[number] = row
            members[row, [column[place] for place in places]] = True
    if len(meant) < len(head):
        absent = f"no image of {len(head) - len(meant):,} of {head}"
        notes.append(
            f"{absent}: these can't be predicted"
            if among == "data"
            else f"{absent}: these can still be predicted, unless you add --classes data"
        )
    return Matching(class_names, answers, members, places_of, tuple(notes))


def _notes(
    source: Source, mapping: Mapping[str, Sequence[int]] | None, means: Mapping[int, object]
) -> Iterator[str]:
    if mapping is None:
        return
    counts = count_classes(source)
    left_out = [number for number in np.flatnonzero(counts).tolist() if number not in means]
    if left_out and means:
        names = listed([source.class_names[number] for number in left_out])
        images = counted(int(counts[left_out].sum()), "image")
        classes = counted(len(left_out), "class")
        yield f"skipped {images} of {classes} that the mapping doesn't list: {names}"
    if strange := [name for name in mapping if name not in source.class_names]:
        yield f"the mapping has {counted(len(strange), 'class')} that {source.name} doesn't have: {listed(strange)}"


def read_mapping(path: str | Path, head: HeadClasses) -> dict[str, tuple[int, ...]]:
    """Return what each class of a mapping file means: places in the head, none where the file leaves it open.

    The file is a JSON object, class -> one or a list of names, WordNet ids or places in the head, or a CSV table with
    the columns class and head, in which several have ';' between them or lines of their own.
    """
    path = Path(path).expanduser()
    text = read_text(path, "the mapping")
    if path.suffix.lower() not in (".json", ".csv"):
        raise InputError(f"the mapping {path} is neither .json nor .csv")
    entries = _from_json(text, path) if path.suffix.lower() == ".json" else _from_csv(text, path)
    return {
        clean(name): tuple(dict.fromkeys(_place(target, head, f"{path} maps {name!r}") for target in targets))
        for name, targets in entries.items()
    }


def _from_json(text: str, path: Path) -> dict[str, list[Any]]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise InputError(f"{path} maps {next(n for n in names if names.count(n) > 1)!r} twice")
        return found

    try:
        document = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the mapping {path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(
            f'the mapping {path} is not a JSON object such as {{"chair": ["folding chair", 765]}}'
        )
    return {
        name: [] if value is None else value if isinstance(value, list) else [value]
        for name, value in document.items()
    }


def _from_csv(text: str, path: Path) -> dict[str, list[Any]]:
    entries: dict[str, list[Any]] = {}
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [cell.strip().lower() for cell in next(reader, [])]
        if header != HEADER:
            raise InputError(
                f"the mapping {path} has columns {','.join(header)}; expected {','.join(HEADER)}"
            )
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(HEADER):
                raise InputError(
                    f"{path}, line {reader.line_num}, has {len(cells)} fields, its header {len(HEADER)}: "
                    "a field with a comma needs quotes"
                )
            targets = [target.strip() for target in cells[1].split(SEVERAL) if target.strip()]
            entries.setdefault(cells[0].strip(), []).extend(targets)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from None
    return entries


def _place(target: object, head: HeadClasses, who: str) -> int:
    """Return the class of the head that a name or number of a mapping means; a name comes first."""
    if isinstance(target, str):
        name = clean(target)
        if name in head.places or not re.fullmatch(r"[0-9]{1,9}", name):
            return head.find(name, f"{who} to {target!r}", "; a place in the head is a number")
        target = int(name)
    if not isinstance(target, int) or isinstance(target, bool):
        raise InputError(f"{who} to {json.dumps(target)}; expected names, WordNet ids or places in the head")
    if not 0 <= target < len(head):
        raise InputError(f"{who} to {target}; {head.model} has classes 0 to {len(head) - 1}")
    return target
