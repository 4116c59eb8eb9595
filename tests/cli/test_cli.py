"""`vit` itself: help and completion without torch, exit codes, one-line errors."""

from __future__ import annotations

import inspect
import itertools
import os
import shlex
import subprocess
import sys
import warnings
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import vitkit
from vitkit.cli import VERBS, app
from vitkit.cli.output import note

# An import of a module that is None here fails.
BLOCKED = "import sys; sys.modules.update(dict.fromkeys(['torch', 'torchvision', 'numpy', 'matplotlib'])); "
RUN = BLOCKED + "from vitkit.cli import main; sys.exit(main())"

# Verbs whose function has another name, since Python's own or a module's has it.
PUBLIC_NAMES = {"eval": "evaluate", "inspect": "inspect_model", "data": "describe_data"}


def run_without_torch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", **environment},
    )


def test_help_needs_no_torch() -> None:
    commands = [["--help"], ["-h"], *([verb, "--help"] for verb in VERBS)]
    code = BLOCKED + f"from vitkit.cli import main; print([main(command) for command in {commands}])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.endswith(f"{[0] * len(commands)}\n"), answer.stderr
    assert answer.stdout.count("Usage: vit") == len(commands)
    for verb in VERBS:
        assert f"Usage: vit {verb} " in answer.stdout


def test_models_needs_no_torch() -> None:
    answer = run_without_torch("models", "B/16", "--json")
    assert answer.returncode == 0, answer.stderr


def test_completion_needs_no_torch() -> None:
    script = run_without_torch(_VIT_COMPLETE="source_bash")
    assert script.returncode == 0, script.stderr
    assert "_VIT_COMPLETE" in script.stdout
    verbs = run_without_torch(_VIT_COMPLETE="complete_bash", COMP_WORDS="vit mod", COMP_CWORD="1")
    assert verbs.stdout.split() == ["models"]
    flags = run_without_torch(_VIT_COMPLETE="complete_bash", COMP_WORDS="vit models --", COMP_CWORD="2")
    assert "--weights" in flags.stdout.split()


def test_the_module_is_the_command() -> None:
    answer = subprocess.run([sys.executable, "-m", "vitkit", "--version"], capture_output=True, text=True)
    assert answer.stdout == f"vitkit {vitkit.__version__}\n"


def test_every_verb_has_help() -> None:
    for verb, function in VERBS.items():
        assert function.__doc__, verb
        assert function.__name__ == verb


@pytest.mark.parametrize("verb", [verb for verb in VERBS if PUBLIC_NAMES.get(verb, verb) in vitkit.PUBLIC])
def test_a_verb_calls_its_public_function(verb: str) -> None:
    name = PUBLIC_NAMES.get(verb, verb)
    module = sys.modules[VERBS[verb].__module__]
    assert f"from {vitkit.PUBLIC[name]} import {name}" in inspect.getsource(module)


def test_help_lists_every_verb(vit) -> None:
    answer = vit("--help")
    assert answer.status == 0
    assert all(f" {verb} " in answer.out for verb in VERBS)


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help_shows_no_type_after_a_flag(vit, arguments: list[str]) -> None:
    assert "bool" not in vit(*arguments).out


def test_shared_flags_read_the_same_everywhere() -> None:
    texts: dict[str, set[str]] = {}
    for command in typer.main.get_command(app).commands.values():
        for param in command.params:
            texts.setdefault(param.opts[0], set()).add(param.help)
    assert {len(texts[flag]) for flag in ("--json", "--run", "--device", "--names", "--image-size")} == {1}
    assert texts["--force"] == {
        "Start over, deleting the existing run.",
        "Start over, deleting the existing shards.",
        "Overwrite existing output.",
    }


def test_no_verb_shows_the_help(vit) -> None:
    answer = vit()
    assert answer.status == 2
    assert "Usage: vit" in answer.out + answer.err


def test_unknown_verb_suggests_a_near_one(vit) -> None:
    assert vit("modles") == (
        2,
        "",
        "error: unknown verb 'modles'; did you mean 'models'? `vit --help` lists them all\n",
    )


def test_surplus_arguments_ask_for_quotes(vit) -> None:
    answer = vit("models", "cct_a.py", "cct_b.py")
    assert answer == (2, "", "error: unexpected argument 'cct_b.py'; if you used a pattern, quote it\n")


def test_unknown_option_is_one_line(vit) -> None:
    answer = vit("models", "--jsn")
    assert answer.status == 2
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    assert "--json" in answer.err
    assert answer.err.count("\n") == 1


def test_input_error_is_one_line(vit) -> None:
    answer = vit("models", "B/16x")
    assert answer.status == 2
    assert answer.out == ""
    assert answer.err.startswith("error: unknown model 'B/16x'; did you mean ")


def test_interrupt_is_130(vit, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitkit.catalog.models", interrupt)
    assert vit("models").status == 130


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line(vit, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*_: object, **__: object) -> None:
        warnings.warn("left out a.png", stacklevel=1)
        raise KeyboardInterrupt

    monkeypatch.setattr("vitkit.catalog.models", warn)
    assert vit("models").err == "warning: left out a.png\n"


def test_a_bug_is_not_hidden(vit, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("vitkit.catalog.models", fail)
    with pytest.raises(ZeroDivisionError):
        vit("models")


@pytest.mark.skipif(os.name == "nt", reason="pipes of a POSIX shell")
@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_a_closed_pipe_is_quiet(flag: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    answer = subprocess.run(
        [sys.executable, "-m", "vitkit", flag], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert answer.stderr == ""
    assert answer.returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["--help", "models B/16", "models B/16 --json"])
def test_full_output_is_one_line(arguments: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "vitkit", *arguments.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (answer.returncode, answer.stderr) == (1, "error: standard output: No space left on device\n")


@pytest.mark.skipif(os.name == "nt", reason="redirections of a POSIX shell")
@pytest.mark.parametrize(
    ("redirection", "expected"),
    [
        (">&-", (2, "", "error: standard output is closed, so no result can be printed\n")),
        ("2>&-", (0, f"vitkit {vitkit.__version__}\n", "")),
        (">&- 2>&-", (2, "", "")),
    ],
)
def test_closed_streams(redirection: str, expected: tuple[int, str, str]) -> None:
    command = f"{shlex.quote(sys.executable)} -m vitkit --version {redirection}"
    answer = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout, answer.stderr) == expected


def test_a_full_standard_error_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=fail))
    note("step 1 of 2")
    note("step 2 of 2")
    sys.stderr.close()


@pytest.mark.skipif(os.name == "nt", reason="pipes of a POSIX shell")
def test_work_goes_on_where_nobody_reads_its_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    closed = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", closed)
    for _ in range(2):
        note("step 1 of 2")
    sys.stderr.close()
    with suppress(BrokenPipeError):
        closed.close()


def test_odd_file_names_can_be_printed() -> None:
    code = "import sys; from vitkit.cli import main; main(['--version']); print('\\udcff')"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert answer.returncode == 0
    assert b"udcff" in answer.stdout


@pytest.mark.parametrize("name", VERBS)
def test_help_fills_its_lines(vit: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A line break made by hand would leave a short line in the middle of a paragraph."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = vit(name, "--help").out
    assert max(map(len, shown.splitlines())) <= 80
    lines = [line.rstrip() for line in shown.partition("╭")[0].splitlines()]
    for line, following in itertools.pairwise(lines):
        if line and following:
            assert len(f"{line} {following.split()[0]}") >= 79, line


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("finetune", "vit finetune [OPTIONS] MODEL [DATA] [KEY=VALUE]..."),
        ("predict", "vit predict [OPTIONS] MODEL IMAGE|FOLDER..."),
        ("cost", "vit cost [OPTIONS] [MODEL]..."),
        ("report", "vit report [OPTIONS] RUN..."),
        ("models", "vit models [OPTIONS] [PATTERN]"),
    ],
)
def test_usage_is_as_people_write_it(vit: Any, name: str, usage: str) -> None:
    assert f"Usage: {usage} " in vit(name, "--help").out
