"""A headless Chromium, spoken to in its DevTools protocol through two pipes: no driver, no package."""

from __future__ import annotations

import base64
import io
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 60.0


class Browser:
    """One page; `complaints` is what it wrote to its console as an error, or refused to load."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader, self.writer = reader, writer
        self.buffer, self.number = b"", 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method and return its result; events that come meanwhile are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def open(self, page: Path | str, width: int, height: int = 800, *, is_phone: bool = False) -> None:
        """Show a file or an address in a window of this size, and wait until all of it is loaded."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )
        self.events.clear()
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is waited for."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write the whole page, as long as it is, as PNG."""
        shown = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shown["data"]))

    def pixels(self) -> np.ndarray:
        """Return the whole page, uint8 (height, width, 3)."""
        shown = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        with Image.open(io.BytesIO(base64.b64decode(shown["data"]))) as image:
            return np.asarray(image.convert("RGB"))

    def pixel(self, x: float, y: float) -> list[int]:
        """Return the colour at a place of the page."""
        return self.pixels()[round(y), round(x)].tolist()

    def prefer(self, shade: str) -> None:
        """Ask pages for light or dark colours, as a reader's system does; '' asks for none."""
        feature = {"name": "prefers-color-scheme", "value": shade}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    @property
    def complaints(self) -> list[str]:
        """Errors, warnings and failed loads since the page was opened."""
        found = []
        for event in self.events:
            name, details = event.get("method"), event.get("params", {})
            if name == "Runtime.exceptionThrown" or name == "Network.loadingFailed":
                found.append(json.dumps(details))
            elif name == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(details["args"]))
            elif name == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
                found.append(details["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for, without those inside it."""
        asked = (
            event["params"]["request"]["url"] for event in self.events if event.get("method") == _REQUEST
        )
        return [url for url in asked if not url.startswith("data:")]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.reader], [], [], max(0.0, end - time.monotonic()))
            content = os.read(self.reader, 1 << 20) if ready else b""
            if not content:
                raise TimeoutError("Chromium says nothing" if ready else "Chromium takes too long")
            self.buffer += content
        message, _, self.buffer = self.buffer.partition(b"\0")
        return dict(json.loads(message))


_REQUEST = "Network.requestWillBeSent"


@contextmanager
def browse(profile: Path, *options: str) -> Iterator[Browser]:
    """Start Chromium with a fresh profile, and end it."""
    assert PROGRAM
    to_browser, from_browser = os.pipe(), os.pipe()
    arguments = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    arguments += [
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        *options,
    ]
    # Chromium reads commands from descriptor 3 and answers on 4.
    redirected = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    process = subprocess.Popen(
        ["bash", "-c", redirected, "bash", *arguments],
        pass_fds=(to_browser[0], from_browser[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        yield Browser(from_browser[0], to_browser[1])
    finally:
        os.close(to_browser[1])  # Chromium ends when its commands do
        os.close(from_browser[0])
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
