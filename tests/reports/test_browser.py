"""Pages opened in a real browser: no complaint, every picture there, no sideways scrolling, text as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.inspection import tiny_models
from tests.reports.browser import PROGRAM, browse
from tests.reports.run_folders import write_run
from vitkit.figures.mistakes import Tile, mistake_sheet
from vitkit.models.configs import Preprocessing
from vitkit.page import figure
from vitkit.reports.inspection import inspect_model
from vitkit.reports.runs import report

TESTS = Path(__file__).parents[1]
EVIL = "<script>alert(1)</script>"
LONG = "a_class_with_one_long_word_" * 8

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not PROGRAM, reason="there is no Chromium here"),
]

WIDTHS = {"phone": 390, "desktop": 1280}
# What sticks out of the window and of no box that scrolls by itself.
STICKING_OUT = """[...document.body.querySelectorAll("*")].filter(node => {
  if (node.closest(".scroll, pre, svg, details:not([open])")) return false;
  return node.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
}).map(node => node.outerHTML.slice(0, 120))"""
UNFOLD = "document.querySelectorAll('details').forEach(node => node.open = true)"
# Pictures inside of SVG, which document.images doesn't have.
DRAWN = """Promise.all([...document.querySelectorAll("svg image")].map(node => {
  const image = new Image();
  image.src = node.href.baseVal;
  return image.decode();
})).then(() => true)"""
PICTURES = """Promise.all([...document.images].map(image => image.decode().then(
  () => image.naturalWidth, error => 0)))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browse(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An inspection, one without attention, and a report, all with names that could do harm."""
    folder = tmp_path_factory.mktemp("pages")
    photo = folder / f"{EVIL.replace('/', '')}.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)).save(photo)
    made = {}
    run = write_run(folder / "run", name=EVIL)
    other = write_run(folder / "other", config={LONG: LONG, "model": EVIL, "data": "digits"})
    (run / "evaluation").mkdir()
    results = {
        "accuracy": 0.5,
        "confusion": {EVIL: {EVIL: 3, LONG: 4}, LONG: {LONG: 1}},
        "mistakes": [{"image": EVIL, "class": EVIL, "predicted": LONG, "probability": 0.9}] * 4,
    }
    (run / "evaluation" / "results.json").write_text(json.dumps(results))
    tiles = [Tile(np.full((9, 16, 3), 99, np.uint8), EVIL, LONG, 0.9)] * 4
    mistake_sheet(tiles, run / "evaluation" / "mistakes.png", 4, 9)
    for family, path in (("token", run / "model"), ("bit", folder / "bit")):
        config = tiny_models.FAMILIES[family]
        names = [EVIL, LONG, "c", "d", "e"]
        model = tiny_models.make(config)
        vitkit.save(model, path, class_names=names, preprocessing=Preprocessing(config.size))
        result = inspect_model(path, photo, out=folder / f"out-{family}", device="cpu", target=0)
        made[family] = Path(result.html)
    made["report"] = Path(report([run]).html)
    made["runs"] = Path(report([run, other, write_run(folder / "third")], out=folder / "runs").html)
    return made


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["token", "bit", "report", "runs"])
def test_a_page_is_whole_and_fits(browser: Any, pages: dict[str, Path], name: str, width: str) -> None:
    browser.open(pages[name], WIDTHS[width], is_phone=width == "phone")
    browser.evaluate(UNFOLD)
    sizes = browser.evaluate(PICTURES)
    assert sizes and min(sizes) > 0
    assert browser.evaluate(DRAWN) is True
    assert browser.evaluate("innerWidth") == WIDTHS[width]
    assert browser.evaluate("document.documentElement.scrollWidth") == WIDTHS[width]
    assert browser.evaluate(STICKING_OUT) == []
    assert browser.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 16
    assert EVIL in browser.evaluate("document.body.innerText")
    assert browser.evaluate("document.scripts.length") == 0
    assert browser.complaints == []
    assert browser.requests == [pages[name].resolve().as_uri()]


@pytest.mark.parametrize("name", ["token", "report"])
def test_letters_of_wide_pictures_stay_large_on_a_phone(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    """The picture scrolls in a box of its own, and its caption stays."""
    browser.open(pages[name], WIDTHS["phone"], is_phone=True)
    browser.evaluate(UNFOLD)
    figures = browser.evaluate(
        """[...document.querySelectorAll("figure.wide")]
        .map(node => [node.querySelector("svg"), node.querySelector(".scroll"), node.querySelector("figcaption")])
        .map(([image, box, caption]) => [
            +image.getAttribute("width"), image.clientWidth, box.clientWidth,
            caption ? caption.getBoundingClientRect().right : 0,
        ])"""
    )
    assert len(figures) == {"token": 4, "report": 2}[name]
    for natural, shown, box, caption in figures:
        assert box < WIDTHS["phone"] and caption < WIDTHS["phone"]
        assert shown >= 0.66 * min(natural, 1440)
    assert any(shown > box for _, shown, box, _ in figures)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["token", "report"])
def test_what_scrolls_says_so_on_a_phone(
    browser: Any, pages: dict[str, Path], name: str, width: str, tmp_path: Path
) -> None:
    """And what fits doesn't; there is a picture of each kind."""
    small = tmp_path / "small.png"
    Image.new("RGB", (90, 9)).save(small)
    fits = figure(small.read_bytes(), "small", kind="wide")
    page = tmp_path / "page.html"
    page.write_text(pages[name].read_text(encoding="utf-8").replace("</main>", f"{fits}</main>"), "utf-8")
    browser.open(page, WIDTHS[width], is_phone=width == "phone")
    browser.evaluate(UNFOLD)
    figures = browser.evaluate(
        """[...document.querySelectorAll("figure.wide")]
        .map(node => [node.querySelector(".scroll"), getComputedStyle(node, "::before")])
        .map(([box, sign]) => [
            box.scrollWidth > box.clientWidth, sign.content.includes("scroll sideways") && parseFloat(sign.height) > 9,
        ])"""
    )
    assert all(scrolls == says for scrolls, says in figures)
    assert {scrolls for scrolls, _ in figures} == ({True, False} if width == "phone" else {False})


def test_a_wide_table_shows_at_its_edge_that_it_scrolls(browser: Any, pages: dict[str, Path]) -> None:
    """The keyboard scrolls it: its box has a name and the focus, and the page itself stays."""
    browser.open(pages["runs"], WIDTHS["phone"], is_phone=True)
    boxes = browser.evaluate(
        """[...document.querySelectorAll(".scroll")].map(node => [
            node.tabIndex, node.getAttribute("role"), node.getAttribute("aria-label"),
        ])"""
    )
    assert all(box[:2] == [0, "region"] and box[2] for box in boxes)
    browser.evaluate("document.querySelector('.scroll').focus()")
    assert browser.evaluate("document.activeElement.getAttribute('aria-label')") == "What differs"
    before = browser.evaluate(EDGE)
    assert before["width"] > before["box"]
    edge = browser.pixel(before["right"], before["middle"])
    for _ in range(3):
        for kind in ("rawKeyDown", "keyUp"):
            browser.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key="ArrowRight",
                code="ArrowRight",
                windowsVirtualKeyCode=39,
            )
    moved = browser.evaluate(
        """new Promise(done => {
            const look = () => document.querySelector(".scroll").scrollLeft > 0 ? done(true) : setTimeout(look, 20);
            look();
        })"""
    )
    assert moved and browser.evaluate("scrollX") == 0
    browser.evaluate("document.querySelector('.scroll').scrollLeft = 9999")
    at_the_end = browser.pixel(before["right"], before["middle"])
    assert min(edge) < 240 and min(at_the_end) == 255  # the shadow is gone where nothing more is hidden


EDGE = """(() => {
  const box = document.querySelector(".scroll"), place = box.getBoundingClientRect();
  const row = box.querySelector("tbody tr").getBoundingClientRect();
  return {width: box.scrollWidth, box: box.clientWidth, right: place.right - 5, middle: scrollY + row.bottom - 5};
})()"""


@pytest.mark.parametrize("shade", ["light", "dark"])
@pytest.mark.parametrize("name", ["token", "report", "runs"])
def test_pages_follow_the_readers_colours(
    browser: Any, pages: dict[str, Path], name: str, shade: str
) -> None:
    """All text is legible on its background, that of charts too, and nothing is left white on a dark page."""
    browser.prefer(shade)
    try:
        browser.open(pages[name], WIDTHS["desktop"])
        browser.evaluate(UNFOLD)
        faint = browser.evaluate(FAINT)
        assert faint == []
        pixels = browser.pixels()
    finally:
        browser.prefer("")
    white = (pixels > 250).all(-1)
    assert (white.mean() < 0.02) if shade == "dark" else (white.mean() > 0.5)


# Text that stands out less than 3 : 1 from the page, with its colour.
FAINT = """(() => {
  const light = color => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3)
      .map(part => part / 255).map(part => part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll("main *")].filter(node => [...node.childNodes].some(child => child.nodeType == 3 && child.data.trim()))
    .filter(node => !["title", "style"].includes(node.tagName))
    .map(node => [node, getComputedStyle(node)[node.closest("svg") ? "fill" : "color"]])
    .map(([node, color]) => [node.textContent.slice(0, 40), color, light(color)])
    .filter(([, , ink]) => Math.max(ink, paper) / Math.min(ink, paper) < 3);
})()"""


def test_a_fault_is_seen(browser: Any, tmp_path: Path) -> None:
    """What the test above asserts can fail: a page with a script, a lost picture and a wide box is told."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<!DOCTYPE html><meta name=viewport content='width=device-width'><link rel=icon href='data:,'>"
        "<img src='lost.png'><div style='width:900px'>wide</div><script>console.error('no'); missing()</script>"
    )
    browser.open(page, 375, is_phone=True)
    assert browser.evaluate(PICTURES) == [0]
    assert browser.evaluate("document.documentElement.scrollWidth") > 375
    assert browser.evaluate(STICKING_OUT)
    assert browser.evaluate("document.scripts.length") == 1
    complaints = " ".join(browser.complaints)
    assert (
        "missing is not defined" in complaints and "ERR_FILE_NOT_FOUND" in complaints and '"no"' in complaints
    )
