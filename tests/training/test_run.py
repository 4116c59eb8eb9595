"""Runs from start to end: trained models as the start, preprocessing, trackers, what a run says of itself."""

from __future__ import annotations

import json
import re
import signal
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.pytorch_data import Digits
from tests.training import tiny_runs
from vitkit import train
from vitkit.errors import InputError
from vitkit.notes import Note, kind_of
from vitkit.runs import read_metrics, read_record
from vitkit.training import estimate
from vitkit.training.recipes import resolve
from vitkit.training.run import run_path as path_of_run

START = tiny_runs.RECIPE.replace(
    "{name: Ti/16, image_size: 8, patch: 4, width: 16, depth: 2, heads: 2, mlp_width: 32}", "{name: START}"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    tiny_runs.run_tiny(run, "preprocessing.mean=[0.2,0.2,0.2]", "average=null", "duration=4")
    return run


def start_from(trained: Path, tmp_path: Path, *changes: str) -> tuple[dict[str, torch.Tensor], Any]:
    """Train from the model with a learning rate of almost nothing; return the weights and what the run said."""
    recipe = tiny_runs.write_recipe(tmp_path, START.replace("START", str(trained / "model-last")))
    listener = tiny_runs.Listener()
    still = ["optimizer.learning_rate=1e-20", "optimizer.weight_decay=0", "duration=2", "average=null"]
    tiny_runs.run_tiny(tmp_path / "run", *still, *changes, recipe=recipe, listener=listener)
    return vitkit.load(tmp_path / "run", device="cpu").model.state_dict(), listener.notes


def test_same_classes_keep_the_head(trained: Path, tmp_path: Path) -> None:
    before = vitkit.load(trained / "model-last", device="cpu")
    after, notes = start_from(trained, tmp_path)
    assert all(torch.equal(after[name], weight) for name, weight in before.model.state_dict().items())
    assert f"starts from {trained / 'model-last'}" in notes
    assert not any("head is new" in note for note in notes)
    assert vitkit.load(tmp_path / "run", device="cpu").preprocessing == before.preprocessing


def test_other_classes_get_a_new_head(trained: Path, tmp_path: Path) -> None:
    before = vitkit.load(trained / "model-last", device="cpu").model.state_dict()
    data = ["data.train='shapes:train[:64,size=8]'", "data.evaluate='shapes:test[:64,size=8]'"]
    data += ["data.pipeline=resize(8)", "data.workers=0"]
    after, notes = start_from(trained, tmp_path, *data)
    classes = len(vitkit.load(tmp_path / "run", device="cpu").class_names or ())
    assert after["head.weight"].shape[0] == classes
    assert f"the head is new, for {classes} classes" in notes
    for name, weight in before.items():
        assert name.startswith("head.") or torch.equal(after[name], weight), name


def test_settings_that_leave_weights_alone_may_change(trained: Path, tmp_path: Path) -> None:
    start_from(trained, tmp_path, "model.dropout=0.25")
    config = json.loads((tmp_path / "run/model/config.json").read_text())
    assert config["vitkit"]["model"]["dropout"] == 0.25


def test_settings_of_the_old_attention_go_with_it(trained: Path, tmp_path: Path) -> None:
    start_from(trained, tmp_path / "local", "model.attention=local", "model.attention_window=3")
    start_from(tmp_path / "local/run", tmp_path / "full", "model.attention=full")
    config = json.loads((tmp_path / "full/run/model/config.json").read_text())["vitkit"]["model"]
    assert (config["attention"], config["attention_window"]) == ("full", None)
    with pytest.raises(InputError, match="attention_stride applies to attention 'sparse', not 'full'"):
        start_from(
            tmp_path / "local/run", tmp_path / "no", "model.attention=full", "model.attention_stride=2"
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.width=32", "model settings don't fit the weights of .*: size mismatch for .*"),
        ("model.layer_scale=0.1", "model settings don't fit the weights of .*"),
        (
            "model.attention=axial",
            "attention 'axial' has other weights than 'full', so training can't start from .*: "
            "change only between full, local, sparse, or train from scratch",
        ),
        ("model.droput=0.1", "unknown setting 'droput' in model; did you mean 'dropout' or .*"),
        ("model.num_classes=5", "num_classes in model differs from the data's 10 classes: remove it"),
    ],
)
def test_settings_that_do_not_fit_the_weights(
    trained: Path, tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        start_from(trained, tmp_path, change)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        tiny_runs.run_tiny(tmp_path / "run", "model.image_size=16")
    assert str(error.value) == "the pipeline gives images of 8x8, but the model takes 16x16: make them equal"


def test_preprocessing_is_the_trained_models(trained: Path) -> None:
    assert vitkit.load(trained, device="cpu").preprocessing.mean == (0.2, 0.2, 0.2)


def test_a_crop_fraction_of_0_squashes(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path / "run", "preprocessing.crop_fraction=0", "duration=2")
    assert vitkit.load(tmp_path / "run", device="cpu").preprocessing.crop_fraction is None


def test_what_a_run_says_before_it_starts(tmp_path: Path) -> None:
    listener = tiny_runs.Listener()
    answer = tiny_runs.run_tiny(tmp_path / "run", listener=listener)
    said = "\n".join(listener.notes)
    for words in (
        "128 images, 10 classes; 12 steps of 16 images",
        "parameters",
        "exaFLOPs",
        "estimated time",
        "shorter:",
    ):
        assert words in said
    assert listener.lines == read_metrics(tmp_path / "run")
    assert answer.cost["parameters"] == sum(
        p.numel() for p in vitkit.load(tmp_path / "run", device="cpu").model.parameters()
    )
    assert set(listener.lines[0]) == {
        "step", "epoch", "loss", "accuracy", "gradient_norm", "learning_rate", "images_per_second", "waiting", "seconds"
    }  # fmt: skip
    assert json.dumps(answer.to_json(), allow_nan=False)
    kinds = [kind_of(note) for note in listener.notes]
    assert kinds == ["estimate", "advice", "warning", "summary"]


def test_where_runs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(tiny_runs.write_recipe(tmp_path))
    assert path_of_run(config, "mine") == Path("runs/mine")
    assert path_of_run(config, "./mine") == Path("mine")
    assert path_of_run(config, "/a/mine") == Path("/a/mine")
    assert str(path_of_run(config, None)).startswith("runs/tiny-")


def test_without_its_package_a_tracker_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    listener = tiny_runs.Listener()
    tiny_runs.run_tiny(tmp_path / "run", "track=[tensorboard, wandb]", "duration=2", listener=listener)
    for name in ("tensorboard", "wandb"):
        line = f'{name} is not installed: pip install "vitkit[track]"; metrics are only in metrics.jsonl'
        assert line in listener.notes


def test_trackers_get_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            assert folder.endswith("/tensorboard")
            seen.append(("opened", 0.0, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            seen.append((name, value, step))

        def close(self) -> None:
            seen.append(("closed", 0.0, 0))

    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=SummaryWriter)
    )
    tiny_runs.run_tiny(tmp_path / "run", "track=[tensorboard]", "duration=5", "log_every=5")
    loss = read_metrics(tmp_path / "run")[0]["loss"]
    assert ("train/loss", loss, 5) in seen
    assert "test_ema/accuracy" in {name for name, _, _ in seen}
    assert (seen[0], seen[-1][0]) == (("opened", 0.0, 1), "closed")
    seen.clear()
    with pytest.raises(InputError, match="not finite"):
        tiny_runs.run_tiny(
            tmp_path / "bad",
            "track=[tensorboard]",
            "optimizer.learning_rate=1e30",
            "optimizer.name=sgd",
            "schedule.warmup=0",
        )
    assert seen[-1][0] == "closed"


def test_the_first_argument_may_be_a_run_only_if_it_is_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        InputError, match="is a folder, not a recipe; if it holds your images: vit finetune MODEL "
    ):
        train(tmp_path / "empty")


def test_a_run_that_could_not_begin_leaves_no_folder(tmp_path: Path) -> None:
    for change in ("model.dropot=0.1", "data.train=./nowhere", "schedule.warmup=100"):
        with pytest.raises(InputError):
            tiny_runs.run_tiny(tmp_path / "runs" / "bad", change)
        assert not (tmp_path / "runs" / "bad").exists()


def test_a_run_that_could_not_begin_removes_nothing_of_others(tmp_path: Path) -> None:
    """Hidden files don't keep a run out of a folder, as of a new repository's; nor does it take them along."""
    folder = tmp_path / "mine"
    (folder / ".git").mkdir(parents=True)
    (folder / ".env").write_text("secret")
    with pytest.raises(InputError):
        tiny_runs.run_tiny(folder, "data.train=./nowhere")
    assert sorted(path.name for path in folder.iterdir()) == [".env", ".git"]


@pytest.mark.slow
def test_changed_data_is_no_longer_the_runs(tmp_path: Path) -> None:
    """Classes are numbered by name: with another name, each output of the head would mean another class."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), np.uint8)
    for number, image in enumerate(pixels):
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "photos" / "ab"[number % 2] / f"{number}.png")
    settings = (
        f"data={{train: {tmp_path}/photos:all, evaluate: null, pipeline: resize(8)}}", "model.channels=3",
        "batch_size=4", "duration=4", "checkpoint_every=2",
    )  # fmt: skip
    run, stop = tmp_path / "run", {2: lambda: signal.raise_signal(signal.SIGTERM)}
    tiny_runs.run_tiny(run, *settings, at=stop)
    (tmp_path / "photos" / "a").rename(tmp_path / "photos" / "c")
    with pytest.raises(
        InputError, match="not what .* started with: they have other names; put the data back"
    ):
        tiny_runs.run_tiny(run, *settings)
    (tmp_path / "photos" / "c").rename(tmp_path / "photos" / "a")
    (tmp_path / "photos" / "a" / "0.png").rename(tmp_path / "0.png")
    with pytest.raises(InputError, match="the data has 7 images, and .*run started with 8: --accept data"):
        tiny_runs.run_tiny(run, *settings)
    (tmp_path / "0.png").rename(tmp_path / "photos" / "a" / "0.png")
    assert tiny_runs.run_tiny(run, *settings).status == "done"
    (tmp_path / "photos").rename(tmp_path / "away")
    with pytest.raises(InputError, match="no such"):
        tiny_runs.run_tiny(run, *settings)
    assert read_record(run)["status"] == "done"


def test_a_run_says_which_model_it_is_and_what_may_surprise(tmp_path: Path) -> None:
    listener = tiny_runs.Listener()
    pipeline = "data.pipeline=flip|randaugment(1,10)"
    changes = ("model.patch=3", "average=0.999", "duration=2", pipeline, "frozen.neighbours=3")
    tiny_runs.run_tiny(tmp_path / "run", *changes, listener=listener)
    said = "\n".join(listener.notes)
    assert all(isinstance(note, Note) for note in listener.notes)
    assert len([note for note in listener.notes if kind_of(note) == "warning"]) == 4
    assert re.search(r"^Ti/16 \(.*patch 3.*\) on digits", said, re.MULTILINE)
    assert (
        "the average of the weights spans about 1,000 steps and the run has 2, so the average will lag behind; average=null turns it off"
        in said
    )
    assert "frozen.neighbours has no effect without knn in frozen.evaluators" in said
    assert re.search(r"patches of 3 cover 6x6 of the 8x8 pixels; the rest is ignored", said)
    assert "randaugment(layers=1,magnitude=10.0) erases 19% of these images completely" in said


@pytest.mark.parametrize(("steps", "advised"), [(25_000, "0.9996"), (1000, "0.99"), (20, "0.5")])
def test_advice_on_averaging_can_be_followed(steps: int, advised: str) -> None:
    config = resolve("digits", ["average=0.9999"])
    said = next(estimate._surprises(config, config.model, steps))
    assert said.endswith(f"average={advised} spans a tenth of it")
    assert resolve("digits", [f"average={advised}"]).average == float(advised)


def test_each_run_is_one_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one name are several, as the seeds of a fine-tuning are; one that is resumed stays itself."""
    asked: list[dict[str, Any]] = []

    def init(**settings: Any) -> types.SimpleNamespace:
        asked.append(settings)
        return types.SimpleNamespace(log=lambda *_, **__: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    stop = {2: lambda: signal.raise_signal(signal.SIGTERM)}
    for seed in (0, 1):
        tiny_runs.run_tiny(tmp_path / f"seed-{seed}" / "run", "track=wandb", "duration=4", at=stop)
    tiny_runs.run_tiny(tmp_path / "seed-1" / "run", "track=wandb", "duration=4")
    first, second, again = (settings["id"] for settings in asked)
    assert first != second == again
    assert asked[0]["name"].endswith("seed-0/run")


@pytest.mark.slow
def test_a_tracker_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("No API key configured.\nUse wandb login")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    listener = tiny_runs.Listener()
    result = tiny_runs.run_tiny(tmp_path / "run", "track=wandb", "duration=2", listener=listener)
    assert result.status == "done"
    assert "wandb can't be used: No API key configured.; metrics are only in metrics.jsonl" in listener.notes


@pytest.mark.slow
def test_the_command_stays_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/vitkit/__main__.py", "train", "tiny", "name=a b"])
    tiny_runs.run_tiny(tmp_path / "run", at={6: lambda: signal.raise_signal(signal.SIGTERM)})
    monkeypatch.setattr(sys, "argv", ["vit", "train", "runs/run"])
    tiny_runs.run_tiny(tmp_path / "run")
    assert read_record(tmp_path / "run")["command"] == "vit train tiny 'name=a b'"


def test_pytorch_data_sets_are_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tiny_runs.write_recipe(tmp_path, tiny_runs.RECIPE)
    test = Digits("digits:test[:65]")
    changes = ["duration=2", "average=null", "data.workers=0", "data.pipeline=resize(8)"]

    def result(data: Digits) -> Any:
        return train(recipe, changes, data=data, evaluate=test, device="cpu")

    first = result(Digits("digits:train[:128]"))
    config = (Path(first.run) / "config.yaml").read_text()
    assert re.search(r"train: torch:Digits-[0-9a-f]{8}\n", config)
    assert re.search(r"evaluate: torch:Digits-[0-9a-f]{8}\n", config)
    assert first.status == "done" and first.classes == 10
    assert vitkit.load(first.run, device="cpu").class_names == tuple("0123456789")
    assert result(Digits("digits:train[:128]")).run == first.run, "the same images are the same run"
    assert result(Digits("digits:train[1:129]")).run != first.run
    with pytest.raises(InputError, match="^torch:Digits-.* opens only in Python: pass the data set itself"):
        train(first.run, device="cpu")


def test_the_model_card_says_how_the_run_came_about(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_runs.run_tiny(run)
    lines = read_metrics(run)
    measured = {line["step"]: line for line in lines if "test/accuracy" in line}
    best = read_record(run)["best"]

    def facts(name: str) -> list[str]:
        text = (run / name / "README.md").read_text()
        return [line for line in text.splitlines() if line.startswith(("- Trained", "- Measured"))]

    trained = "- Trained on `digits:train[:128]`, 128 images, from scratch."
    split = "digits:test[:65], 65 images"
    assert facts("model") == [trained, f"- Measured: accuracy {best['value']:.2%} on {split}."]
    last = measured[max(measured)]["test/accuracy"]  # not that of the average, which model/ holds
    assert facts("model-last") == [trained, f"- Measured: accuracy {last:.2%} on {split}."]
