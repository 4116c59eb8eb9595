"""A study's page in a real browser: no complaint, figures whole, nothing sticks out, names that could do harm are text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reports.browser import PROGRAM, browse
from tests.reports.test_browser import EVIL, STICKING_OUT, UNFOLD, WIDTHS
from tests.studies.finished import TEXT, write_study
from vitkit import show_study
from vitkit.studies.config import read_study

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not PROGRAM, reason="there is no Chromium here"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browse(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all figures, and names that could do harm."""
    folder = tmp_path_factory.mktemp("study")
    text = TEXT.replace("Two families", EVIL).replace("group: ViT,", f"group: '{EVIL}',")
    (folder / "mine.yaml").write_text(text.replace("figures: [compute", "figures: [data, shape, compute"))
    found = read_study(folder / "mine.yaml")
    write_study(found, folder / "runs", lambda run, exaflops: 0.2 * exaflops**-0.3 + 0.02)
    return Path(show_study(folder / "mine.yaml", paper=True, run=folder / "runs").html)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_whole_and_fits(browser: Any, page: Path, width: str) -> None:
    browser.open(page, WIDTHS[width], is_phone=width == "phone")
    browser.evaluate(UNFOLD)
    sizes = browser.evaluate("[...document.querySelectorAll('figure svg')].map(node => node.clientWidth)")
    assert len(sizes) == 6 and min(sizes) > 300
    assert browser.evaluate("innerWidth") == WIDTHS[width]
    assert browser.evaluate("document.documentElement.scrollWidth") == WIDTHS[width]
    assert browser.evaluate(STICKING_OUT) == []
    assert EVIL in browser.evaluate("document.body.innerText")
    assert browser.evaluate("document.querySelectorAll('section tbody tr').length") >= 48
    assert browser.evaluate("document.scripts.length") == 0
    assert browser.complaints == []
    assert browser.requests == [page.resolve().as_uri()]


def test_legends_and_axes_are_text_in_the_figures(browser: Any, page: Path) -> None:
    browser.open(page, WIDTHS["desktop"])
    words = browser.evaluate(
        "[...document.querySelectorAll('figure svg text')].map(node => node.textContent)"
    )
    assert {EVIL, "ResNet", "ViT, paper", "pre-training compute (FLOPs)"} <= set(words)
    places = browser.evaluate(
        """[...document.querySelectorAll("figure svg")].map(svg => {
        const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll("text")].filter(node => {
          const own = node.getBoundingClientRect();
          return own.left < box.left - 2 || own.right > box.right + 2;
        }).map(node => node.textContent);
        })"""
    )
    assert places == [[]] * 6


def test_figures_follow_the_readers_setting(browser: Any, page: Path) -> None:
    """Colours are the page's, so that none is fixed in a figure."""
    browser.open(page, WIDTHS["desktop"])
    fixed = browser.evaluate(
        """[...document.querySelectorAll("figure svg [style]")].map(node => node.getAttribute("style"))
        .filter(style => /(fill|stroke): ?#(?!0{6})/.test(style))"""
    )
    assert fixed == []
