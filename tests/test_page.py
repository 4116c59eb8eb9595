"""A page from parts: text escaped, nothing outside it."""

from __future__ import annotations

import base64
import io

from PIL import Image

from vitkit.page import Html, breakable, element, facts, figure, fold, join, page, section, table

EVIL = "<script>alert('\"&')</script>"
SAFE = "&lt;script&gt;alert(&#x27;&quot;&amp;&#x27;)&lt;/script&gt;"


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2)).save(buffer, "PNG")
    return buffer.getvalue()


PNG = png()


def test_text_is_escaped_once_everywhere() -> None:
    parts = [
        element("p", EVIL, class_=EVIL),
        section(EVIL, EVIL),
        fold(EVIL, EVIL),
        facts([(EVIL, EVIL)]),
        table([EVIL], [[EVIL]], label=EVIL),
        figure(PNG, EVIL, EVIL, kind="wide"),
        element("p", breakable(EVIL)),
    ]
    whole = page(EVIL, *parts, EVIL, about=EVIL, foot=EVIL)
    assert "<script" not in whole
    assert whole.replace("<wbr>", "").count(SAFE) == 20
    assert "&amp;lt;" not in whole


def test_a_picture_is_part_of_the_page() -> None:
    shown = figure(PNG, "a cat", "A cat.", kind="sheet")
    content = base64.b64encode(PNG).decode()
    assert shown == (
        f'<figure class="sheet"><img src="data:image/png;base64,{content}" width="3" height="2" alt="a cat">'
        "<figcaption>A cat.</figcaption></figure>"
    )


def test_html_stays() -> None:
    assert join(["a<", element("b", "c&d")]) == "a&lt;<b>c&amp;d</b>"
    assert isinstance(join([]), Html)


def test_the_best_row_and_sides_are_marked() -> None:
    shown = table(["a", "b"], [["1", "2"], ["3", "4"]], label="a", right=["b"], best=1)
    assert '<tr><th scope="row">1</th><td class="right">2</td></tr>' in shown
    assert '<tr class="best"><th scope="row">3</th>' in shown


def test_long_names_may_break_after_their_separators() -> None:
    assert breakable("optimizer.learning_rate") == "optimizer.<wbr>learning_<wbr>rate"
    assert breakable("Ti/16@a&b") == "Ti/<wbr>16@<wbr>a&amp;b"
    assert breakable("") == ""


def test_what_scrolls_is_reached_by_the_keyboard_and_has_a_name() -> None:
    start = '<div class="scroll" tabindex="0" role="region" aria-label="Cost">'
    assert table(["a"], [["1"]], label="Cost").startswith(start)
    assert start in figure(PNG, "Cost", kind="wide")


def test_the_first_row_of_a_headed_table_stands_out() -> None:
    shown = table(["a"], [["1"], ["2"]], label="a", is_headed=True)
    assert '<tr class="head"><th scope="row">1</th></tr><tr><th scope="row">2</th></tr>' in shown


def test_a_drawing_is_part_of_the_page_as_it_is() -> None:
    drawing = Html('<svg viewBox="0 0 30 20" width="30" height="20"></svg>')
    assert figure(drawing, "a chart") == f"<figure>{drawing}</figure>"
    assert figure(drawing, "a chart", kind="wide").startswith('<figure class="wide" style="--width:30px">')


def test_a_wide_picture_tells_its_width() -> None:
    """By which a narrow page knows whether to say that it scrolls."""
    assert figure(PNG, "a", kind="wide").startswith(
        '<figure class="wide" style="--width:3px"><div class="scroll"'
    )
    assert "style" not in figure(PNG, "a", kind="sheet")
