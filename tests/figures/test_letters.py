"""Names on pictures: in another font where the own one lacks letters, as numbers where all do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.font_manager import fontManager
from PIL import Image, ImageDraw, ImageFont

from vitkit.data.report import write_sheet
from vitkit.data.sources.source import Files
from vitkit.evaluation.measured import Predictions
from vitkit.figures import mistakes, sheets
from vitkit.figures.sheets import find_font, name_class

PICTURES = ("confusion.png", "mistakes.png", "sheet.png")
ARC = "\N{ARC}"
"A letter that DejaVu Sans Mono has and DejaVu Sans lacks."
MONO = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSansMono.ttf")


@pytest.fixture(autouse=True)
def fonts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only fonts that come with matplotlib are installed, Last Resort among them."""
    own = [font for font in fontManager.ttflist if font.fname.startswith(matplotlib.get_data_path())]
    monkeypatch.setattr(fontManager, "ttflist", own)
    find_font.cache_clear()
    yield
    find_font.cache_clear()


def draw(folder: Path, *names: str) -> dict[str, bytes]:
    """Return the three pictures of four images of the classes 1 and 2, two of them wrong."""
    folder.mkdir()
    paths = [str(folder / f"{number}.png") for number in range(4)]
    for number, path in enumerate(paths):
        Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(path)
    source = Files("set", "all", names, np.array([1, 1, 2, 2]), paths)
    logits = np.array([[0, 5, 0], [0, 0, 9], [5, 0, 0], [0, 0, 5]], np.float32)
    Predictions(logits, source).draw(folder)
    write_sheet(source, folder / "sheet.png")
    return {name: (folder / name).read_bytes() for name in PICTURES}


def test_names_that_no_font_has_become_numbers(tmp_path: Path) -> None:
    assert draw(tmp_path / "a", "猫", "犬 dog", "bird") == draw(tmp_path / "b", "class 0", "dog", "bird")


def test_answers_that_are_no_classes_have_numbers_of_their_own(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    source = Files("set", "all", ("犬", "b"), np.array([0]), [str(tmp_path / "0.png")])
    measured = Predictions(
        np.array([[0, 1, 0]], np.float32), source, answer_names=("a", "猫", "c"), members=np.eye(2, 3, 2) > 0
    )
    assert measured._words(0)[:2] == ("class 0", "answer 1")


@pytest.mark.parametrize(
    ("picture", "place", "ink", "size"),
    [
        ("sheet.png", (sheets.MARGIN, sheets.MARGIN + sheets.HEAD + sheets.TILE // 2 - 17), sheets._INK, 14),
        (
            "mistakes.png",
            (mistakes.MARGIN, mistakes.MARGIN + mistakes.HEAD + mistakes.TILE + 8),
            mistakes._GOOD,
            13,
        ),
    ],
)
def test_sheets_use_a_font_that_has_the_letters(
    tmp_path: Path, picture: str, place: tuple[int, int], ink: str, size: int
) -> None:
    draw(tmp_path / "a", "cat", f"{ARC} one", "bird")
    expected = Image.new("RGB", (150, 18), "white")
    mono, height = ImageFont.truetype(str(MONO), size), sheets.load_font(size).getmetrics()[0]
    ImageDraw.Draw(expected).text((0, height), f"{ARC} one", ink, mono, anchor="ls")
    with Image.open(tmp_path / "a" / picture) as image:
        found = image.crop((*place, place[0] + expected.width, place[1] + expected.height))
    assert found.tobytes() == expected.tobytes()


def test_the_confusion_matrix_uses_a_font_that_has_the_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def picture() -> bytes:
        mistakes.confusion_picture(np.eye(2, dtype=int), [f"{ARC} one", "bird"], tmp_path / "c.png")
        return (tmp_path / "c.png").read_bytes()

    found = picture()
    monkeypatch.setattr(mistakes, "find_font", lambda text: None)
    boxes = picture()
    with matplotlib.rc_context({"font.family": ["DejaVu Sans", "DejaVu Sans Mono"]}):
        assert found == picture() != boxes


def test_a_font_that_cannot_be_opened_has_no_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_class(ARC, 3) == ARC
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"no font")
    entry = find_font(ARC)
    assert entry and Path(entry.fname) == MONO
    monkeypatch.setattr(fontManager, "ttflist", [replace(entry, fname=str(broken))])
    find_font.cache_clear()
    assert name_class(ARC, 3) == "class 3"
    assert not sheets._shows(str(broken), {ARC})  # as bitmap fonts, whose letters can be listed


def test_letters_that_a_font_leaves_blank_are_not_shown() -> None:
    assert sheets._shows(str(MONO), {ARC}) and not sheets._shows(str(MONO), {ARC, "\N{NO-BREAK SPACE}"})


def test_own_letters_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fontManager, "ttflist", None)
    for name in ("cat", "Ωμέγα", "two\nlines", "", "cafe\N{COMBINING ACUTE ACCENT}"):
        assert find_font(name) is None and name_class(name, 3) == name
