"""The page of the server: pictures become bars, and what goes wrong is said in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.reports.browser import Browser, browse
from tests.serving.person import DRIVEN, MAP, WIDTHS, Page
from tests.serving.stand_in import StandIn, stand_in
from vitkit.figures.palette import THEME

STATIC = Path(__file__).parents[2] / "vitkit" / "serving" / "static"


class Attributes(HTMLParser):
    """All attributes of a page, and its scripts' and styles' texts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str | None]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += attrs


def test_a_strict_policy_suffices_it() -> None:
    """No style or script inside the page, nothing from elsewhere, no text made HTML."""
    page = Attributes()
    page.feed((STATIC / "page.html").read_text(encoding="utf-8"))
    assert not [name for name, _ in page.found if name.startswith("on") or name == "style"]
    assert "style" not in page.tags and page.tags.count("script") == len(list(STATIC.glob("*.js")))
    links = [value for name, value in page.found if name in ("src", "href") and value]
    assert not [link for link in links if re.match(r"//|(?!data:)\w+:", link)]
    script = "".join(path.read_text(encoding="utf-8") for path in STATIC.glob("*.js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?:", script)
    assert not re.search(r"url\(|@import|https?:", (STATIC / "page.css").read_text(encoding="utf-8"))


@pytest.mark.parametrize("shade", [0, 1], ids=["light", "dark"])
def test_its_colours_are_those_of_all_pages(shade: int) -> None:
    style = (STATIC / "page.css").read_text(encoding="utf-8")
    block = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[shade]
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", block))
    shared = colours.keys() & THEME.keys()
    assert {"paper", "ink", "muted", "line", "bad"} <= shared
    assert {name: colours[name] for name in shared} == {name: THEME[name][shade] for name in shared}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    camera = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
    with browse(tmp_path_factory.mktemp("profile"), *camera) as found:
        yield found


@pytest.fixture(scope="module")
def shared_server() -> Iterator[StandIn]:
    with stand_in() as found:
        yield found


@pytest.fixture
def server(shared_server: StandIn) -> StandIn:
    shared_server.reset()
    return shared_server


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0).integers
    made = [folder / "<i>one.jpg", folder / "two.png", folder / "three.webp"]
    for place, path in enumerate(made):
        Image.fromarray(draw(0, 256, (60 + 20 * place, 90, 3), np.uint8)).save(path)
    return made


@pytest.mark.parametrize("width", WIDTHS)
class TestPage:
    pytestmark = DRIVEN

    def test_several_pictures_become_bars(
        self, browser: Browser, server: StandIn, photos: list[Path], width: str
    ) -> None:
        page = Page(browser, server.url, width)
        assert "What is in your picture?" in page.words() and "Ti/16@pretrained" in page.words()
        assert "100 ms" in page.text("#facts")
        page.choose(*photos)
        page.wait_for_answers(3)
        assert sorted(server.asked).count("/predict?top=8") == 3
        # Names are text, whatever they hold.
        assert page.text("#name") == "<i>one.jpg"
        shown = page.get("[...document.querySelectorAll('#classes .name')].map(node => node.textContent)")
        assert len(shown) == 5 and set(shown) <= set(server.names)
        assert page.text("#classes .share") == "80%"
        bars = page.get(
            """[...document.querySelectorAll('#classes .track')].map(
            node => node.firstChild.clientWidth / node.clientWidth)"""
        )
        np.testing.assert_allclose(bars[:3], [0.8, 0.16, 0.032], atol=0.01)
        page.click("#more")
        assert page.get("document.querySelectorAll('#classes li').length") == 8
        assert "<b>tiger</b> cat" in page.words()
        page.click("#strip li:nth-child(3) button")
        assert page.text("#name") == "three.webp"
        assert page.get("document.querySelector('#photo').naturalHeight") == 100
        assert page.get("document.documentElement.scrollWidth") == WIDTHS[width]
        assert page.is_quiet()
        assert all(url.startswith((server.url, "blob:")) for url in browser.requests)

    def test_wrong_files_are_named(
        self, browser: Browser, server: StandIn, photos: list[Path], width: str, tmp_path: Path
    ) -> None:
        """What can't be a picture is not sent; what the server can't read is said in plain words."""
        notes, damaged, large = (tmp_path / name for name in ("notes.txt", "damaged.jpg", "large.png"))
        notes.write_text("hello")
        damaged.write_bytes(photos[0].read_bytes()[:200])
        large.write_bytes(b"\0" * 3_000_000)
        page = Page(browser, server.url, width)
        page.choose(notes, damaged, large, photos[1])
        page.wait_for_answers(4)
        assert [path for path in server.asked if "predict" in path] == ["/predict?top=8"] * 2
        told = {}
        for place in range(1, 5):
            page.click(f"#strip li:nth-child({place}) button")
            is_told = not page.get("document.querySelector('#failure').hidden")
            told[page.text("#name")] = page.text("#failure p") if is_told else ""
        assert told == {
            "notes.txt": "This file is not a picture.",
            "damaged.jpg": "This file is cut off or damaged.",
            "large.png": "This picture has 3 MB; the server takes up to 2 MB.",
            "two.png": "",
        }
        assert page.get("document.documentElement.scrollWidth") == WIDTHS[width]

    def test_a_busy_server_is_asked_again_when_it_said(
        self, browser: Browser, server: StandIn, photos: list[Path], width: str
    ) -> None:
        server.num_refusals = 2
        page = Page(browser, server.url, width)
        page.choose(photos[0])
        page.wait("document.querySelector('#notice').innerText.includes('The server is busy')")
        page.wait_for_answers(1)
        assert page.text("#classes .share") == "80%" and server.num_refusals == 0
        page.wait("document.querySelector('#notice').hidden")

    def test_a_slider_goes_over_layers_and_another_over_heads(
        self, browser: Browser, server: StandIn, photos: list[Path], width: str
    ) -> None:
        server.reset(attention={"layers": 12, "heads": 3}, attention_reason=None)
        page = Page(browser, server.url, width)
        page.choose(*photos)
        page.wait_for_answers(3)
        assert page.get("document.querySelector('#sliders').hidden")
        page.click("[data-view=attention]")
        page.wait(f"({MAP}) === '0,0,90'")
        assert page.get("document.querySelector('#photo').hidden")
        assert page.get("document.querySelector('#head').disabled")
        assert "mean of 3" in page.text("#sliders")
        page.slide("layer", 12)
        page.wait(f"({MAP}) === '120,0,90'")
        page.slide("head", 2)
        page.wait(f"({MAP}) === '120,20,90'")
        assert "12 of 12" in page.text("#sliders") and "2 of 3" in page.text("#sliders")
        # The next picture is looked at in the same way, and what was asked once is kept.
        page.click("#strip li:nth-child(2) button")
        page.wait(f"({MAP}) === '120,20,90'")
        asked = [path for path in server.asked if path.startswith("/attention")]
        assert [path.partition("?")[2] for path in asked] == [
            "layer=rollout&head=mean",
            "layer=11&head=mean",
            "layer=11&head=1",
            "layer=11&head=1",
        ]
        page.click("#strip li:nth-child(1) button")
        page.wait(f"({MAP}) === '120,20,90'")
        page.click("[data-view=picture]")
        assert not page.get("document.querySelector('#photo').hidden")
        assert len([path for path in server.asked if path.startswith("/attention")]) == 4
        assert page.get("document.documentElement.scrollWidth") == WIDTHS[width]
        assert page.is_quiet()

    def test_a_model_without_attention_says_why(
        self, browser: Browser, server: StandIn, photos: list[Path], width: str
    ) -> None:
        page = Page(browser, server.url, width)
        page.choose(photos[0])
        page.wait_for_answers(1)
        assert page.get("document.querySelector('[data-view=attention]').disabled")
        assert page.text("#reason") == "An exported model has no attention."
        page.key("a", 65, "a")
        assert page.get("document.querySelector('#map').hidden")
        assert not [path for path in server.asked if path.startswith("/attention")]

    def test_a_model_without_classes_shows_attention(
        self, browser: Browser, server: StandIn, photos: list[Path], width: str
    ) -> None:
        server.reset(num_classes=0, attention={"layers": 2, "heads": 2}, latency_ms=1500)
        page = Page(browser, server.url, width)
        assert "Classes" not in page.text("#facts") and "1.5 s" in page.text("#facts")
        page.choose(photos[0])
        page.wait_for_answers(1)
        assert "names no classes" in page.text("#result")
        page.click("[data-view=attention]")
        page.wait(f"({MAP}) === '0,0,90'")
        assert not [path for path in server.asked if path.startswith("/predict")] and page.is_quiet()

    def test_similar_pictures_stand_below(
        self, browser: Browser, server: StandIn, photos: list[Path], width: str
    ) -> None:
        server.reset(search={"images": 1234})
        page = Page(browser, server.url, width)
        page.choose(photos[0])
        page.wait("document.querySelectorAll('#similar img[src^=blob]').length === 8")
        page.wait("[...document.querySelectorAll('#similar img')].every(image => image.naturalWidth === 96)")
        assert "From 1,234 pictures" in page.text("#similar-words")
        assert "folder/<i>3.jpg" in page.text("#similar") and "similarity 0.83" in page.text("#similar")
        assert page.get("document.documentElement.scrollWidth") == WIDTHS[width]
        assert page.is_quiet()


class TestLook:
    pytestmark = DRIVEN

    @pytest.mark.parametrize("shade", ["light", "dark"])
    def test_it_is_light_or_dark_as_the_reader_s_system(
        self, browser: Browser, server: StandIn, shade: str
    ) -> None:
        browser.prefer(shade)
        try:
            Page(browser, server.url)
            paper, ink = THEME["paper"], THEME["ink"]
            place = ["light", "dark"].index(shade)
            shown = browser.evaluate(
                """[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]
                .map(colour => '#' + colour.match(/\\d+/g).map(part => (+part).toString(16).padStart(2, '0')).join(''))"""
            )
            assert shown == [paper[place], ink[place]]
        finally:
            browser.prefer("")


class TestWaysIn:
    pytestmark = DRIVEN

    def test_files_and_folders_are_dropped(
        self, browser: Browser, server: StandIn, photos: list[Path], tmp_path: Path
    ) -> None:
        """Of a folder, only the pictures are taken."""
        folder = tmp_path / "folder" / "inner"
        folder.mkdir(parents=True)
        (folder / "inside.png").write_bytes(photos[1].read_bytes())
        (folder / "notes.txt").write_text("hello")
        page = Page(browser, server.url)
        page.drop(photos[0], tmp_path / "folder")
        page.wait_for_answers(2)
        titles = page.get("[...document.querySelectorAll('#strip button')].map(node => node.title)")
        assert titles == ["<i>one.jpg", "inside.png"]
        assert page.get("document.querySelector('#drop').hidden") and page.is_quiet()

    def test_a_picture_is_pasted(self, browser: Browser, server: StandIn) -> None:
        page = Page(browser, server.url)
        page.get(
            """new Promise(done => document.createElement("canvas").toBlob(content => {
                const data = new DataTransfer();
                data.items.add(new File([content], "image.png", {type: "image/png"}));
                document.body.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true}));
                done();
            }))"""
        )
        page.wait_for_answers(1)
        assert page.text("#name") == "Pasted picture" and page.text("#classes .share") == "80%"
        page.get(
            """document.body.dispatchEvent(
                new ClipboardEvent("paste", {clipboardData: new DataTransfer(), bubbles: true}))"""
        )
        assert "no picture in the clipboard" in page.text("#notice")

    def test_a_photo_is_taken(self, browser: Browser, server: StandIn) -> None:
        page = Page(browser, server.url)
        page.click("#welcome .shoot")
        page.wait("document.querySelector('#camera video').videoWidth > 0")
        page.click("#camera .primary")
        page.wait_for_answers(1)
        assert page.text("#name") == "Photo" and not page.get("document.querySelector('#camera').open")
        assert page.get("document.querySelector('#camera video').srcObject") is None
        assert page.is_quiet()

    def test_the_keyboard_suffices(self, browser: Browser, server: StandIn, photos: list[Path]) -> None:
        server.reset(attention={"layers": 12, "heads": 3})
        page = Page(browser, server.url)
        page.choose(*photos)
        page.wait_for_answers(3)
        page.key("ArrowRight", 39)
        page.key("ArrowRight", 39)
        page.key("ArrowRight", 39)
        assert page.text("#name") == "three.webp"
        page.key("a", 65, "a")
        page.wait("!document.querySelector('#map').hidden")
        page.get("document.querySelector('#layer').focus()")
        page.key("ArrowRight", 39)  # moves the slider, not to another picture
        page.wait("document.querySelector('#layer-words').textContent === '1 of 12'")
        assert page.text("#name") == "three.webp"
        page.get("document.activeElement.blur()")
        for left in (2, 1, 0):
            page.key("Delete", 46)
            assert page.get("document.querySelectorAll('#strip li').length") == left
        assert not page.get("document.querySelector('#welcome').hidden") and page.is_quiet()

    def test_a_server_that_is_gone_is_said_to_be(
        self, browser: Browser, server: StandIn, photos: list[Path]
    ) -> None:
        page = Page(browser, server.url)
        browser.ask(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )
        page.choose(photos[0])
        page.wait_for_answers(1)
        assert "The server does not answer" in page.text("#failure p")
        browser.ask(
            "Network.emulateNetworkConditions",
            offline=False,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )
        page.click("#failure button")
        page.wait("!document.querySelector('#result').hidden")


class TestKeys:
    pytestmark = DRIVEN

    def test_the_key_is_asked_for_and_a_wrong_one_is_said_to_be(
        self, browser: Browser, server: StandIn, photos: list[Path]
    ) -> None:
        server.reset(key_required=True)
        server.key = "sesame"
        page = Page(browser, server.url)
        page.wait("document.querySelector('#key-dialog').open")
        page.get("document.querySelector('#key').value = 'wrong'")
        page.click("#key-dialog .primary")
        page.choose(photos[0])
        page.wait("document.querySelector('#key-dialog').open")
        assert "does not accept this key" in page.text("#key-dialog")
        page.get("document.querySelector('#key').value = 'sesame'")
        page.click("#key-dialog .primary")
        page.wait_for_answers(1)
        assert page.text("#classes .share") == "80%"
        # The tab remembers it.
        page = Page(browser, server.url)
        assert not page.get("document.querySelector('#key-dialog').open")
        page.get("sessionStorage.clear()")

    def test_without_a_key_pictures_wait_for_one(
        self, browser: Browser, server: StandIn, photos: list[Path]
    ) -> None:
        server.reset(key_required=True)
        server.key = "sesame"
        page = Page(browser, server.url)
        page.click("#key-dialog .cancel")
        page.choose(photos[0])
        page.wait("document.querySelector('#key-dialog').open")
        page.key("Escape", 27)
        page.wait_for_answers(1)
        assert "only with a key" in page.text("#failure p")
        page.click("#key-button")
        page.get("document.querySelector('#key').value = 'sesame'")
        page.click("#key-dialog .primary")
        page.click("#failure button")
        page.wait("!document.querySelector('#result').hidden")
        page.get("sessionStorage.clear()")

    def test_a_key_refused_at_once_is_asked_for_again(
        self, browser: Browser, server: StandIn, photos: list[Path]
    ) -> None:
        """Even before the browser has reported that the dialog was closed."""
        server.reset(key_required=True)
        server.key = "sesame"
        page = Page(browser, server.url)
        page.choose(*photos, photos[0])  # one more than is sent at once
        page.wait("document.querySelectorAll('#strip li').length === 4")
        page.get(
            """(() => {
            document.querySelector('#key').value = 'wrong';
            document.querySelector('#key-dialog .primary').click();
            askForKey();
        })()"""
        )
        page.get("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.get("document.querySelector('#key').value = 'sesame'")
        page.click("#key-dialog .primary")
        page.wait("document.querySelectorAll('#strip [data-status=done]').length === 4")
        page.get("sessionStorage.clear()")
