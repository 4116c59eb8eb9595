"""The page at a real server with a model: its answers, its attention, its reasons, its keys."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.inspection import tiny_models
from tests.reports.browser import Browser, browse
from tests.serving.person import DRIVEN, WIDTHS, Page
from vitkit.models.configs import Preprocessing

pytestmark = [*DRIVEN, pytest.mark.slow]
NAMES = ["<b>one</b>", "two, the second", "three", "four", "five"]
KEY = "0123456789abcdef"


@contextmanager
def served(model: Path, *options: str) -> Iterator[str]:
    """The address of `vit serve` on a free port."""
    command = [sys.executable, "-m", "vitkit", "serve", str(model), "--port", "0", "--latency", "5s"]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout
    try:
        printed = []
        for line in process.stdout:
            printed.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0] + "/"
                break
        else:
            pytest.fail("".join(printed))
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(30)


def make_model(family: str, folder: Path) -> Path:
    config = tiny_models.FAMILIES[family]
    vitkit.save(tiny_models.make(config), folder, class_names=NAMES, preprocessing=Preprocessing(config.size))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("token", tmp_path_factory.mktemp("models") / "token")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browse(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0).integers
    made = [folder / "<i>one.png", folder / "two.webp", folder / "three.jpg"]
    for place, path in enumerate(made):
        Image.fromarray(draw(0, 256, (60, 90 + 9 * place, 3), np.uint8)).save(path)
    return made


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    with served(model) as found:
        yield found


@pytest.mark.parametrize("width", WIDTHS)
def test_it_shows_what_the_model_predicts(
    browser: Browser, url: str, model: Path, photos: list[Path], width: str, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(b"\x89PNG but no more")
    page = Page(browser, url, width)
    page.choose(*photos, damaged)
    page.wait_for_answers(4)
    predictor = vitkit.load(model)
    for place, photo in enumerate(photos, 1):
        page.click(f"#strip li:nth-child({place}) button")
        assert page.text("#name") == photo.name
        names = page.get("[...document.querySelectorAll('#classes .name')].map(node => node.textContent)")
        shares = page.get(
            "[...document.querySelectorAll('#classes .bar')].map(node => parseFloat(node.style.width))"
        )
        [expected] = predictor.predict(photo, top=5)
        assert names == [guess.name for guess in expected]
        np.testing.assert_allclose(shares, [100 * guess.probability for guess in expected], atol=0.01)
    # A refused picture is an answer of 400, which Chromium notes; nothing else is.
    assert all("400" in words for words in browser.complaints) and len(browser.complaints) <= 1
    page.click("#strip li:nth-child(4) button")
    assert page.text("#failure p").endswith(".") and "damaged.png" in page.text("#failure h2")
    assert page.get("document.documentElement.scrollWidth") == WIDTHS[width]
    assert all(asked.startswith((url, "blob:")) for asked in browser.requests)


@pytest.mark.parametrize("width", WIDTHS)
def test_attention_is_drawn_over_the_picture(
    browser: Browser, url: str, photos: list[Path], width: str
) -> None:
    page = Page(browser, url, width)
    page.choose(photos[0])
    page.wait_for_answers(1)
    page.click("[data-view=attention]")
    shown = []
    for layer, head in ((0, 0), (1, 0), (3, 2)):
        page.slide("layer", layer)
        page.slide("head", head)
        page.wait(
            "document.querySelector('.stage').dataset.busy === '' && document.querySelector('#map').complete"
        )
        assert page.get("document.querySelector('#map').naturalWidth") > 0
        shown.append(page.get("document.querySelector('#map').src"))
    assert len(set(shown)) == 3 and page.is_quiet()
    assert "3 of 3" in page.text("#sliders") and "2 of 2" in page.text("#sliders")


def test_a_model_that_attends_to_nothing_says_so(
    browser: Browser, photos: list[Path], tmp_path: Path
) -> None:
    with served(make_model("bit", tmp_path / "bit")) as url:
        page = Page(browser, url)
        page.choose(photos[0])
        page.wait_for_answers(1)
        assert page.get("document.querySelector('[data-view=attention]').disabled")
        assert "attention" in page.text("#reason") and page.is_quiet()


def test_a_key_opens_the_server_and_its_similar_pictures(
    browser: Browser, model: Path, photos: list[Path], tmp_path: Path
) -> None:
    """Small versions of them need the key too."""
    keys, features = tmp_path / "keys", tmp_path / "features.parquet"
    keys.write_text(f"{KEY}\n")
    folder = tmp_path / "photos"
    folder.mkdir()
    for photo in photos:
        shutil.copy(photo, folder)
    vitkit.embed(model, folder, out=features, progress=False)
    with served(model, "--keys", str(keys), "--features", str(features)) as url:
        page = Page(browser, url)
        page.wait("document.querySelector('#key-dialog').open")
        page.choose(photos[0])
        for key in ("wrong", KEY):
            page.wait("document.querySelector('#key-dialog').open")
            page.get(f"document.querySelector('#key').value = '{key}'")
            page.click("#key-dialog .primary")
        page.wait_for_answers(1)
        assert not page.get("document.querySelector('#result').hidden")
        page.wait("document.querySelectorAll('#similar li').length === 3")
        page.wait("[...document.querySelectorAll('#similar img')].every(image => image.naturalWidth > 0)")
        nearest = page.text("#similar li")
        assert "<i>one.png" in nearest and "similarity 1.00" in nearest  # itself
        assert "From 3 pictures" in page.text("#similar-words")
        page.get("sessionStorage.clear()")
