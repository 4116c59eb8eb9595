"""Run folders read as plain data, damaged ones told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.reports.run_folders import evaluation_line, training_line, write_run
from vitkit.errors import InputError
from vitkit.runs.folder import flatten
from vitkit.runs.reading import finite, read_run


def test_lines_are_told_apart(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a"))
    assert [line["step"] for line in run.evaluations] == [100, 200, 300, 400]
    assert len(run.training) == 20
    assert run.step == 400
    assert run.metrics == ["val/accuracy", "val/loss", "val_ema/accuracy", "val_ema/loss"]
    assert list(run.finals) == ["val/accuracy", "val_ema/accuracy", "val/loss", "val_ema/loss", "train/loss"]
    assert run.finals["val/accuracy"] == pytest.approx(10 / 11)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    whole = json.dumps(training_line(420))
    for length in (1, 9, len(whole)):
        run = read_run(write_run(tmp_path / "a", tail=whole[:length]))
        assert run.step == 400
    assert read_run(write_run(tmp_path / "a", tail=f"{whole}\n")).step == 420


def test_a_torn_character_is_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    with open(path / "metrics.jsonl", "ab") as file:
        file.write('{"é'.encode()[:-1])
    assert read_run(path).step == 400


@pytest.mark.parametrize(
    "damaged", ['{"step": 1', "[]", '{"loss": 1}', '{"step": "1"}', '{"step": NaN}', 10**5 * "["]
)
def test_a_damaged_line_is_named(tmp_path: Path, damaged: str) -> None:
    path = write_run(tmp_path / "a", [training_line(1)], tail=f'{damaged}\n{{"step": 2}}\n')
    with pytest.raises(InputError, match=r"metrics.jsonl, line 2 is damaged: expected a JSON object"):
        read_run(path)


def test_only_finite_numbers_are_kept(tmp_path: Path) -> None:
    line = {
        "step": 1,
        "loss": float("nan"),
        "accuracy": float("inf"),
        "note": "x",
        "flag": True,
        "waiting": 0,
    }
    run = read_run(write_run(tmp_path / "a", [line, evaluation_line(1)]))
    assert run.training == [{"step": 1, "waiting": 0}]
    assert finite(10**400) is None


def test_the_last_line_of_a_step_holds(tmp_path: Path) -> None:
    lines = [training_line(2), training_line(1), training_line(2, loss=7.0)]
    run = read_run(write_run(tmp_path / "a", lines))
    assert [line["step"] for line in run.training] == [1, 2]
    assert run.training[1]["loss"] == 7.0


def test_without_evaluation_the_finals_are_of_training(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", [training_line(1, loss=0.5, accuracy=0.25)]))
    assert run.finals == {"train/accuracy": 0.25, "train/loss": 0.5}


def test_a_stopped_run_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it was stopped before its first line; vit train .*run resumes it"):
        read_run(write_run(tmp_path / "run", [], status="stopped"))


def test_a_run_is_running_while_a_process_holds_it(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    run = write_run(tmp_path / "run", status="running")
    with open(run / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_run(run).state["status"] == "running"
    assert read_run(run).state["status"] == "interrupted"
    with pytest.raises(
        InputError, match="it was interrupted before its first line; vit train .*new resumes it"
    ):
        read_run(write_run(tmp_path / "new", [], status="running"))


def test_the_colours_that_a_run_names_are_among_its_finals(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", [{"step": 1, "loss": 2.0, "color_accuracy": 0.25}]))
    assert run.finals == {"train/color_accuracy": 0.25, "train/loss": 2.0}


def test_metrics_alone_are_a_run(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "run.json").unlink()
    (path / "config.yaml").unlink()
    run = read_run(path)
    assert (run.name, run.state, run.config) == ("a", {}, {})


def test_what_is_no_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/digits"))
    with pytest.raises(InputError, match=r"^no folder 'runs/digitz'; did you mean 'runs/digits'\?$"):
        read_run(Path("runs/digitz"))
    with pytest.raises(InputError, match=r"^no folder 'digits'; did you mean 'runs/digits'\?$"):
        read_run(Path("digits"))
    with pytest.raises(InputError, match=r"^no folder 'nothing'; expected a run, such as runs/NAME$"):
        read_run(Path("nothing"))
    with pytest.raises(InputError, match=r"^runs is not a run: it has neither run.json nor metrics.jsonl"):
        read_run(Path("runs"))
    with pytest.raises(InputError, match=r"^runs/new has no metrics: wait for its first line"):
        read_run(write_run(Path("runs/new"), []))
    (Path("runs/new") / "metrics.jsonl").unlink()
    with pytest.raises(InputError, match=r"^runs/new has no metrics: wait for its first line"):
        read_run(Path("runs/new"))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("run.json", b"{", "one JSON object"),
        ("run.json", b"[]", "one JSON object"),
        ("config.yaml", b"a: [", "restore it, or remove"),
        ("config.yaml", b"- a", "restore it, or remove"),
        ("config.yaml", b"!!python/object:os.system {}", "restore it, or remove"),
        ("config.yaml", b"\xff\xfe\xff", "restore it, or remove"),
        ("config.yaml", b"[" * 10**5, "restore it, or remove"),
        ("run.json", b"[" * 10**5, "one JSON object"),
        ("run.json", b"\xff\xfe\xff", "one JSON object"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = write_run(tmp_path / "a")
    (path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name}.* {expected}"):
        read_run(path)


@given(some.text(max_size=40))
def test_any_tail_is_a_run_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, tail: str) -> None:
    path = tmp_path_factory.mktemp("runs")
    write_run(path, [training_line(1)], tail=tail.encode("utf-8", "replace").decode())
    try:
        assert read_run(path).training[0]["step"] <= 1
    except InputError:
        assert "\n" in tail or "\r" in tail


def test_settings_flatten_to_dotted_names() -> None:
    config = {"a": 1, "b": {"c": {"d": [1, 2]}, "e": {}}}
    assert flatten(config) == {"a": 1, "b.c.d": [1, 2], "b.e": {}}
