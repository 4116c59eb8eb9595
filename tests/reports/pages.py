"""Pages read as a browser would, and refused where they refer to anything outside them."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "img", "wbr"}


class Reader(HTMLParser):
    """Checks that tags nest, and collects texts, attributes and pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.images: list[bytes] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "img":
            self.add_image(dict(attrs)["src"])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs
        if tag == "image":  # of an SVG
            self.add_image(dict(attrs).get("href") or dict(attrs)["xlink:href"])

    def add_image(self, source: str | None) -> None:
        kind, _, content = (source or "").partition(",")
        assert kind in ("data:image/png;base64", "data:image/webp;base64")
        self.images.append(base64.b64decode("".join(content.split()), validate=True))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def read(path: str) -> Reader:
    """Parse a page; fail where it refers to anything outside it."""
    text = Path(path).read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    assert not reader.seen & {"script", "iframe", "object", "embed"}
    for name, value in reader.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href", "action"):
            assert value is not None and value.startswith(("#", "data:")), (name, value)
    assert not re.search(r"url\((?!#)|@import|https?:", text)
    return reader
