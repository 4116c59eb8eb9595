"""Text files that commands are given: a pipe is refused before it is opened, and so is what isn't UTF-8."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reports.run_folders import write_run
from vitkit.data.sources import vtab
from vitkit.errors import InputError
from vitkit.evaluation.classes import HeadClasses, read_mapping
from vitkit.evaluation.real import read_real
from vitkit.files import read_text
from vitkit.predictor import read_names
from vitkit.runs.reading import read_run
from vitkit.serving.settings import read_keys
from vitkit.studies.config import read_study
from vitkit.training.recipes import resolve

READERS: dict[str, Callable[[Path], object]] = {
    "names.txt": read_names,
    "real.json": read_real,
    "mapping.json": lambda path: read_mapping(path, HeadClasses("model", ["cat", "dog"])),
    "keys": read_keys,
    "list.txt": lambda path: vtab._read_list(path, vtab.TASKS["svhn"], [], [], []),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=rf"^cannot read .*{name}: it is a pipe or a device, not a file$"):
        READERS[name](tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["run.json", "config.yaml", "metrics.jsonl"])
def test_a_run_of_pipes_is_refused(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path / "a")
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    with pytest.raises(InputError, match=rf"cannot read .*{name}: it is a pipe or a device, not a file"):
        read_run(path)


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"real.json"}))
def test_other_text_than_utf_8_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xff")
    with pytest.raises(InputError, match=rf"^cannot read .*{name}: it is not UTF-8 text$"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("read", [resolve, read_study])
def test_recipes_and_studies_are_utf_8(tmp_path: Path, read: Callable[[Path], object]) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xff")
    with pytest.raises(InputError, match=r"^cannot read .*a.yaml: it is not UTF-8 text$"):
        read(tmp_path / "a.yaml")


def test_a_text_has_no_byte_order_mark_and_its_lines_end_in_lf(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffkočka\r\npes\n".encode())
    assert read_text(tmp_path / "a.txt") == "kočka\npes\n"
