"""One HTML page from parts: no file, script or address outside it; text is escaped unless it is Html."""

from __future__ import annotations

import base64
import html
from collections.abc import Collection, Iterable, Sequence

from vitkit.figures.palette import THEME

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
.facts div{padding:12px 16px 13px;box-shadow:0 0 0 1px var(--line)}
.facts dt{color:var(--muted);font-size:13px}
.facts dd{margin:1px 0 0;font-size:17px;font-weight:550;line-height:1.35;overflow-wrap:anywhere}
.facts .lead dd{font-size:24px;letter-spacing:-.01em;line-height:1.25}
small{display:block;color:var(--muted);font-size:13px;font-weight:400}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{padding:8px 14px;text-align:left;vertical-align:top;white-space:nowrap}
th{color:var(--muted);font-weight:500;font-size:13px}
tbody tr>*{border-top:1px solid var(--line)}
tbody th{color:var(--ink);font-weight:500;font-size:14px}
td small{min-width:11em;white-space:normal}
th:first-child{position:sticky;left:0;z-index:1;background:var(--paper)}
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
.curves svg{display:block;width:100%;height:auto;max-width:640px}
.curves text{font-family:inherit!important}
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
pre{margin:0;padding:12px 16px;overflow-x:auto;background:var(--raised);border-radius:10px;
  font:13px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
details>pre{border-radius:0;border-top:1px solid var(--line)}
figure{margin:0}
img{display:block;max-width:100%;height:auto;background:#fff;border-radius:6px}
figcaption{margin-top:6px;color:var(--muted);font-size:13px;line-height:1.4;overflow-wrap:anywhere}
.sheet,.wide{margin:14px 0 0}
.sheet img{border:1px solid var(--line);border-radius:10px}
.wide .scroll{width:fit-content;max-width:100%}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:0 24px;align-items:start}
.chart img{width:720px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(180px,1fr));gap:16px;margin:12px 0 0}
.tiles img{width:100%}
article{margin:24px 0 0;padding:4px 0 0;border-top:1px solid var(--line)}
article details{margin:16px 0 0}
details>figure{padding:0 16px 16px}
details>.note,details>p{padding:0 16px}
.guesses{margin:0;padding:0;list-style:none;font-size:14px;line-height:1.4}
.guesses li{display:flex;justify-content:space-between;gap:12px;margin:0 0 3px;padding:3px 10px;border-radius:5px;
  background:linear-gradient(var(--bar),var(--bar)) no-repeat var(--raised);background-size:var(--share) 100%;
  overflow-wrap:anywhere}
.guesses b{white-space:nowrap}
@media(min-width:601px){.told figcaption{display:none}}
@media(max-width:600px){
  .wide img{max-width:960px}
  .wide{container-type:inline-size}
  .wide::before{content:"scroll sideways →";display:block;overflow:hidden;color:var(--muted);font-size:13px;
    max-height:clamp(0px,(var(--width) - 100cqi)*99,2em)} /* no height where the picture fits */
  .tiles{grid-template-columns:repeat(2,1fr)}
  .guesses{grid-column:1/-1}
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
@media print{main{max-width:none}.scroll{overflow:visible}}
"""


class Html(str):
    """Text that is HTML already; any other text is escaped where it joins a page."""

    __slots__ = ()


def element(tag: str, *content: str, **attributes: str) -> Html:
    """Return one element; `class_` gives its class, other attributes go by their own names."""
    words = "".join(
        f' {name.rstrip("_")}="{html.escape(value)}"' for name, value in attributes.items() if value
    )
    return Html(f"<{tag}{words}>{join(content)}</{tag}>")


def join(content: Iterable[str]) -> Html:
    """Return parts one after the other, escaped where they are not Html."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in content))


def section(title: str, *content: str) -> Html:
    """A part of the page under its heading."""
    return element("section", element("h2", title), *content)


def fold(title: str, *content: str, is_open: bool = False) -> Html:
    """What is shown when asked for, or hidden when it is open."""
    return element("details", element("summary", title), *content, open="open" if is_open else "")


def figure(png: bytes, alt: str, caption: str = "", *, kind: str = "") -> Html:
    """A picture, which is part of the page itself, above its caption.

    kind: sheet for one that has a frame, told where its caption is also written on it, which a narrow page makes small;
    chart for one that needs no more than its place; wide for one that a narrow page scrolls rather than shrinks, and
    says so.
    """
    width, height = (int.from_bytes(png[start : start + 4]) for start in (16, 20))  # of PNG's first chunk
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    image = Html(f'<img src="{source}" width="{width}" height="{height}" alt="{html.escape(alt)}">')
    words = [element("figcaption", caption)] if caption else []
    style = ""
    if "wide" in kind:
        image = element("div", image, class_="scroll", tabindex="0")
        style = f"--width:{width}px"
    return element("figure", image, *words, class_=kind, style=style)


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
    right: Collection[str] = (),
    best: int | None = None,
    wrap: bool = False,
) -> Html:
    """A table that scrolls by itself where it is too wide; the first cell of a row names it.

    right: columns to align right. best: the row to stress. wrap: break long cells.
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
            class_="best" if place == best else "",
        )
        for place, row in enumerate(rows)
    )
    whole = element("table", element("thead", head), element("tbody", *body), class_="wrap" if wrap else "")
    return element("div", whole, class_="scroll", tabindex="0")


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
