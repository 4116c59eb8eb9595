"""The site's reference: docstrings and fields as this code writes them become the lists that mkdocstrings draws."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

NOTHING = "&#8203;"  # mkdocstrings drops a row that says nothing


class Lists(griffe.Extension):
    """Give functions a list of the arguments they explain, and classes one list of all their fields."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.name.startswith("__"):
            func.public = False
        elif func.docstring:
            prose, meanings = explained(func.docstring.value, [each.name for each in func.parameters])
            rows = [f"    {name}: {meaning}" for name, meaning in meanings.items()]
            func.docstring.value = with_section(prose, "Args", rows)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        own = [each for each in cls.members.values() if isinstance(each, griffe.Attribute)]
        fields = [each for each in own if not each.name.startswith("_")]
        for field in fields:
            field.public = False  # it has no heading of its own
        if cls.docstring:
            prose, meanings = explained(cls.docstring.value, [field.name for field in fields])
            told = [each for each in fields if each.annotation or each.docstring or each.name in meanings]
            rows = [row(field, meanings.get(field.name, "")) for field in told]
            cls.docstring.value = with_section(prose, "Attributes", rows)


def explained(text: str, names: list[str]) -> tuple[str, dict[str, str]]:
    """Split a docstring into its prose and what it says of each name.

    An explanation starts a line or follows a full stop; it may be of several names: `model, data: ...`.
    """
    name = "(?:" + ("|".join(map(re.escape, names)) or "(?!)") + ")"
    start = re.compile(rf"(?:^|(?<=\. ))({name}(?:, {name})*): ", re.MULTILINE)
    prose, meanings = [], {}
    for paragraph in re.split(r"\n\s*\n", text):
        before, *pairs = start.split(paragraph)
        prose += [before] if before.strip() else []
        for which, meaning in zip(pairs[::2], pairs[1::2], strict=True):
            meanings.update(dict.fromkeys(which.split(", "), " ".join(meaning.split())))
    return "\n\n".join(prose), meanings


def row(field: griffe.Attribute, meaning: str) -> str:
    """Return a field as a line of an `Attributes:` section: its name, type and meaning, and the default of a setting."""
    if field.docstring:
        meaning = " ".join(field.docstring.value.split())
    default = "" if field.value is None else str(field.value)
    if field.parent.name.endswith("Config") and default and not default.startswith("field("):
        meaning += f" Default: `{default}`."
    kind = f" ({field.annotation})" if field.annotation else ""
    return f"    {field.name}{kind}: {meaning or NOTHING}"


def with_section(prose: str, title: str, rows: list[str]) -> str:
    return f"{prose}\n\n{title}:\n" + "\n".join(rows) if rows else prose


def on_page_content(html: str, **_: Any) -> str:
    """Take away the dash before a meaning that isn't there."""
    return re.sub(rf"\s*–\s*<div class=\"doc-md-description\">\s*<p>{NOTHING}</p>\s*</div>", "", html)


def on_post_build(config: Any, **_: Any) -> None:
    """Write the search index as a script too, which a page opened from a file may load."""
    index = Path(config.site_dir, "search", "search_index.json")
    index.with_suffix(".js").write_text(
        f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8"
    )
