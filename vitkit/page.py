"""One HTML page from parts: no file, script or address outside it; text is escaped unless it is Html."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Sequence

from vitkit.figures.palette import THEME
from vitkit.markup import Html, element, embedded, join

__all__ = [
    *(
        "NOTHING",
        "Html",
        "element",
        "facts",
        "figure",
        "fold",
        "join",
        "page",
        "scrolling",
        "section",
        "table",
    ),
]
NOTHING = "–"
"What stands where a value isn't known."

_STYLE = """
*,*::before,*::after{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
  font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
  font-variant-numeric:tabular-nums}
main{max-width:1120px;margin:0 auto;padding:40px 24px 56px}
h1{margin:0;font-size:28px;line-height:1.2;font-weight:650;letter-spacing:-.015em;overflow-wrap:anywhere}
h2{margin:48px 0 14px;font-size:18px;line-height:1.3;font-weight:650;letter-spacing:-.005em}
h3{margin:20px 0 8px;font-size:15px;font-weight:600;overflow-wrap:anywhere}
p{margin:0 0 12px;max-width:72ch;overflow-wrap:anywhere}
header p,.note,footer{color:var(--muted);font-size:14px}
header p{margin:8px 0 0}
.note{margin:10px 0 0}
footer{margin-top:56px;padding-top:16px;border-top:1px solid var(--line);font-size:13px}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(180px,1fr));gap:1px;margin:28px 0 0;
  border:1px solid var(--line);border-radius:10px;overflow:hidden}
h2+.facts{margin-top:0}
.facts div{padding:12px 16px 13px;box-shadow:0 0 0 1px var(--line)}
.facts dt{color:var(--muted);font-size:13px}
.facts dd{margin:1px 0 0;font-size:17px;font-weight:550;line-height:1.35;overflow-wrap:anywhere}
.facts .lead dd{font-size:24px;letter-spacing:-.01em;line-height:1.25}
small{display:block;color:var(--muted);font-size:13px;font-weight:400}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:10px;
  background:linear-gradient(to right,var(--paper) 40%,transparent) left/40px 100% no-repeat local,
    linear-gradient(to left,var(--paper) 40%,transparent) right/40px 100% no-repeat local,
    linear-gradient(to right,var(--shade),transparent) left/18px 100% no-repeat scroll,
    linear-gradient(to left,var(--shade),transparent) right/18px 100% no-repeat scroll} /* shadows where more is hidden */
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{padding:8px 14px;text-align:left;vertical-align:top;white-space:nowrap}
th{color:var(--muted);font-weight:500;font-size:13px}
tbody tr>*{border-top:1px solid var(--line)}
tbody th{color:var(--ink);font-weight:500;font-size:14px}
td small{min-width:11em;white-space:normal}
th:first-child{position:sticky;left:0;z-index:1;background:var(--paper)}
tr.head>*{border-bottom:2px solid var(--line)}
thead th{color:var(--ink);font-weight:550}
.right{text-align:right}
.best>*{font-weight:650}
.best>:first-child::after{content:"★";position:absolute;margin-left:2px;color:var(--muted);font-size:10px}
.wrap td{white-space:normal;overflow-wrap:anywhere;min-width:9em}
.wrap th{overflow-wrap:anywhere}
.key{display:inline-block;vertical-align:middle;margin:-2px 7px 0 0}
.legend{display:flex;flex-wrap:wrap;gap:4px 22px;margin:0 0 8px;padding:0;list-style:none;font-size:14px}
.legend li{overflow-wrap:anywhere}
.legend.quiet{color:var(--muted);font-size:13px}
.curves{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:20px 28px;margin:16px 0 0}
.curves figure{margin:0}
.curves svg{width:100%;max-width:640px}
.status{display:inline-block;font-weight:550}
.status::before{content:"";display:inline-block;width:8px;height:8px;margin-right:7px;border-radius:50%;
  background:currentColor;vertical-align:1px}
.good{color:var(--good)}.busy{color:var(--busy)}.weak{color:var(--weak)}.bad{color:var(--bad)}
.alert{margin:20px 0 0;padding:10px 16px;border-left:3px solid var(--bad);background:var(--raised);max-width:none}
details{margin:10px 0;border:1px solid var(--line);border-radius:10px;overflow:hidden}
summary{padding:10px 16px;cursor:pointer;font-weight:550;overflow-wrap:anywhere}
summary:hover{background:var(--raised)}
summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--busy);outline-offset:-2px}
details>.scroll{border-width:1px 0 0;border-radius:0}
pre{margin:0;padding:12px 16px;white-space:pre-wrap;overflow-wrap:anywhere;background:var(--raised);border-radius:10px;
  font:13px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
details>pre{border-radius:0;border-top:1px solid var(--line)}
figure{margin:0}
figure svg,img{display:block;max-width:100%;height:auto}
figure text{font-family:inherit!important}
img{border-radius:6px}
figcaption{margin-top:6px;color:var(--muted);font-size:13px;line-height:1.4;overflow-wrap:anywhere}
.sheet,.wide{margin:14px 0 0}
.sheet img{border:1px solid var(--line);border-radius:10px;background:#fff}
.wide .scroll{width:fit-content;max-width:100%;border:0;border-radius:0}
.wide img{background:#fff}
.square svg{max-width:min(100%,640px)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:0 24px;align-items:start}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(180px,1fr));gap:16px;margin:12px 0 0}
.tiles img{width:100%}
.mistakes{grid-template-columns:repeat(auto-fill,minmax(140px,1fr));align-items:end}
.mistakes img{max-height:176px;object-fit:contain;object-position:left bottom;width:auto}
article{margin:24px 0 0;padding:4px 0 0;border-top:1px solid var(--line)}
article details{margin:16px 0 0}
details>:is(figure,.tiles){padding:0 16px 16px}
details>ul{margin:0;padding:0 16px 12px 36px;max-width:80ch}
details>.note,details>p{padding:0 16px}
.guesses{margin:0;padding:0;list-style:none;font-size:14px;line-height:1.4}
.guesses li{display:flex;justify-content:space-between;gap:12px;margin:0 0 3px;padding:3px 10px;border-radius:5px;
  background:linear-gradient(var(--bar),var(--bar)) no-repeat var(--raised);background-size:var(--share) 100%;
  overflow-wrap:anywhere}
.guesses b{white-space:nowrap}
@media(min-width:601px){th wbr{display:none}}
@media(max-width:600px){
  .wide :is(img,svg){max-width:960px}
  .wide{container-type:inline-size}
  .wide::before{content:"scroll sideways →";display:block;overflow:hidden;color:var(--muted);font-size:13px;
    max-height:clamp(0px,(var(--width) - 100cqi)*99,2em)} /* no height where the picture fits */
  .tiles{grid-template-columns:repeat(2,1fr)}
  main{padding:24px 16px 40px}
  h1{font-size:23px}
  h2{margin-top:36px}
  .facts{grid-template-columns:repeat(2,1fr)}
  .facts div{padding:10px 12px}
  .facts dd{font-size:16px}
  .facts .lead{grid-column:1/-1}
  th,td{padding:7px 11px}
  tbody th:first-child{white-space:normal;min-width:8.5em;max-width:9.5em;overflow-wrap:break-word}
}
@media print{main{max-width:none}.scroll{overflow:visible;background:none}}
"""


def section(title: str, *content: str) -> Html:
    """A part of the page under its heading."""
    return element("section", element("h2", title), *content)


def fold(title: str, *content: str, is_open: bool = False) -> Html:
    """What is shown when asked for, or hidden when it is open."""
    return element("details", element("summary", title), *content, open="open" if is_open else "")


def breakable(text: str) -> Html:
    """Text such as a path or the name of a setting, which a narrow page may break after its separators."""
    first, *rest = re.split(r"(?<=[/@._|,-])(?=.)", text)
    return join([first, *(part for piece in rest for part in (Html("<wbr>"), piece))])


def figure(picture: bytes | Html, alt: str, caption: str = "", *, kind: str = "") -> Html:
    """A picture, which is part of the page itself, above its caption; PNG, WebP, or SVG with its size.

    kind: sheet for one that has a frame; wide for one that a narrow page scrolls rather than shrinks, and says so;
    square for one that a wide page shows smaller than it is.
    """
    shown = picture if isinstance(picture, Html) else embedded(picture, alt)
    size = re.search(r' width="(\d+)"', shown)
    assert size, shown[:200]
    words = [element("figcaption", caption)] if caption else []
    style = ""
    if "wide" in kind:
        shown = scrolling(shown, label=alt)
        style = f"--width:{size[1]}px"
    return element("figure", shown, *words, class_=kind, style=style)


def scrolling(*content: str, label: str) -> Html:
    """What scrolls sideways by itself where it is too wide; the keyboard reaches it, and a screen reader names it."""
    return element("div", *content, class_="scroll", tabindex="0", role="region", aria_label=label)


def facts(entries: Iterable[tuple[str, str]], *, num_leads: int = 0) -> Html:
    """Names and values in a grid of tiles, the first ones larger."""
    tiles = (
        element("div", element("dt", name), element("dd", value), class_="lead" if place < num_leads else "")
        for place, (name, value) in enumerate(entries)
    )
    return element("dl", *tiles, class_="facts")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    label: str,
    right: Collection[str] = (),
    best: int | None = None,
    wrap: bool = False,
    is_headed: bool = False,
) -> Html:
    """A table that scrolls by itself where it is too wide; the first cell of a row names it.

    label: what it is of, for who can't see the heading above. right: columns to align right. best: the row to stress. wrap: break long cells.
    is_headed: whether the first row stands above the others, as a result above what led to it.
    """
    sides = ["right" if column in right else "" for column in columns]
    head = element(
        "tr",
        *(element("th", name, scope="col", class_=side) for name, side in zip(columns, sides, strict=True)),
    )
    body = (
        element(
            "tr",
            element("th", row[0], scope="row", class_=sides[0]),
            *(element("td", cell, class_=side) for cell, side in zip(row[1:], sides[1:], strict=True)),
            class_="best" if place == best else "head" if is_headed and not place else "",
        )
        for place, row in enumerate(rows)
    )
    whole = element("table", element("thead", head), element("tbody", *body), class_="wrap" if wrap else "")
    return scrolling(whole, label=label)


def page(title: str, *parts: str, about: str = "", foot: str = "") -> str:
    """Return the whole page."""
    light, dark = (
        "".join(f"--{name}:{shades[shade]};" for name, shades in THEME.items()) for shade in (0, 1)
    )
    style = f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{_STYLE}"
    header = element("header", element("h1", title), *([element("p", about)] if about else []))
    footer = [element("footer", foot)] if foot else []
    # The policy forbids what the page does not need: it loads nothing and runs nothing.
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>{style}</style>
</head>
<body>
{element("main", header, *parts, *footer)}
</body>
</html>
"""
