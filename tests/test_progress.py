"""Progress: a bar in terminals and notebooks, lines elsewhere, nothing of work inside other work."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from rich.console import Console

import vitkit
from vitkit import progress
from vitkit.models.configs import Preprocessing
from vitkit.notes import Note
from vitkit.predictor import Predictor
from vitkit.progress import Bar, Lines, Silent, following, showing


def test_lines_say_what_is_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0, 5, 20, 100, 101, 121])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    tell = progress.progress_lines("features")
    for done, total in ((50, 1000), (200, 1000), (1000, 1000), (10, 100), (60, 100)):
        tell(done, total)
    assert capsys.readouterr().err.splitlines() == [
        "features: 200 of 1,000, 1:20 left",
        "features: 1,000 of 1,000",
        "features: 60 of 100, 0:13 left",
    ]


class Screen:
    """Standard error that rich takes for a terminal, with all that is written to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.text = io.StringIO()
        console = Console(file=self.text, force_terminal=True, width=100)
        monkeypatch.setattr(progress, "screen", lambda: (console, True))

    def __contains__(self, words: str) -> bool:
        return words in self.text.getvalue()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    return Screen(monkeypatch)


def test_python_calls_show_a_bar_unless_told_not_to(screen: Screen) -> None:
    with showing(False, "measuring") as tell:
        assert tell is None
    with showing(None, "measuring") as tell:
        assert tell is None
    assert not screen.text.getvalue()
    with showing(True, "measuring") as tell:
        assert tell is not None
        tell(1, 3)
    assert "measuring" in screen and "1/3" in screen


def test_work_that_is_done_at_once_shows_no_bar(screen: Screen) -> None:
    with showing(True, "measuring") as tell:
        assert tell is not None
        tell(3, 3)
    assert not screen.text.getvalue()


def test_a_function_is_told_instead(screen: Screen) -> None:
    told: list[tuple[int, int]] = []
    with showing(lambda done, total: told.append((done, total)), "measuring") as tell:
        assert tell is not None
        tell(1, 3)
    assert told == [(1, 3)] and not screen.text.getvalue()


@pytest.mark.parametrize("outer", [True, False, lambda done, total: None])
def test_work_inside_other_work_shows_nothing_of_its_own(outer: Any, screen: Screen) -> None:
    with showing(outer, "outer"):
        with showing(True, "inner") as tell:
            assert tell is None
        with following(True, None) as listener:
            assert isinstance(listener, Silent)
    with showing(True, "next") as tell:
        assert tell is not None


def test_a_run_is_followed_by_a_bar_by_whom_is_given_or_by_nobody(screen: Screen) -> None:
    with following(True, None) as listener:
        assert isinstance(listener, Bar)
        with showing(True, "inner") as tell:
            assert tell is None
    with following(False, None) as listener:
        assert isinstance(listener, Silent)
    mine = Silent()
    with following(True, mine) as listener:
        assert listener is mine
        with following(True, None) as inner:
            assert isinstance(inner, Silent)


def test_without_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with following(True, None) as listener:
        assert type(listener) is Lines
        listener.start(3, 10)
    assert capsys.readouterr().err == "resumes at step 3 of 10\n"


class Notebook:
    """What rich asks of IPython and ipywidgets, kept as a list of what was displayed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, has_widgets: bool) -> None:
        self.displayed: list[Any] = []
        self.widgets: list[Any] = []
        monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
        display = SimpleNamespace(display=self.displayed.append)
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))
        monkeypatch.setitem(sys.modules, "IPython.display", display)
        widgets: Any = None
        if has_widgets:
            widgets = SimpleNamespace(Output=self.output, __spec__=object())
        monkeypatch.setitem(sys.modules, "ipywidgets", widgets)
        if not has_widgets:
            find = importlib.util.find_spec
            monkeypatch.setattr(
                progress, "find_spec", lambda name: None if name == "ipywidgets" else find(name)
            )

    def output(self) -> Any:
        widget = MagicMock()
        self.widgets.append(widget)
        return widget


def test_a_notebook_with_ipywidgets_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch, has_widgets=True)
    with showing(True, "measuring") as tell:
        assert tell is not None
        tell(1, 3)
    assert len(notebook.widgets) == 1
    assert any("measuring" in getattr(each, "text", "") for each in notebook.displayed)
    notebook.widgets[0].close.assert_called()  # the bar disappears


def test_a_notebook_without_ipywidgets_has_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = Notebook(monkeypatch, has_widgets=False)
    with following(True, None) as listener:
        assert type(listener) is Lines
        listener.note(Note("one line"))
    assert not notebook.displayed and capsys.readouterr().err == "one line\n"


def test_public_functions_show_progress(
    screen: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every bar, and no other output, in the words of the command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    net = vitkit.create_model("mu/16", patch=4, image_size=8, num_classes=10)
    model = Predictor(net, Preprocessing(image_size=8), tuple("0123456789"))
    vitkit.evaluate(model, "digits:test[:100]", batch_size=50)
    assert "measuring" in screen and "50/100" in screen
    vitkit.probe(model, "digits:train[:60]", l2=1.0, evaluate="digits:test[:60]", batch_size=30)
    assert "features" in screen and "30/60" in screen
    vitkit.describe_data("digits:test[:40]")
    assert "reading" in screen
    before = screen.text.tell()
    vitkit.evaluate(model, "digits:test[:100]", batch_size=50, progress=False)
    assert screen.text.tell() == before
