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

from vitkit.errors import InputError
from vitkit.runs import (
    Evaluated,
    RunFolder,
    cut_metrics,
    list_runs,
    read_config,
    read_metrics,
    read_record,
    records,
    run_name,
)
from vitkit.runs import (
    folder as runs,
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
                "format kind status message name started updated step steps command seconds environment micro_batch data measured best models cost unreadable"
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
            "optimizer.rate is 1e-05 there, 0.0001 here; choose another --run, or start over with --force",
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
    with pytest.raises(InputError, match="holds 'photo.jpg' and no config.yaml: not a training run"):
        RunFolder(tmp_path, CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


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
        with pytest.raises(InputError, match="^[^\n]*config.yaml can't be written: No space left on device$"):
            RunFolder(tmp_path / "two", CONFIG)
        with pytest.raises(InputError, match="^[^\n]*run.json can't be written: No space left on device$"):
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
        (None, "is not a run folder: it has no config.yaml"),
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
        with pytest.raises(
            InputError, match="metrics.jsonl, line 2 is damaged: expected a JSON object with a step"
        ):
            read(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    process = hold(tmp_path)
    try:
        (row,) = list_runs(tmp_path)
        assert row.status == "running"
        message = f"is in use by process {process.pid} on .*; wait for it, stop it, or choose another folder"
        with pytest.raises(InputError, match=message):
            RunFolder(tmp_path, {"seed": 0})
    finally:
        process.kill()
        process.communicate()
    (row,) = list_runs(tmp_path)
    assert row.status == "interrupted"
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
    assert [(row.name, row.status) for row in rows] == [
        ("b", "interrupted"),
        ("a", "done"),
        ("c", "failed"),
    ]
    assert rows[1].to_json() == {
        "name": "a",
        "status": "done",
        "step": 20,
        "steps": 40,
        "best": best,
        "results": [],
        "loss": None,
        "images_per_second": None,
        "seconds": 1.5,
        "updated": "2024-01-03T00:00:00+00:00",
        "message": "",
        "path": str(Path("runs", "a")),
    }
    assert list_runs(Path("runs", "a")) == [rows[1]]


def test_a_run_without_evaluations_is_listed_with_its_training_loss(tmp_path: Path) -> None:
    with closing(RunFolder(tmp_path / "run", CONFIG)) as folder:
        for step in (1, 2):
            folder.append({"step": step, "loss": 3.0 / step, "images_per_second": 10.0 * step})
        [row] = list_runs(tmp_path)
        assert (row.loss, row.images_per_second) == (Evaluated("train/loss", 1.5, 2), 15.0)
        folder.append({"step": 1, "val/loss": 2.0})
        [row] = list_runs(tmp_path)
        assert row.loss == Evaluated("val/loss", 2.0, 1)


def test_the_innermost_runs_of_a_suite_are_listed(tmp_path: Path) -> None:
    inner = "suite/vtab/tuning/dtd/0.01/seed-0/run"
    RunFolder(tmp_path / inner, CONFIG).close()
    assert [row.name for row in list_runs(tmp_path)] == [inner]


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
    assert (good.name, good.status) == ("good", "done")
    assert (broken.name, broken.status, broken.step) == ("broken", "unreadable", None)
    assert str(path) in broken.message


def test_a_place_without_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    with pytest.raises(InputError, match="rusn is not a folder; expected one that holds runs, such as runs"):
        list_runs(tmp_path / "rusn")


def test_listing_needs_no_torch(tmp_path: Path) -> None:
    RunFolder(tmp_path / "one", CONFIG).close()
    code = "import sys; from vitkit.runs import list_runs; assert list_runs(sys.argv[1]); "
    code += "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)


def test_runs_inside_folders_of_runs_are_listed_by_their_path(tmp_path: Path) -> None:
    for name in ("plain", "quickstart/shapes", "finetune-a/seed-0/run"):
        RunFolder(tmp_path / name, CONFIG).close()
    assert {row.name for row in list_runs(tmp_path)} == {
        "plain",
        "quickstart/shapes",
        "finetune-a/seed-0/run",
    }


def test_a_refused_folder_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path, ".", "bin/.."):
        with pytest.raises(InputError, match="holds 'bin' and no config.yaml: not a training run"):
            RunFolder(path, CONFIG, force=True)
    with pytest.raises(InputError, match="which this run reads"):
        RunFolder("new/run", CONFIG, keeps=["new/run/model"])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_never_began_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder(tmp_path / "deep" / "run", CONFIG):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_an_error_is_kept_with_the_run(tmp_path: Path) -> None:
    RunFolder(tmp_path, CONFIG).close()
    with pytest.raises(LookupError), RunFolder(tmp_path, CONFIG):
        raise LookupError("no\nluck")
    assert (fields(tmp_path)["status"], fields(tmp_path)["message"]) == ("failed", "no")
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path, CONFIG):
        raise KeyboardInterrupt
    assert fields(tmp_path)["status"] == "stopped"


ASKED: dict[str, Any] = {"model": "Ti/16", "data": "./photos", "changes": [], "sweep": None, "seeds": 1}


def fine_tuning(path: Path) -> Path:
    """A fine-tuning with one run, as its command leaves it."""
    with RunFolder(path, ASKED, kind="finetune") as folder:
        with RunFolder(path / "seed-0" / "run", CONFIG) as run:
            run.append({"step": 1})
        for name in ("seed-0/head/config.json", "model/config.json", "evaluation/results.json"):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text("{}")
        folder.update(status="done", accuracy=0.5)
    return path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def force(path: Path, kind: str = "finetune", settings: dict[str, Any] = ASKED, **options: Any) -> None:
    with RunFolder(path, settings, kind=kind, force=True, **options) as folder:
        folder.clear()


def test_settings_and_results_of_other_kinds_are_in_their_record(tmp_path: Path) -> None:
    fine_tuning(tmp_path / "ft")
    record = read_record(tmp_path / "ft", "finetune")
    assert (record["settings"], record["status"], record["accuracy"]) == (ASKED, "done", 0.5)
    with RunFolder(tmp_path / "ft", ASKED, kind="finetune") as folder:
        assert folder.record == record
    with pytest.raises(InputError, match="other settings: seeds is 1 there, 2 here"):
        RunFolder(tmp_path / "ft", ASKED | {"seeds": 2}, kind="finetune")
    with pytest.raises(InputError, match="ft holds a fine-tuning, not a training run; choose another --run"):
        RunFolder(tmp_path / "ft", CONFIG)


def test_force_removes_what_the_command_wrote(tmp_path: Path) -> None:
    path = fine_tuning(tmp_path / "ft")
    RunFolder(path, ASKED | {"seeds": 2}, kind="finetune", force=True).close()
    assert len(files(path)) == 9  # until it is cleared
    force(path, settings=ASKED | {"seeds": 2})
    assert files(path) == {"finetune.json", ".lock"}
    assert [entry.name for entry in path.iterdir() if entry.is_dir()] == []
    assert read_record(path, "finetune")["settings"]["seeds"] == 2


def test_force_leaves_what_others_put_there(tmp_path: Path) -> None:
    path = fine_tuning(tmp_path / "ft")
    others = {".git/HEAD", "src/main.py", "photos/cat/1.jpg", "seed-0/notes.txt", "count.json"}
    for name in others:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
    (tmp_path / "elsewhere" / "run").mkdir(parents=True)
    (tmp_path / "elsewhere" / "run" / "metrics.jsonl").touch()
    (path / "seed-1").symlink_to(tmp_path / "elsewhere")
    force(path, keeps=[path / "photos"])
    assert files(path) == {"finetune.json", ".lock", *others}
    assert files(tmp_path / "elsewhere") == {"run/metrics.jsonl"}


@pytest.mark.parametrize(
    "content", ["{}", "[]", "{", '{"status": "done"}', '{"request": {}}', '{"format": "x"}']
)
@pytest.mark.parametrize("kind", ["train", "finetune", "vtab", "suite"])
def test_force_wants_a_record_of_ours(tmp_path: Path, kind: str, content: str) -> None:
    for name in ("config.yaml", records.KINDS[kind].record, ".git/HEAD", "src/main.py", "model/config.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content if name.endswith(".json") else "a: 1")
    before = files(tmp_path)
    with pytest.raises(InputError, match="so --force will not delete it: choose another --run"):
        force(tmp_path, kind, CONFIG)
    with pytest.raises(InputError):
        RunFolder(tmp_path, CONFIG, kind=kind)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "kept", [".", "model", "model/config.json", "seed-0/run", "link", "linked/config.json"]
)
def test_force_keeps_what_the_run_reads(tmp_path: Path, kept: str) -> None:
    path = fine_tuning(tmp_path / "ft")
    (path / "link").symlink_to(path / "model")
    (tmp_path / "far").mkdir()
    (path / "linked").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "config.json").symlink_to(path / "model" / "config.json")
    before = files(path)
    with pytest.raises(InputError, match="which this run reads and would overwrite: choose another --run"):
        force(path, keeps=[path / kept])
    assert files(path) == before


def test_a_link_to_what_the_run_reads_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "start").mkdir()
    path = fine_tuning(tmp_path / "ft")
    (path / "model" / "config.json").unlink()
    (path / "model").rmdir()
    (path / "model").symlink_to(tmp_path / "start")
    with pytest.raises(InputError, match="which this run reads"):
        force(path, keeps=[tmp_path / "start"])


@pytest.mark.parametrize(
    "name", ["model/.git/HEAD", "evaluation/mine/run.json", "seed-0/run/checkpoints/suite.json"]
)
def test_force_keeps_other_runs_and_repositories(tmp_path: Path, name: str) -> None:
    path = fine_tuning(tmp_path / "ft")
    (path / name).parent.mkdir(parents=True)
    (path / name).touch()
    before = files(path)
    with pytest.raises(
        InputError, match="lies in .*, so --force will not delete it: move it, or choose another"
    ):
        force(path)
    assert files(path) == before


def test_force_never_pulls_a_live_run_away(tmp_path: Path) -> None:
    path = fine_tuning(tmp_path / "ft")
    before = files(path)
    with RunFolder(path, ASKED, kind="finetune"), pytest.raises(InputError, match="ft is in use by process"):
        force(path)
    with RunFolder(path / "seed-0" / "run", CONFIG), pytest.raises(InputError, match="run is in use"):
        force(path)
    folder = RunFolder(path, ASKED, kind="finetune", force=True)
    run = RunFolder(path / "seed-0" / "run", CONFIG)  # it came to work since
    with closing(folder), closing(run), pytest.raises(InputError, match="run is in use by process"):
        folder.clear()
    assert files(path) == before


def test_tasks_share_a_folder_that_force_wants_alone(tmp_path: Path) -> None:
    asked = {"model": "Ti/16"}
    with RunFolder(tmp_path, asked, kind="vtab", is_shared=True):
        RunFolder(tmp_path, asked, kind="vtab", is_shared=True).close()
        with pytest.raises(InputError, match="is in use"):
            RunFolder(tmp_path, asked, kind="vtab", is_shared=True, force=True)


def test_a_shared_folder_is_not_taken_back_while_others_work_there(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"model": "Ti/16"}
    options: dict[str, Any] = {"kind": "vtab", "is_shared": True}
    first = RunFolder(tmp_path / "run", asked, **options)
    second = RunFolder(tmp_path / "run", asked, **options)
    first.withdraw()
    assert files(tmp_path / "run") == {".lock", "vtab.json"}
    second.close()


def test_force_removes_the_parts_that_are_named(tmp_path: Path) -> None:
    asked = {"model": "Ti/16"}
    with RunFolder(tmp_path, asked, kind="vtab") as folder:
        for name in ("count", "tuning/count/0.1", "mine"):
            fine_tuning(tmp_path / name)
        for name in ("count.json", "mine.json", "results.json"):
            (tmp_path / name).write_text("{}")
        folder.update(status="done")
    with pytest.raises(InputError, match="count.*, which this run reads"):
        force(tmp_path, "vtab", asked, parts=["count"], keeps=[tmp_path / "count"])
    force(tmp_path, "vtab", asked, parts=["count", "dtd"])
    assert {name.split("/")[0] for name in files(tmp_path)} == {"vtab.json", ".lock", "mine", "mine.json"}


OLD = {
    "finetune": {"request": ASKED, "status": "running"},
    "vtab": {"model": "Ti/16", "data": "shapes", "protocol": "vit", "seeds": 1, "sweep": None, "steps": None},
}


@pytest.mark.parametrize("kind", OLD)
def test_records_of_earlier_versions(tmp_path: Path, kind: str) -> None:
    asked = ASKED if kind == "finetune" else OLD[kind]
    (tmp_path / records.KINDS[kind].record).write_text(json.dumps(OLD[kind]))
    (tmp_path / "results.json").touch()
    with RunFolder(tmp_path, asked, kind=kind) as folder:
        assert folder.record["status"] == "running"
    with pytest.raises(InputError, match="other settings: model is"):
        RunFolder(tmp_path, {**asked, "model": "S/16"}, kind=kind)
    force(tmp_path, kind, asked)
    assert read_record(tmp_path, kind)["format"] == records.FORMAT


def test_changes_that_differ_are_named(tmp_path: Path) -> None:
    RunFolder(tmp_path / "tuned", {**ASKED, "changes": ["minutes=1", "seed=3"]}, kind="finetune").close()
    other = {**ASKED, "changes": ["minutes=2", "seed=3"]}
    with pytest.raises(InputError, match="with other settings: minutes is 1 there, 2 here; "):
        RunFolder(tmp_path / "tuned", other, kind="finetune")
    with pytest.raises(InputError, match="with other settings: minutes is 1 there, unset here; "):
        RunFolder(tmp_path / "tuned", {**ASKED, "changes": ["seed=3"]}, kind="finetune")
