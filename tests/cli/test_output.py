"""Tables come out whole and unstyled, JSON without NaN."""

from __future__ import annotations

import json

import pytest

from vitkit.cli.output import note, print_json, print_table


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
