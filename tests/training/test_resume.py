"""A run that was stopped or killed anywhere ends as if it had not been: every bit but timings."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.training import tiny_runs
from vitkit import train
from vitkit.config import from_dict
from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.runs import RunFolder, read_config, read_metrics, read_record
from vitkit.training.build import Inputs
from vitkit.training.config import TrainConfig
from vitkit.training.run import train_config
from vitkit.weights.load import load_model

HERE = Path(__file__).parent
RANDOM = ["model.dropout=0.1", "model.stochastic_depth=0.2"]
SETTINGS: dict[str, list[str]] = {
    "adamw": [*RANDOM, "micro_batch=8"],
    "adam": ["optimizer.name=adam", "average=null", "data.mix_until=50%"],
    "sgd": [*RANDOM, "optimizer.name=sgd", "optimizer.momentum_dtype=bfloat16"],
    "plain sgd": ["optimizer.name=sgd", "optimizer.weight_decay=0", "optimizer.freeze=[blocks.0.*]"],
    "adafactor": [*RANDOM, "optimizer.name=adafactor", "optimizer.layer_decay=0.8", "select=last"],
    **{
        kind: [*RANDOM, "model.attention_dropout=0.1", "model.patch=2", f"model.attention={kind}"]
        for kind in ("axial", "local", "sparse", "linformer", "reformer")
    },
}


def raising(number: signal.Signals, step: int) -> dict[int, object]:
    return {step: lambda: signal.raise_signal(number)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "adamw" else pytest.mark.slow) for name in SETTINGS]
)
def test_stopped_and_resumed_equals_straight_through(name: str, tmp_path: Path) -> None:
    """Stopped between lines and checkpoints, on a measured step, and on one that is saved anyway."""
    changes, one, other = SETTINGS[name], tmp_path / "straight", tmp_path / "stopped"
    assert tiny_runs.run_tiny(one, *changes).status == "done"
    for number, step in ((signal.SIGTERM, 3), (signal.SIGINT, 6), (signal.SIGTERM, 8)):
        answer = tiny_runs.run_tiny(other, *changes, at=raising(number, step))
        assert (answer.status, answer.step, answer.model is None) == (
            "stopped",
            step,
            step < 6 and name != "adafactor",  # which keeps the last weights, not the best measured
        )
        assert read_record(other)["status"] == "stopped"
        assert load_model(f"{other}@last")
    listener = tiny_runs.Listener()
    assert tiny_runs.run_tiny(other, *changes, listener=listener).status == "done"
    assert listener.steps == [9, 10, 11, 12]
    assert tiny_runs.differences(one, other) == []


def test_a_signal_in_the_last_step_ends_the_run_as_done(tmp_path: Path) -> None:
    assert tiny_runs.run_tiny(tmp_path / "run", at=raising(signal.SIGTERM, 12)).status == "done"


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        tiny_runs.run_tiny(tmp_path / "run", at={6: interrupt})
    assert signal.getsignal(signal.SIGINT) is before
    assert read_record(tmp_path / "run")["status"] == "stopped"
    listener = tiny_runs.Listener()
    tiny_runs.run_tiny(tmp_path / "run", listener=listener)
    assert listener.steps[0] == 5


@pytest.mark.slow
def test_the_seed_is_all_there_is_to_chance(tmp_path: Path) -> None:
    for name, changes in {"one": [], "same": [], "other": ["seed=1"]}.items():
        torch.manual_seed(random.randrange(1000))
        tiny_runs.run_tiny(tmp_path / name, *RANDOM, *changes)
    assert tiny_runs.differences(tmp_path / "one", tmp_path / "same") == []
    assert "metrics.jsonl" in tiny_runs.differences(tmp_path / "one", tmp_path / "other")


@pytest.mark.slow
def test_every_comparison_can_fail(tmp_path: Path) -> None:
    """What the tests above compare does differ between runs that are hardly different."""
    tiny_runs.run_tiny(tmp_path / "one")
    tiny_runs.run_tiny(tmp_path / "other", "optimizer.learning_rate=0.003001")
    found = tiny_runs.differences(tmp_path / "one", tmp_path / "other")
    for name in (
        "metrics.jsonl",
        "model/model.safetensors",
        "average.head.weight",
        "objective.model.head.bias",
    ):
        assert name in found
    assert any(name.startswith("optimizer.") for name in found)


@pytest.mark.slow
def test_killed_anywhere_equals_straight_through(tmp_path: Path) -> None:
    """A process that kills its children with SIGKILL at random moments, most of them while they save."""
    subprocess.run([sys.executable, __file__, str(tmp_path)], cwd=HERE.parents[1], check=True, timeout=200)
    assert len(json.loads((tmp_path / "kills.json").read_text())) == 3
    assert tiny_runs.differences(tmp_path / "straight", tmp_path / "killed") == []


@pytest.mark.slow
@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_whole_group_of_processes_saves(tmp_path: Path, sent: signal.Signals) -> None:
    """A terminal and a scheduler signal the data workers too; the run saves and ends with 130 all the same."""
    recipe, run = tiny_runs.write_recipe(tmp_path), tmp_path / "run"
    changes = [
        "data.train=shapes:train[:256,size=8]",
        "data.evaluate=null",
        "data.pipeline=resize(8)|mixup(0.2)",
    ]
    changes += ["data.workers=2", "duration=100000", "log_every=20", "checkpoint_every=10000"]
    command = [
        sys.executable,
        "-m",
        "vitkit",
        "train",
        str(recipe),
        *changes,
        "--run",
        str(run),
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(
        command,
        cwd=HERE.parents[1],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        patience = time.monotonic() + 60
        while not (run / "metrics.jsonl").exists():
            assert process.poll() is None and time.monotonic() < patience
            time.sleep(0.05)
        os.killpg(process.pid, sent)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert read_record(run)["status"] == "stopped"
    assert (run / "checkpoints" / f"{read_record(run)['step']:08d}").is_dir()


@pytest.mark.slow
def test_a_broken_checkpoint_is_warned_of_and_the_one_before_it_taken(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path / "straight")
    tiny_runs.run_tiny(tmp_path / "run", at=raising(signal.SIGTERM, 10))
    for file in (tmp_path / "run/checkpoints/00000010").glob("*.distcp"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    listener = tiny_runs.Listener()
    tiny_runs.run_tiny(tmp_path / "run", listener=listener)
    [warning] = [note for note in listener.notes if "broken" in note]
    assert "00000010 is broken: __0_0.distcp has the wrong checksum; trying the one before it" in warning
    assert listener.started == 8
    assert tiny_runs.differences(tmp_path / "straight", tmp_path / "run") == []


def test_no_whole_checkpoint_is_an_error(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path / "run", at=raising(signal.SIGTERM, 3))
    (tmp_path / "run/checkpoints/00000003/manifest.json").unlink()
    with pytest.raises(InputError, match="all checkpoints in .* are broken; restore one"):
        tiny_runs.run_tiny(tmp_path / "run")
    assert read_record(tmp_path / "run")["status"] == "failed"


@pytest.mark.slow
def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_runs.run_tiny(run)
    expected = tiny_runs.lines(run)
    shutil.rmtree(run / "checkpoints/00000012")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 13, "lo')  # a kill in the middle of a line
    seen = []

    class Watching(tiny_runs.Listener):  # type: ignore[misc]
        def start(self, step: int, total: int) -> None:
            seen.extend([step, total, max(line["step"] for line in read_metrics(run))])

    tiny_runs.run_tiny(run, listener=Watching())
    assert seen == [8, 12, 6]
    assert tiny_runs.lines(run) == expected


@pytest.mark.slow
def test_seconds_add_up_over_parts(tmp_path: Path) -> None:
    wait = {2: lambda: time.sleep(0.3), 3: lambda: signal.raise_signal(signal.SIGTERM)}
    first = tiny_runs.run_tiny(tmp_path / "run", at=wait).seconds
    assert first >= 0.3
    assert tiny_runs.run_tiny(tmp_path / "run").seconds > first
    seconds = [line["seconds"] for line in read_metrics(tmp_path / "run")]
    assert seconds == sorted(seconds) and seconds[0] > 0.3


def test_a_run_folder_resumes_itself_and_takes_no_settings(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_runs.run_tiny(run, at=raising(signal.SIGTERM, 5))
    with pytest.raises(InputError, match="a run resumes with its own settings, not with seed=1; "):
        train(run, ["seed=1"])
    with pytest.raises(InputError, match="is a run and resumes where it is: leave out --run other"):
        train(run, run="other")
    listener = tiny_runs.Listener()
    assert train(run, device="cpu", listener=listener).status == "done"
    assert listener.steps[0] == 6


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_runs.run_tiny(run)
    before = tiny_runs.model_files(run), tiny_runs.lines(run)
    listener = tiny_runs.Listener()
    assert tiny_runs.run_tiny(run, listener=listener).status == "done"
    assert (listener.started, listener.steps) == (12, [])
    assert (tiny_runs.model_files(run), tiny_runs.lines(run)) == before


@pytest.mark.slow
def test_force_begins_anew_but_not_in_a_run_at_work(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_runs.run_tiny(run, "duration=4")
    with pytest.raises(InputError, match="holds a run with other settings: duration is 4 there, 12 here"):
        tiny_runs.run_tiny(run)
    with closing(RunFolder(run, read_config(run))):
        for force in (False, True):
            with pytest.raises(InputError, match="is in use"):
                tiny_runs.run_tiny(run, "duration=4", force=force)
    assert (run / "model").is_dir()
    before = tiny_runs.model_files(run)
    with pytest.raises(InputError, match="no such file"):
        tiny_runs.run_tiny(run, "data.train=./nowhere", force=True)
    for start in (run, f"{run}@last", run / "model"):
        with pytest.raises(InputError, match="run holds .*, which this run reads and would overwrite"):
            tiny_runs.run_tiny(run, f"model={{name: {start}}}", force=True)
    assert tiny_runs.model_files(run) == before  # a run that can't begin doesn't remove the one that is there
    assert read_record(run)["status"] == "done"
    assert tiny_runs.run_tiny(run, force=True).step == 12
    assert read_config(run)["duration"] == 12


def test_a_run_that_met_an_unreadable_image_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to do with such images changes nothing of what was trained: neither the run's name nor its steps."""
    monkeypatch.chdir(tmp_path)
    for number in range(20):
        path = tmp_path / "photos" / "train" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (10 * number, 0, 0)).save(path)
    bad, stop = tmp_path / "photos/train/a/6.png", {4: lambda: signal.raise_signal(signal.SIGTERM)}
    recipe = tiny_runs.write_recipe(tmp_path)
    data = ["data.train=./photos:train", "data.evaluate=null", "data.pipeline=resize(8)", "data.workers=0"]
    run = train(recipe, data, device="cpu", listener=tiny_runs.Listener(stop)).run
    bad.write_bytes(b"no image")
    with pytest.raises(InputError, match="6.png.*data.bad_images=skip"):
        train(recipe, [*data, "data.bad_images=error"], device="cpu")
    listener = tiny_runs.Listener()
    found = train(recipe, data, device="cpu", listener=listener)
    assert (found.run, found.status, found.step) == (run, "done", 12)
    assert [entry.image for entry in found.unreadable] == ["./photos/train/a/6.png"]
    assert tiny_runs.warnings(listener)[-1] == (
        "skipped 1 unreadable image of ./photos:train: ./photos/train/a/6.png (it is not an image in a known format); "
        "`vit data ./photos` lists them all"
    )
    assert read_config(run)["data"]["bad_images"] == "skip"
    again = train(recipe, [*data, "data.bad_images=any"], device="cpu")  # done already, as it was trained
    assert read_config(run)["data"]["bad_images"] == "skip" and again.unreadable == found.unreadable


def photos_and_changes(folder: Path) -> list[str]:
    """Write 20 photos of two classes; return the changes of a run on them."""
    for number in range(20):
        path = folder / "photos" / "train" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (10 * number, 0, 0)).save(path)
    data = [f"data.train={folder / 'photos'}:train", "data.evaluate=null", "data.pipeline=resize(8)"]
    return [*data, "data.workers=0", "duration=10 epochs", "checkpoint_every=2"]


def test_images_met_before_a_stop_count_towards_too_many_after_it(tmp_path: Path) -> None:
    """Unless they can be read by then, so that what was repaired stops nothing."""
    changes = photos_and_changes(tmp_path)
    photos = tmp_path / "photos" / "train"
    stop = {4: lambda: signal.raise_signal(signal.SIGTERM)}
    for number in (0, 2):
        (photos / f"a/{number}.png").write_bytes(b"no image")
    run = tmp_path / "run"
    assert len(tiny_runs.run_tiny(run, *changes, at=stop).unreadable) == 2
    (photos / "b/1.png").write_bytes(b"no image")
    for _ in range(2):
        with pytest.raises(InputError, match="^3 of 20 images of .*photos:train can't be read"):
            tiny_runs.run_tiny(run, *changes)
    for number in (0, 2):
        Image.new("RGB", (8, 8)).save(photos / f"a/{number}.png")
    found = tiny_runs.run_tiny(run, *changes)
    assert found.status == "done" and [Path(entry.image).name for entry in found.unreadable] == ["1.png"]


def test_a_run_resumes_without_a_removed_image_when_that_is_accepted(tmp_path: Path) -> None:
    changes = photos_and_changes(tmp_path)
    photos, run = tmp_path / "photos" / "train", tmp_path / "run"
    stop = {4: lambda: signal.raise_signal(signal.SIGTERM)}
    steps = tiny_runs.run_tiny(run, *changes, at=stop).steps
    assert steps == 13  # 12.5 of 16 images
    for name in ("a/0.png", "a/2.png", "b/1.png"):
        (photos / name).unlink()
    with pytest.raises(InputError) as error:
        tiny_runs.run_tiny(run, *changes)
    assert str(error.value) == (
        f"the data has 17 images, and {run} started with 20: --accept data (accept='data' in Python) resumes with the "
        "current images, --force (force=True) starts over"
    )
    with pytest.raises(
        InputError, match="^--accept is 'dta'; expected data, which accepts added and removed images$"
    ):
        tiny_runs.run_tiny(run, *changes, accept="dta")
    again = tiny_runs.Listener({8: lambda: signal.raise_signal(signal.SIGTERM)})
    found = tiny_runs.run_tiny(run, *changes, accept=("data",), listener=again)
    assert (again.started, found.step, found.steps) == (4, 8, steps)
    assert {name: read_record(run)["data"][name] for name in ("images", "began_with")} == {
        "images": 17,
        "began_with": 20,
    }
    found = tiny_runs.run_tiny(run, *changes)  # what was accepted is the run's data now
    assert (found.status, found.step) == ("done", steps)
    (photos / "b/3.png").unlink()
    assert tiny_runs.run_tiny(run, *changes).status == "done"  # a finished run needs no data
    assert tiny_runs.run_tiny(run, *changes, force=True).steps == 10


def test_other_classes_are_refused_even_where_data_may_change(tmp_path: Path) -> None:
    changes = photos_and_changes(tmp_path)
    run = tmp_path / "run"
    tiny_runs.run_tiny(run, *changes, at={4: lambda: signal.raise_signal(signal.SIGTERM)})
    (tmp_path / "photos/train/c").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "photos/train/c/new.png")
    with pytest.raises(InputError) as error:
        tiny_runs.run_tiny(run, *changes, accept="data")
    assert str(error.value) == (
        f"the classes of the data are not what {run} started with: 2 then, 3 now; put the data back, start over with "
        "--force, or choose another --run"
    )


@pytest.mark.slow
def test_settings_that_change_nothing_trained_may_change_on_the_way(tmp_path: Path) -> None:
    run, stop = tmp_path / "run", {6: lambda: signal.raise_signal(signal.SIGTERM)}
    tiny_runs.run_tiny(run, at=stop)
    with pytest.raises(InputError, match="a run resumes with its own settings, not with seed=1"):
        train(run, ["log_every=2", "seed=1"], device="cpu")
    assert train(run, ["log_every=2"], device="cpu").status == "done"
    assert read_config(run)["log_every"] == 2
    steps = [line["step"] for line in read_metrics(run) if "loss" in line]
    assert steps == [5, 8, 10, 12]
    tiny_runs.run_tiny(tmp_path / "straight")
    assert tiny_runs.model_files(tmp_path / "straight") == tiny_runs.model_files(run)


def test_force_removes_nothing_but_runs(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    for name in ("config.yaml", "thesis.py"):
        (tmp_path / "project" / name).write_text("a: 1")
    with pytest.raises(
        InputError,
        match="run.json is missing; not a training run of vitkit, so --force will not delete it",
    ):
        tiny_runs.run_tiny(tmp_path / "project", force=True)
    assert (tmp_path / "project" / "thesis.py").exists()


def test_a_run_of_an_older_version_goes_on_without_settings_that_have_come_since(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stop = {6: lambda: signal.raise_signal(signal.SIGTERM)}
    assert tiny_runs.run_tiny(run, at=stop).status == "stopped"
    config = (run / "config.yaml").read_text()
    older = re.sub(r"frozen:\n(  .*\n)+", "", config)
    assert older != config
    (run / "config.yaml").write_text(older)
    assert train(run, device="cpu").status == "done"


def test_the_best_is_cut_back_with_the_metrics(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_runs.run_tiny(run, at={8: lambda: signal.raise_signal(signal.SIGTERM)})
    record = json.loads((run / "run.json").read_text())
    measured = {
        line["step"]: line["test_ema/accuracy"]
        for line in tiny_runs.lines(run)
        if "test_ema/accuracy" in line
    }
    assert record["best"]["step"] in measured
    (run / "run.json").write_text(
        json.dumps({**record, "best": {**record["best"], "value": 0.99, "step": 11}})
    )
    result = tiny_runs.run_tiny(run)
    lines = {
        line["step"]: line["test_ema/accuracy"]
        for line in tiny_runs.lines(run)
        if "test_ema/accuracy" in line
    }
    assert result.best.value == max(lines.values()) < 0.99


def test_what_is_other_than_before_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, listener = tmp_path / "run", tiny_runs.Listener()
    tiny_runs.run_tiny(run, at={6: lambda: signal.raise_signal(signal.SIGTERM)})
    learned, source = open_data("digits:train[:128]"), open_data("digits:test[:65]")
    for changed in (learned, source):
        changed.labels = changed.labels[::-1].copy()
    config = from_dict(TrainConfig, read_config(run), "the run")
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    train_config(config, run, inputs=Inputs(learned, source), device="cpu", listener=listener)
    assert [re.split("[:;]", line)[0] for line in tiny_runs.warnings(listener)] == [
        "resumed with 3 CPU threads, started with 1 CPU thread",
        "the training data has changed since the run started (labels, files or modification times)",
        "the evaluation data has changed since the run started (labels, files or modification times)",
    ]
    again = tiny_runs.Listener()
    tiny_runs.run_tiny(run, listener=again)  # it is done
    assert not tiny_runs.warnings(again)


def test_a_run_resumes_whose_record_is_older_than_fingerprints(tmp_path: Path) -> None:
    run, listener = tmp_path / "run", tiny_runs.Listener()
    tiny_runs.run_tiny(run, at={6: lambda: signal.raise_signal(signal.SIGTERM)})
    record = read_record(run)
    for part in ("data", "measured"):
        assert {*record[part]} == {"images", "classes", "class_names", "fingerprint"}
        del record[part]["fingerprint"]
    record["measured"]["labels"] = "0123456789abcdef"
    (run / "run.json").write_text(json.dumps(record))
    assert tiny_runs.run_tiny(run, listener=listener).status == "done"
    assert not tiny_runs.warnings(listener)
    assert "fingerprint" in read_record(run)["data"]


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_runs.run_tiny(run, at={6: lambda: signal.raise_signal(signal.SIGTERM)})
    (run / ".model.abcd").mkdir()
    (run / ".run.json.1234.part").write_text("{")
    tiny_runs.run_tiny(run)
    assert [entry.name for entry in run.glob(".*") if entry.name != ".lock"] == []


def main(folder: Path) -> None:
    """Train straight through, and once more with kills; children are forked before torch has any threads."""
    changes = [*RANDOM, "micro_batch=8", "duration=16", "checkpoint_every=2", "evaluate_every=7"]

    def start(name: str) -> int:
        child = os.fork()
        if child:
            return child
        try:
            torch.set_num_threads(1)
            tiny_runs.run_tiny(folder / name, *changes)
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)

    def newest() -> list[str]:
        return sorted(path.name for path in (folder / "killed" / "checkpoints").glob("[0-9]*"))[-1:]

    kills, moment = [], random.Random(0)
    assert os.waitpid(start("straight"), 0)[1] == 0
    for _ in range(3):
        before, child = newest(), start("killed")
        while newest() == before:
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the run ended before it was killed"
            time.sleep(0.001)
        time.sleep(moment.uniform(0, 0.08))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the run ended before it was killed"
        kills.append(newest())
    assert os.waitpid(start("killed"), 0)[1] == 0
    (folder / "kills.json").write_text(json.dumps(kills))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
