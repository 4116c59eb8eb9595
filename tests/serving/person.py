"""The page of the server as a person uses it: choose, drop, click, slide, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.reports.browser import PROGRAM, Browser

WIDTHS = {"phone": 390, "desktop": 1280}
DRIVEN = [
    pytest.mark.browser,
    pytest.mark.skipif(not PROGRAM, reason="there is no Chromium here"),
]
# The colour of the attention map that is shown.
MAP = """(() => {
  const map = document.querySelector("#map"), canvas = document.createElement("canvas");
  if (map.hidden || !map.complete || !map.naturalWidth) return "";
  const drawing = canvas.getContext("2d");
  drawing.drawImage(map, 0, 0);
  return [...drawing.getImageData(1, 1, 1, 1).data].slice(0, 3).join(",");
})()"""


class Page:
    """The page as a person uses it."""

    def __init__(self, browser: Browser, url: str, width: str = "desktop") -> None:
        self.browser = browser
        browser.open(url, WIDTHS[width], is_phone=width == "phone")
        self.wait("document.body.dataset.state !== 'starting'")

    def get(self, expression: str) -> Any:
        return self.browser.evaluate(expression)

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        code = f"""new Promise((done, fail) => {{
            const end = performance.now() + 15000;
            const look = () => ({condition}) ? done(true)
                : performance.now() > end ? done(false) : setTimeout(look, 20);
            look();
        }})"""
        assert self.get(code), f"{condition} never came; the page says {self.words()}"

    def choose(self, *paths: Path) -> None:
        """Choose files, as the system's dialog does."""
        node = self.browser.ask("Runtime.evaluate", expression="document.querySelector('#files')")
        names = [str(path) for path in paths]
        self.browser.ask("DOM.setFileInputFiles", files=names, objectId=node["result"]["objectId"])

    def drop(self, *paths: Path) -> None:
        """Drag files over the page and let go."""
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.browser.ask("Input.dispatchDragEvent", type=kind, x=200, y=200, data=data)

    def slide(self, name: str, value: int) -> None:
        self.get(
            f"""(() => {{
            const slider = document.querySelector('#{name}');
            slider.value = {value};
            slider.dispatchEvent(new Event('input', {{bubbles: true}}));
        }})()"""
        )

    def click(self, selector: str) -> None:
        self.get(f"document.querySelector({selector!r}).click()")

    def key(self, name: str, code: int, text: str = "") -> None:
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            words = {"text": text} if text and kind == "keyDown" else {}
            self.browser.ask(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **words
            )

    def text(self, selector: str) -> str:
        return str(self.get(f"document.querySelector({selector!r}).innerText"))

    def words(self) -> str:
        return str(self.get("document.body.innerText"))

    def wait_for_answers(self, number: int) -> None:
        self.wait(
            f"document.querySelectorAll('#strip [data-status=done], #strip [data-status=failed]').length === {number}"
        )

    def is_quiet(self) -> bool:
        return self.browser.complaints == []
