"""Tables come out whole and unstyled, JSON without NaN, details only if they are asked for."""

from __future__ import annotations

import json
import re
from typing import get_args

import pytest

from vitkit.cli.output import announcer, note, print_json, print_table
from vitkit.notes import Kind, Note
from vitkit.progress import Lines
from vitkit.results import as_json


def test_tables_are_whole_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    print_table(
        "title [bold]", ["name", "[size]"], [[long, "1"], ["[red]y", "22"]], "caption " * 40, ["[size]"]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "title [bold]"
    assert sum(long in line for line in lines) == 1
    assert any(line.rstrip().endswith("[size]") for line in lines)
    assert any("[red]y" in line and line.rstrip().endswith(" 22") for line in lines)
    assert lines[-1] == "caption " * 40


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": "ä\udcff", "numbers": [1, 0.5, None]}
    print_json(value)
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == value


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_has_no_nan(capsys: pytest.CaptureFixture[str], number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_json({"loss": number})
    assert capsys.readouterr().out == ""


def test_notes_leave_the_result_alone(capsys: pytest.CaptureFixture[str]) -> None:
    note("beside")
    assert capsys.readouterr() == ("", "beside\n")


def test_details_are_for_those_who_ask(capsys: pytest.CaptureFixture[str]) -> None:
    notes = [Note(f"a note on {kind}", kind) for kind in get_args(Kind)]
    for show in (announcer(verbose=False), Lines().note):
        for line in notes:
            show(line)
        shown = ["info", "summary", "untrained", "progress"]
        expected = [*(f"a note on {kind}" for kind in shown), "warning: a note on warning"]
        assert capsys.readouterr().err.splitlines() == expected
    for show in (announcer(verbose=True), Lines(verbose=True).note):
        for line in notes:
            show(line)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == len(notes) and lines[-1] == "warning: a note on warning"


def test_documents_say_what_is_a_warning() -> None:
    assert as_json([Note("few images", "warning"), Note("one model", "model")]) == [
        "warning: few images",
        "one model",
    ]


COLUMNS = ["name", "about", "images", "top-1 accuracy"]
ROWS = [
    ["B/16@augreg_in21k_ft_in1k_384", "a model of the paper, fine-tuned", "1,281,167", "84.53%"],
    ["Ti/16", "a small one", "303,000,000", "-"],
]


@pytest.mark.parametrize("width", [120, 80, 72, 60, 40, 20])
def test_a_terminal_of_any_width_shows_all_of_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich takes this for a terminal
    print_table("title", COLUMNS, ROWS, "What the columns mean, in a sentence or two of words.", COLUMNS[2:])
    lines = without_styles(capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    is_table = width > 60  # else each row is a paragraph under its name
    whole = "".join("".join(lines).split())
    for cell in (*COLUMNS[not is_table :], *ROWS[0], *ROWS[1]):
        assert all(word in whole for word in cell.split()), cell
    for cell in (*(row[0] for row in ROWS), *(row[2] for row in ROWS)):  # names and numbers stay whole
        assert width < 40 or any(cell in line.split() or f"{cell};" in line for line in lines), cell


def test_a_pipe_has_the_width_of_the_variable_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    caption = "What the columns mean, in a sentence or two of words. " * 3
    for columns in ("", "wide"):
        monkeypatch.setenv("COLUMNS", columns)
        print_table("title", COLUMNS, ROWS, caption, COLUMNS[2:])
        assert max(map(len, capsys.readouterr().out.splitlines())) > 90
    monkeypatch.setenv("COLUMNS", "80")
    print_table("title", COLUMNS, ROWS, caption, COLUMNS[2:])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_table_that_fits_is_as_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(None, COLUMNS, ROWS, right=COLUMNS[2:])
    piped = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    print_table(None, COLUMNS, ROWS, right=COLUMNS[2:])
    assert without_styles(capsys.readouterr().out) == piped


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
