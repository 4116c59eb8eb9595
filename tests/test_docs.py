"""The documentation: links that lead somewhere, a reference of all that is public, a site that builds."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType

import pytest

import vitkit
from tests.reports.browser import PROGRAM, browse
from vitkit.results import Result

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = re.findall(
    r"^::: (\S+)$",
    "\n".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "api").glob("*.md"))),
    re.MULTILINE,
)


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_pages_link_to_pages_alone() -> None:
    """The site holds docs/ and nothing else; other files are named, not linked."""
    for page in DOCS.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).resolve().is_relative_to(DOCS), f"{page.name} links to {link}"


def test_files_that_pages_name_are_there() -> None:
    """Capitals stand for a name of the reader's own."""
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"`((?:vitkit|tests|benchmarks|docs)/[a-z0-9_/.]+)`", text):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in [*DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md"), *DOCS.glob("results/**/*.md")]:
        assert page == DOCS / "README.md" or f"]({page.relative_to(DOCS)})" in index, page.name


def found(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_reference_has_every_public_name_once() -> None:
    assert sorted(name for name in REFERENCE if name.count(".") == 1) == sorted(
        f"vitkit.{name}" for name in vitkit.PUBLIC
    )
    assert len(REFERENCE) == len(set(REFERENCE))


@pytest.mark.parametrize("path", REFERENCE)
def test_what_the_reference_names_is_defined_there(path: str) -> None:
    assert path.count(".") == 1 or found(path).__module__ == path.rpartition(".")[0]


def returned(function: typing.Any) -> list[type]:
    """Classes of vitkit that a function's signature says it returns."""
    module = importlib.import_module(function.__module__)
    names = re.findall(r"\w+", function.__annotations__["return"])
    kinds = [getattr(module, name, None) for name in names]
    return [kind for kind in kinds if isinstance(kind, type) and kind.__module__.startswith("vitkit.")]


def with_parts(kind: typing.Any) -> set[type]:
    """A result's class, those of its fields and the one that it extends."""
    kinds = {kind} if isinstance(kind, type) and kind.__module__.startswith("vitkit.") else set()
    for part in typing.get_args(kind):
        kinds |= with_parts(part)
    if dataclasses.is_dataclass(kind) and issubclass(kind, Result):
        kinds |= {base for base in kind.__mro__ if issubclass(base, Result)}
        for hint in typing.get_type_hints(kind).values():
            kinds |= with_parts(hint)
    return kinds


def test_the_reference_has_what_its_classes_extend() -> None:
    documented = {found(path) for path in REFERENCE}
    for kind in documented:
        if isinstance(kind, type):
            bases = {base for base in kind.__bases__ if base.__module__.startswith("vitkit.")}
            assert bases <= documented, f"{kind.__name__} extends {bases - documented}: name it in docs/api/"


def test_the_reference_has_what_public_functions_return() -> None:
    documented = {found(path) for path in REFERENCE}
    for name in vitkit.PUBLIC:
        if not isinstance(getattr(vitkit, name), type):
            for kind in returned(getattr(vitkit, name)):
                missing = with_parts(kind) - documented
                assert not missing, f"{name} returns {missing}: name it in docs/api/"


@pytest.fixture
def site() -> ModuleType:
    pytest.importorskip("griffe", reason="`make docs` installs it")
    spec = importlib.util.spec_from_file_location("site_of_docs", DOCS / "site.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_explained_arguments_are_told_from_prose(site: ModuleType) -> None:
    text = "Do it.\n\ndata, model: what\nis used. force: start over.\n\nThe same again: it resumes."
    prose, meanings = site.explained(text, ["data", "model", "force", "run"])
    assert prose == "Do it.\n\nThe same again: it resumes."
    assert meanings == {"data": "what is used.", "model": "what is used.", "force": "start over."}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site."""
    pytest.importorskip("mkdocs", reason="`make docs` installs it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return folder


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(built: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in built.rglob("*.html")]
    assert len(pages) > 20
    for page in pages:
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*", page)


SEARCH = """
document.querySelector('[data-md-toggle=search]').click();
const field = document.querySelector('.md-search__input');
field.value = 'rollout';
field.dispatchEvent(new Event('input', {bubbles: true}));
field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}));
new Promise((found) => {
  const look = () => {
    const links = [...document.querySelectorAll('.md-search-result__link')].map((link) => link.href);
    links.length ? found(links) : setTimeout(look, 50);
  };
  look();
});
"""


@pytest.mark.browser
@pytest.mark.skipif(not PROGRAM, reason="there is no Chromium here")
def test_the_site_works_without_a_server(built: Path, tmp_path: Path) -> None:
    with browse(tmp_path / "profile") as browser:
        for page in ("index.html", "tutorials/photos.html", "finetune.html", "api/models.html"):
            browser.open(built / page, 390, is_phone=True)
            assert browser.evaluate("document.documentElement.scrollWidth") == 390
            assert browser.complaints == [] and all(url.startswith("file:") for url in browser.requests)
        browser.open(built / "api" / "models.html", 1280)
        links = browser.evaluate(SEARCH)
        assert any(link.startswith((built / "inspect.html").as_uri()) for link in links), links
        assert browser.complaints == []
