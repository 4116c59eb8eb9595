"""Run folders: the same settings are the same run, one process at a time, and what is broken is said or listed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vitkit import runs
from vitkit.errors import InputError
from vitkit.runs import (
    RunFolder,
    cut_metrics,
    list_runs,
    read_config,
    read_metrics,
    read_record,
    run_name,
)

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = {
    "model": {"name": "Ti/16", "size": [32, 32]},
    "optimizer": {"rate": 1e-5},
    "seed": 0,
}
HOLDER = """
import sys, time
from vitkit.runs import RunFolder
folder = RunFolder(sys.argv[1], {"seed": 0})
print("ready", flush=True)
time.sleep(60)
"""
# As HOLDER, with a forked worker that outlives it.
HOLDER_WITH_WORKER = HOLDER.replace("print(", "import os\nif os.fork() == 0:\n    time.sleep(60)\nprint(")


def fields(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def hold(folder: Path, code: str = HOLDER) -> subprocess.Popen[str]:
    """Start a process that has the folder, in a group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_names_follow_the_settings() -> None:
    name = run_name("digits", {"b": 1, "a": {"d": (1, 2), "c": None}})
    assert name == run_name("digits", {"a": {"c": None, "d": [1, 2]}, "b": 1})
    assert name == "digits-041841b4"  # of {"a":{"c":null,"d":[1,2]},"b":1}
    assert name != run_name("digits", {"b": 2, "a": {"d": [1, 2], "c": None}})
    assert run_name("shapes", {"b": 1}).startswith("shapes-")


def test_a_new_folder_has_settings_and_every_field(tmp_path: Path) -> None:
    with closing(RunFolder(tmp_path / "runs" / "one", CONFIG)) as folder:
        assert read_config(folder.path) == CONFIG
        assert list(read_config(folder.path)) == list(CONFIG)
        assert fields(folder.path) == read_record(folder.path)
        assert (
            list(fields(folder.path))
            == (
                "name status step steps command started updated seconds environment micro_batch data best cost message"
            ).split()
        )
        assert (folder.record["name"], folder.record["status"]) == ("one", "running")


def test_what_is_known_of_a_run_outlives_it(tmp_path: Path) -> None:
    best = {"metric": "val/accuracy", "value": 0.5, "step": 20}
    with closing(RunFolder(tmp_path, CONFIG)) as folder:
        folder.update(step=20, steps=40, best=best, micro_batch=64, started="2024-01-02T03:04:05+00:00")
        before = folder.record
    with closing(RunFolder(tmp_path, CONFIG)) as folder:
        assert folder.record == before
        folder.update(status="done")
    assert fields(tmp_path) == before | {"status": "done", "updated": fields(tmp_path)["updated"]}
    assert not list(tmp_path.glob(".*.part"))


def test_fields_that_run_json_lacks(tmp_path: Path) -> None:
    with closing(RunFolder(tmp_path, CONFIG)) as folder, pytest.raises(AssertionError, match="speed"):
        folder.update(speed=1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": "done"}', '{"status": NaN}'])
def test_a_broken_record_is_begun_anew(tmp_path: Path, text: str) -> None:
    RunFolder(tmp_path, CONFIG).close()
    (tmp_path / "run.json").write_text(text)
    with closing(RunFolder(tmp_path, CONFIG)):
        assert fields(tmp_path)["step"] == 0


def test_other_settings_are_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path, CONFIG).close()
    for change, message in [
        (
            {"optimizer": {"rate": 1e-4}},
            "optimizer.rate is 1e-05 there, 0.0001 here; name another run, or begin this one anew with --force",
        ),
        ({"model": {"name": "Ti/16"}}, r"model.size is \[32,32\] there, unset here"),
        ({"extra": {"deep": True}}, "extra.deep is unset there, true here"),
        ({"seed": "0"}, 'seed is 0 there, "0" here'),
    ]:
        with pytest.raises(InputError, match=message):
            RunFolder(tmp_path, CONFIG | change)
        RunFolder(tmp_path, CONFIG).close()  # the lock was given back, the settings are as they were


@settings(max_examples=50)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    )
)
@example({"\x85": None})
@example("0E0")
@example({"1e5": "1.e-3"})
def test_any_settings_are_the_same_when_read_again(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    path = tmp_path_factory.mktemp("run")
    RunFolder(path, {"setting": value}).close()
    assert read_config(path) == {"setting": value}
    RunFolder(path, {"setting": value}).close()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(InputError, match="holds 'photo.jpg' and no config.yaml: it is no run folder"):
        RunFolder(tmp_path, CONFIG)
    assert {path.name for path in tmp_path.iterdir()} == {"photo.jpg", ".lock"}


def test_a_start_that_was_killed_early_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.yaml.part").write_text("mod")
    with closing(RunFolder(tmp_path, CONFIG)):
        assert read_config(tmp_path) == CONFIG


def test_a_place_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="one can't be written: Not a directory"):
        RunFolder(tmp_path / "file" / "one", CONFIG)


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with closing(RunFolder(tmp_path / "one", CONFIG)) as folder:
        before = fields(folder.path)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="^[^\n]*config.yaml: No space left on device$"):
            RunFolder(tmp_path / "two", CONFIG)
        with pytest.raises(InputError, match="^[^\n]*run.json: No space left on device$"):
            folder.update(step=1)
        assert fields(folder.path) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_metrics_on_a_full_disk(tmp_path: Path) -> None:
    with closing(RunFolder(tmp_path, CONFIG)) as folder:
        (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
        with pytest.raises(InputError, match="metrics.jsonl can't be written: No space left on device$"):
            folder.append({"step": 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1: expected the node content.*; restore it, or remove"),
        ("- a", "holds no settings"),
        (None, "is no run folder: it has no config.yaml"),
    ],
)
def test_settings_that_can_not_be_read(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_config(tmp_path)


def test_metrics_come_back(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    lines = [{"step": 1, "loss": 0.1 + 0.2, "waiting": 0.0}, {"step": 2, "val/accuracy": 0.5}]
    with closing(RunFolder(tmp_path, CONFIG)) as folder:
        for line in lines:
            folder.append(line)
        folder.append({"step": 3, "loss": float("nan"), "gradient_norm": float("inf")})
    assert read_metrics(tmp_path) == [*lines, {"step": 3, "loss": None, "gradient_norm": None}]


@given(
    st.lists(st.integers(0, 9), max_size=8),
    st.integers(0, 9),
    st.sampled_from([b"", b'{"step": 3, "lo', b'{"step": 1}', b"\0\0\0", b'{"loss": 1}\n', b"\xff\n"]),
)
def test_metrics_are_cut_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], step: int, torn: bytes
) -> None:
    folder = tmp_path_factory.mktemp("run")
    texts = [f'{{"step": {number}, "loss":  {place}.50}}\n' for place, number in enumerate(sorted(steps))]
    (folder / "metrics.jsonl").write_bytes("".join(texts).encode() + torn)
    assert [line["step"] for line in read_metrics(folder)] == sorted(steps)
    cut_metrics(folder, step)
    kept = "".join(text for text, number in zip(texts, sorted(steps), strict=True) if number <= step)
    assert (folder / "metrics.jsonl").read_text() == kept
    assert [path.name for path in folder.iterdir()] == ["metrics.jsonl"]


def test_cutting_what_is_not_there(tmp_path: Path) -> None:
    cut_metrics(tmp_path, 5)
    assert not list(tmp_path.iterdir())


def test_a_broken_line_amid_others_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    for read in (read_metrics, lambda folder: cut_metrics(folder, 9)):
        with pytest.raises(InputError, match="metrics.jsonl: line 2 is no object with a step"):
            read(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    process = hold(tmp_path)
    try:
        (row,) = list_runs(tmp_path)
        assert row["status"] == "running"
        message = f"is in use by process {process.pid} on .*; wait for it, stop it, or name another run"
        with pytest.raises(InputError, match=message):
            RunFolder(tmp_path, {"seed": 0})
    finally:
        process.kill()
        process.communicate()
    (row,) = list_runs(tmp_path)
    assert row["status"] == "interrupted"
    RunFolder(tmp_path, {"seed": 0}).close()


def test_a_worker_that_outlives_the_run_has_no_lock(tmp_path: Path) -> None:
    process = hold(tmp_path, HOLDER_WITH_WORKER)
    try:
        process.kill()
        process.wait()
        os.killpg(process.pid, 0)  # the worker lives
        RunFolder(tmp_path, {"seed": 0}).close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_one_folder_at_a_time_in_a_process(tmp_path: Path) -> None:
    with closing(RunFolder(tmp_path, CONFIG)), pytest.raises(InputError, match=f"process {os.getpid()} on "):
        RunFolder(tmp_path, CONFIG)
    RunFolder(tmp_path, CONFIG).close()


def test_whoever_lists_runs_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    RunFolder(tmp_path, CONFIG).close()
    with open(tmp_path / ".lock", "rb") as lister:
        fcntl.flock(lister, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _: lister.close())
        RunFolder(tmp_path, CONFIG).close()


def test_runs_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list_runs() == []
    best = {"metric": "val/accuracy", "value": 0.5, "step": 20}
    for name, day, status in [("a", 3, "done"), ("b", 4, "running"), ("c", 2, "failed")]:
        with closing(RunFolder(Path("runs", name), CONFIG)) as folder:
            monkeypatch.setattr(runs, "_now", lambda day=day: f"2024-01-0{day}T00:00:00+00:00")
            folder.update(status=status, step=20, steps=40, seconds=1.5, best=best, message="")
            monkeypatch.undo()
            monkeypatch.chdir(tmp_path)
    Path("runs", "notes").mkdir()
    Path("runs", "file").touch()
    rows = list_runs()
    assert [(row["name"], row["status"]) for row in rows] == [
        ("b", "interrupted"),
        ("a", "done"),
        ("c", "failed"),
    ]
    assert rows[1] == {
        "name": "a",
        "status": "done",
        "step": 20,
        "steps": 40,
        "best": best,
        "seconds": 1.5,
        "updated": "2024-01-03T00:00:00+00:00",
        "message": "",
        "path": str(Path("runs", "a")),
    }
    assert list_runs(Path("runs", "a")) == [rows[1]]


@pytest.mark.parametrize(
    "change",
    [
        None,
        "{",
        "3",
        {"step": "many"},
        {"steps": None},
        {"best": 3},
        {"best": {}},
        {"best": {"metric": "a", "value": "b", "step": 1}},
        {"best": {"metric": "a", "value": float("nan"), "step": 1}},
        {"updated": "yesterday"},
        {"seconds": []},
        {"message": None},
    ],
    ids=str,
)
def test_broken_runs_are_listed_too(tmp_path: Path, change: Any) -> None:
    for name in ("good", "broken"):
        with closing(RunFolder(tmp_path / name, CONFIG)) as folder:
            folder.update(status="done")
    path = tmp_path / "broken" / "run.json"
    if change is None:
        path.unlink()
    else:
        path.write_text(change if isinstance(change, str) else json.dumps(folder.record | change))
    good, broken = list_runs(tmp_path)
    assert (good["name"], good["status"]) == ("good", "done")
    assert (broken["name"], broken["status"], broken["step"]) == ("broken", "unreadable", None)
    assert str(path) in broken["message"]


def test_a_place_without_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    with pytest.raises(InputError, match="rusn is no folder; expected one that holds runs, such as runs"):
        list_runs(tmp_path / "rusn")


def test_listing_needs_no_torch(tmp_path: Path) -> None:
    RunFolder(tmp_path / "one", CONFIG).close()
    code = "import sys; from vitkit.runs import list_runs; assert list_runs(sys.argv[1]); "
    code += "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)


def test_runs_inside_folders_of_runs_are_listed_by_their_path(tmp_path: Path) -> None:
    for name in ("plain", "quickstart/shapes", "finetune-a/seed-0/run"):
        RunFolder(tmp_path / name, CONFIG).close()
    assert {row["name"] for row in list_runs(tmp_path)} == {
        "plain",
        "quickstart/shapes",
        "finetune-a/seed-0/run",
    }
