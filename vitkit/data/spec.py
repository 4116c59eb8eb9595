"""The grammar of DATA: 'SOURCE[:SPLIT][[ITEM,...]]', the same string in command line, YAML and Python."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitkit.errors import InputError, did_you_mean
from vitkit.files import is_local, local_path

# What the names of VTAB's tasks, of data sets of the hub, and of PyTorch's, which only Python can open, start with.
VTAB, HUB, TORCH = "vtab/", "hf-hub:", "torch:"
BUILT_IN = ("digits", "shapes")
_ITEMS = re.compile(r"(?P<head>.*?)\[(?P<items>[^\[\]]*)\]", re.DOTALL)
_SLICE = re.compile(r"(?P<start>\d{1,18}%?)?:(?P<stop>\d{1,18}%?)?")
_SHOTS = re.compile(r"(\d{1,18})shot")
_FEWER_SHOTS = re.compile(r"upto(\d{1,18})")
# What is meant for an item, and how that is written.
_NEARLY = {
    re.compile(r"(\d{1,18})[ _-]?shots?"): "{}shot",
    re.compile(r"up[ _-]?to[ _=-]?(\d{1,18})(?:[ _-]?shots?)?"): "upto{}",
}
# Items with a value: how it is read, and what to say of it.
VALUES: dict[str, tuple[type, str]] = {
    "seed": (int, "a whole number"),
    "label": (str, "a word"),
    "size": (int, "a whole number"),
    "root": (str, "a folder"),
    "download": (bool, "true or false"),
}


@dataclass(frozen=True)
class DataSpec:
    """A parsed DATA string."""

    source: str
    "A built-in name, a torchvision data set, vtab/TASK, a path (which starts with '.', '/' or '~'), a URL, or hf-hub:ORG/NAME."
    split: str | None = None
    "A split's name, or 'all'; None leaves the choice to the verb."
    start: str | None = None
    "First image of a slice: a number, or a percentage such as 98%."
    stop: str | None = None
    "First image after the slice."
    shots: int | None = None
    "Images to keep of each class."
    takes_fewer: bool = False
    "Whether a class with fewer images than `shots` gives all that it has, instead of being an error."
    seed: int | None = None
    "Seed of the choice of shots; with a slice, of the order that is sliced, in which all classes are spread alike."
    label: str | None = None
    "Which of a source's labels to take."
    size: int | None = None
    "Side of generated images."
    root: str | None = None
    "Folder of a torchvision data set, or of VTAB's tasks."
    download: bool = False
    "Whether a torchvision data set may be downloaded."

    @property
    def is_path(self) -> bool:
        """Whether the source is a file, a folder or a URL."""
        return is_local(self.source) or "://" in self.source

    @property
    def paths(self) -> list[Path]:
        """What is read of this machine's files: the source, or the folder in which a pattern looks; and the root."""
        here = [] if self.root is None else [Path(self.root).expanduser()]
        if is_local(self.source):
            fixed = re.split(r"[*?{]", self.source, maxsplit=1)[0]
            path = Path(fixed).expanduser()
            here.append(path if fixed in (self.source, "") or fixed.endswith("/") else path.parent)
        return here

    @property
    def whole(self) -> DataSpec:
        """The same data without split, slice and shots."""
        return replace(self, split=None, start=None, stop=None, shots=None, takes_fewer=False, seed=None)

    def __str__(self) -> str:
        items = []
        if self.start is not None or self.stop is not None:
            items.append(f"{self.start or ''}:{self.stop or ''}")
        if self.shots is not None:
            items.append(f"upto{self.shots}" if self.takes_fewer else f"{self.shots}shot")
        for name in VALUES:
            value = getattr(self, name)
            if value != type(self).__dataclass_fields__[name].default:
                items.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
        split = "" if self.split is None else f":{self.split}"
        return f"{self.source}{split}" + (f"[{','.join(items)}]" if items else "")


def as_spec(data: str | os.PathLike[str] | DataSpec) -> DataSpec:
    """Return what a DATA string or a path says; a path needs no './' before it."""
    if isinstance(data, DataSpec):
        return data
    if isinstance(data, str):
        return parse_spec(data)
    return parse_spec(local_path(data))


def parse_spec(text: str) -> DataSpec:
    """Return what a DATA string says, or raise InputError.

    What exists is a path, colons and brackets in its name included, unless it is the name of a data set. A path without
    './' gets it, so that a spec says by itself what it is.
    """
    if not text:
        raise InputError(
            "the data spec is empty; expected SOURCE[:SPLIT][[ITEM,...]], such as 'digits:train'"
        )
    head, items = text, ""
    if text.endswith("]") and not _exists(text):
        match = _ITEMS.fullmatch(text)
        if match is None:
            raise InputError(f"data spec {text!r}: brackets don't match; expected 'SOURCE:SPLIT[ITEM,...]'")
        head, items = match["head"], match["items"]
    source, split = (head, None) if _exists(head) else _split_name(head)
    if not is_local(source) and (_exists(source) or _is_pattern(source)):
        source = f"./{source}"
    if "[" in head.rpartition("]")[2] and not _exists(source):
        raise InputError(f"data spec {text!r} has a '[' without its ']'; expected 'SOURCE:SPLIT[ITEM,...]'")
    if not source:
        raise InputError(f"data spec {text!r} names no source; expected SOURCE[:SPLIT][[ITEM,...]]")
    fields: dict[str, Any] = {}
    for item in filter(None, (item.strip() for item in items.split(","))):
        for name, value in _item(item, text).items():
            if name in fields:
                what = {"start": "has two slices", "shots": "gives the number of shots twice"}.get(
                    name, f"says {name} twice"
                )
                raise InputError(f"data spec {text!r} {what}")
            fields[name] = value
    return DataSpec(source, split, **fields)


def _exists(text: str) -> bool:
    return not is_named(text) and os.path.exists(os.path.expanduser(text))


def _is_pattern(source: str) -> bool:
    return any(mark in source for mark in "*?{") and "://" not in source and not is_named(source)


def is_named(text: str) -> bool:
    """Return whether a DATA string starts with the name of a data set, which wins over a file of that name."""
    from vitkit.data.sources.vision import DATA_SETS  # which needs this module

    name = re.split(r"[:\[]", text, maxsplit=1)[0]
    return text.startswith((VTAB, HUB, TORCH)) or name in BUILT_IN or name in DATA_SETS


def _split_name(head: str) -> tuple[str, str | None]:
    """Cut the split off a source; the colon of a URL, of hf-hub: or of torch: is none."""
    prefix = next(filter(head.startswith, (HUB, TORCH)), "")
    head = head.removeprefix(prefix)
    cut = head.rfind(":")
    if cut < 0 or "/" in head[cut:]:
        return prefix + head, None
    split = head[cut + 1 :]
    if not split:
        raise InputError(f"data spec {head!r} ends in a colon; a split's name follows it, such as ':train'")
    return prefix + head[:cut], split


def _item(item: str, text: str) -> dict[str, object]:
    if match := _SLICE.fullmatch(item):
        for end in (match["start"], match["stop"]):
            if end and end.endswith("%") and int(end[:-1]) > 100:
                raise InputError(f"data spec {text!r}: {end} is more than 100%")
        return {"start": match["start"], "stop": match["stop"]}
    if match := _SHOTS.fullmatch(item) or _FEWER_SHOTS.fullmatch(item):
        if int(match[1]) == 0:
            raise InputError(f"data spec {text!r}: {item} selects no image")
        return {"shots": int(match[1]), "takes_fewer": match.re is _FEWER_SHOTS}
    name, equals, value = item.partition("=")
    if equals and name in VALUES:
        kind, words = VALUES[name]
        if kind is bool and value in ("true", "false"):
            return {name: value == "true"}
        if kind is int and re.fullmatch(r"\d{1,18}", value):
            return {name: int(value)}
        if kind is str and value:
            return {name: value}
        raise InputError(f"data spec {text!r}: {name}= takes {words}, not {value!r}")
    if item.startswith("-") or ":-" in item:
        raise InputError(
            f"data spec {text!r}: {item!r} counts from the end, which slices can't do; write 90%:, for example"
        )
    nearly = [form.format(match[1]) for meant, form in _NEARLY.items() if (match := meant.fullmatch(item))]
    hint = f"; did you mean {nearly[0]!r}?" if nearly else did_you_mean(name, VALUES) or ";"
    expected = f"a slice (:98%, 100:200), 5shot, upto5, or {', '.join(f'{key}=' for key in VALUES)}"
    raise InputError(f"data spec {text!r}: unknown item {item!r}{hint} expected {expected}")
