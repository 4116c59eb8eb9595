"""The loop: accumulated gradients equal the large batch, what is not finite is never kept, each setting does something."""

from __future__ import annotations

import ast
import dataclasses
import errno
import json
import re
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import vitkit
from tests.training import tiny_runs
from vitkit import train
from vitkit.errors import InputError
from vitkit.runs import list_runs, read_metrics, read_record
from vitkit.training import checkpoints
from vitkit.training.config import TrainConfig
from vitkit.training.recipes import resolve


def weights(path: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tiny_runs.tensors(path).items() if name.startswith("objective.")}


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_accumulated_gradients_equal_the_large_batch(precision: str, tmp_path: Path) -> None:
    # Steps in bfloat16 drift apart, the sooner the larger they are.
    rate, tolerance = (0.1, 1e-5) if precision == "float32" else (0.01, 5e-2)
    changes = [
        "optimizer.name=sgd",
        f"optimizer.learning_rate={rate}",
        f"precision={precision}",
        "duration=6",
    ]
    tiny_runs.run_tiny(tmp_path / "whole", *changes)
    tiny_runs.run_tiny(tmp_path / "parts", *changes, "micro_batch=4")
    for whole, parts in zip(
        tiny_runs.lines(tmp_path / "whole"), tiny_runs.lines(tmp_path / "parts"), strict=True
    ):
        assert parts == pytest.approx(whole, rel=tolerance, abs=tolerance)
    theirs = weights(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "parts").items():
        torch.testing.assert_close(tensor, theirs[name], rtol=tolerance, atol=tolerance)
        assert tensor.dtype == torch.float32
    assert read_record(tmp_path / "parts")["micro_batch"] == 4


def test_a_micro_batch_holds_whole_groups(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        tiny_runs.run_tiny(tmp_path / "run", "micro_batch=2")
    assert str(error.value) == "micro_batch 2 doesn't divide 16 images into whole groups of 4: try 16, 8, 4"


@pytest.mark.parametrize("every", [pytest.param("evaluate", marks=pytest.mark.slow), "checkpoint", "log"])
def test_what_is_not_finite_stops_the_run_and_is_not_kept(every: str, tmp_path: Path) -> None:
    """Whatever comes first after the bad step, a line, a measurement or a checkpoint, finds it."""
    run = tmp_path / "run"
    periods = {"log": 100, "evaluate": 100, "checkpoint": 100, every: 1}
    changes = [f"{name}_every={value}" for name, value in periods.items()]
    bad = [
        *changes,
        "optimizer.name=sgd",
        "optimizer.learning_rate=1e30",
        "optimizer.clip_norm=null",
        "schedule.warmup=0",
    ]
    with pytest.raises(InputError) as error:
        tiny_runs.run_tiny(run, *bad)
    message = str(error.value)
    assert re.fullmatch(
        r"loss or gradient is not finite at step 2; checkpoints from before it are kept\. Lower .*", message
    )
    record = read_record(run)
    assert (record["status"], record["message"]) == ("failed", message)
    assert [line["step"] for line in read_metrics(run)] == ([] if every == "checkpoint" else [1])
    found = checkpoints.latest(run / "checkpoints", pytest.fail)
    assert (found.step if found else None) == (1 if every == "checkpoint" else None)
    with pytest.raises(InputError, match="not finite at step 2"):  # the same again, from the checkpoint
        train(run, device="cpu")
    [row] = list_runs(run)
    assert row.status == "failed"


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    run, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))

    try:
        with pytest.raises(InputError) as error:
            tiny_runs.run_tiny(run, "model.width=32", "evaluate_every=12", at={5: fill})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(error.value) == f"{run}/checkpoints/00000008 can't be written: File too large"
    assert read_record(run)["status"] == "failed"
    listener = tiny_runs.Listener()
    assert tiny_runs.run_tiny(run, "model.width=32", "evaluate_every=12", listener=listener).status == "done"
    assert listener.started == 4


def test_no_room_even_for_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that is told is the first one, not that its telling failed."""

    def full() -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

        monkeypatch.setattr("vitkit.training.checkpoints.dcp.save", fail)
        monkeypatch.setattr("os.fsync", fail)

    with pytest.raises(InputError, match="metrics.jsonl can't be written: No space left on device"):
        tiny_runs.run_tiny(tmp_path / "run", at={7: full})


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recipe = tiny_runs.write_recipe(tmp_path)
    with pytest.raises(InputError, match="file/run can't be written: Not a directory"):
        tiny_runs.run_tiny(tmp_path / "file" / "run", recipe=recipe)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    for force in (False, True):
        with pytest.raises(InputError, match="holds 'thesis.tex' and no config.yaml: not a training run"):
            tiny_runs.run_tiny(tmp_path / "run", force=force)


# What each setting changes: metrics, final weights, or something else.
CHANGES = {
    "data.train": "digits:train[:64]",
    "data.evaluate": "digits:test[:40]",
    "data.pipeline": "flip",
    "data.mix_until": "3",
    "data.sampling": "balanced",
    "data.group": "8",
    "duration": "6",
    "batch_size": "32",
    "optimizer.learning_rate": "1e-4",
    "optimizer.weight_decay": "0.5",
    "optimizer.clip_norm": "0.1",
    "schedule.name": "linear",
    "schedule.warmup": "4",
    "objective.loss": "sigmoid",
    "objective.label_smoothing": "0.2",
    "preprocessing.mean": "[0.1, 0.1, 0.1]",
    "preprocessing.std": "[0.1, 0.1, 0.1]",
    "preprocessing.crop_fraction": "0.5",
    "average": "0.5",
    "precision": "bfloat16",
    "seed": "3",
    "log_every": "3",
    "evaluate_every": "3",
    "model.dropout": "0.3",
    "model.depth": "1",
}
# Settings that another test is about, as file and function.
_MAE = "training/test_loop.py::test_masked_autoencoding_trains_resumes_and_is_a_start"
_FROZEN = "training/test_loop.py::test_frozen_features_are_measured_as_it_trains"
_KEPT = "training/test_loop.py::test_checkpoints_are_kept_as_asked"
ELSEWHERE = {
    **{
        f"objective.{name}": _MAE
        for name in ("mask_share", "decoder_width", "decoder_depth", "patch_norm", "name")
    },
    **{f"frozen.{name}": _FROZEN for name in ("evaluators", "data", "shots", "neighbours", "every")},
    "objective.corrupt_share": "training/test_unlabelled.py::test_every_setting_changes_the_loss",
    "objective.target": "training/test_unlabelled.py::test_every_setting_changes_the_loss",
    "name": "runs/test_folder.py::test_names_follow_the_settings",
    "data.workers": "data/test_loader.py::test_workers_change_nothing",
    "data.cache": "data/test_fetch.py::test_pictures_are_kept_as_they_are",
    "data.bad_images": "data/test_loader.py::test_too_many_bad_images_end_training_and_any_number_may_be_allowed",
    "preprocessing.interpolation": "data/test_images.py::test_interpolation_counts_where_the_input_is_not_square",
    "select": "training/test_loop.py::test_which_weights_are_the_model",
    "compile": "training/test_loop.py::test_compiled",
    "activation_checkpointing": "training/test_loop.py::test_activation_checkpointing_changes_no_number",
    "micro_batch": "training/test_loop.py::test_accumulated_gradients_equal_the_large_batch",
    "parallel": "training/test_distributed.py::test_two_processes_then_one_then_two_give_the_curve_of_one",
    "checkpoint_every": _KEPT,
    "keep_checkpoints": _KEPT,
    "track": "training/test_run.py::test_trackers_get_every_line",
}


@pytest.mark.parametrize("where", sorted(set(ELSEWHERE.values())))
def test_the_tests_of_other_settings_exist(where: str) -> None:
    file, _, name = where.partition("::")
    tree = ast.parse(Path(__file__).parents[1].joinpath(file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("plain") / "run"
    tiny_runs.run_tiny(run, "checkpoint_every=12")
    return run


@pytest.mark.parametrize("name", CHANGES)
def test_every_setting_changes_something(name: str, plain: Path, tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path / "run", "checkpoint_every=12", f"{name}={CHANGES[name]}")
    assert tiny_runs.lines(tmp_path / "run") != tiny_runs.lines(plain)


def test_every_setting_is_tested(tmp_path: Path) -> None:
    config = resolve(tiny_runs.write_recipe(tmp_path))
    names = set()
    for field in dataclasses.fields(TrainConfig):
        value = getattr(config, field.name)
        inner = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        names |= {f"{field.name}.{part.name}" for part in inner} or {field.name}
    own = {name for name in names if name.startswith(("optimizer.", "schedule."))}  # tests of their own files
    assert names - own - {"model"} <= CHANGES.keys() | ELSEWHERE.keys()


def test_frozen_features_are_measured_as_it_trains(plain: Path, tmp_path: Path) -> None:
    changes = ["frozen.evaluators=[fewshot, knn, probe]", "frozen.data=digits:train[:300]", "frozen.every=4"]
    changes += ["frozen.shots=2", "frozen.neighbours=3", "duration=8"]
    result = tiny_runs.run_tiny(tmp_path / "run", *changes)
    lines = [line for line in read_metrics(tmp_path / "run") if "fewshot_2/accuracy" in line]
    assert [line["step"] for line in lines] == [4, 8]
    for name in ("fewshot_2", "knn_3", "probe"):
        assert 0 <= lines[-1][f"{name}/accuracy"] <= 1
    assert result.metrics["knn_3/accuracy"] == lines[-1]["knn_3/accuracy"]
    model = vitkit.load(tmp_path / "run", device="cpu")
    from vitkit.evaluation.knn import KNN

    train, test = (vitkit.open_data(data) for data in ("digits:train[:300]", "digits:test"))
    x, x_test = (model.embed(source.images) for source in (train, test))
    expected = (KNN(3).fit(x, train.labels).predict(x_test) == test.labels).mean()
    assert lines[-1]["knn_3/accuracy"] == pytest.approx(expected, abs=0.02)


def test_checkpoints_are_kept_as_asked(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path / "run", "checkpoint_every=3", "keep_checkpoints=3", "duration=10")
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["00000006", "00000009", "00000010"]


def test_activation_checkpointing_changes_no_number(plain: Path, tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path / "run", "activation_checkpointing=true", "checkpoint_every=12")
    assert tiny_runs.differences(plain, tmp_path / "run") == []


@pytest.mark.parametrize("average", ["0.9", pytest.param("null", marks=pytest.mark.slow)])
def test_which_weights_are_the_model(average: str, tmp_path: Path) -> None:
    """model/ has the average where there is one, of the best step or the last; model-last/ the raw last ones."""
    for select in ("best", "last"):
        run = tmp_path / select
        # A rate that ruins the weights after the first measurement makes the first one the best.
        tiny_runs.run_tiny(
            run, f"average={average}", f"select={select}", "evaluate_every=3", "schedule.name=constant",
            "schedule.warmup=0", "optimizer.learning_rate=0.03", "objective.loss=softmax",
        )  # fmt: skip
        state = tiny_runs.tensors(run)
        prefix = "objective.model" if average == "null" else "average"
        last = {name.removeprefix("objective.model."): value for name, value in state.items()}
        best = read_record(run)["best"]
        values = [
            (line[best["metric"]], line["step"]) for line in read_metrics(run) if best["metric"] in line
        ]
        assert best["value"] == max(value for value, _ in values)
        assert best["step"] == max(step for value, step in values if value == best["value"])
        assert best["metric"] == ("test/accuracy" if average == "null" else "test_ema/accuracy")
        model = vitkit.load(run / "model", device="cpu").model.state_dict()
        is_last = all(torch.equal(value, state[f"{prefix}.{name}"]) for name, value in model.items())
        assert is_last == (select == "last" or best["step"] == 12)
        raw = vitkit.load(run / "model-last", device="cpu").model.state_dict()
        assert all(torch.equal(value, last[name]) for name, value in raw.items())


def test_nothing_to_measure(tmp_path: Path) -> None:
    answer = tiny_runs.run_tiny(tmp_path / "run", "data.evaluate=null")
    assert answer.best is None
    assert (tmp_path / "run/model/model.safetensors").exists()


def test_it_learns(tmp_path: Path) -> None:
    answer = tiny_runs.run_tiny(
        tmp_path / "run", "duration=150", "batch_size=64", "data.train=digits:train", "data.evaluate=digits:test",
        "data.pipeline=", "optimizer.learning_rate=1e-2", "average=null", "log_every=50", "evaluate_every=150",
        "checkpoint_every=150", "model.patch=2", "model.pool=mean",
    )  # fmt: skip
    assert answer.metrics["test/accuracy"] > 0.5
    predictor = vitkit.load(tmp_path / "run", device="cpu")
    assert predictor.class_names == tuple("0123456789")


@pytest.mark.parametrize("name", ["CCT-2/3x2", "BiT-R50x1", "R+Ti/16"])
@pytest.mark.slow
def test_other_families_train_and_resume(name: str, tmp_path: Path) -> None:
    small = {
        "CCT-2/3x2": ["model.width=16", "model.mlp_width=16", "model.heads=2"],
        "BiT-R50x1": ["model.units=[1]"],
        "R+Ti/16": [
            "model.backbone_units=[1]",
            "model.backbone_width=32",
            "model.patch=1",
            "model.depth=1",
        ],
    }[name]
    text = tiny_runs.RECIPE.replace(
        "image_size: 8, patch: 4, width: 16, depth: 2, heads: 2, mlp_width: 32", "image_size: 32"
    )
    recipe = tiny_runs.write_recipe(tmp_path / "recipe", text)
    changes = [
        f"model.name={name}",
        *small,
        "data.pipeline=resize(32)|mixup(0.2)",
        "duration=4",
        "checkpoint_every=2",
    ]
    tiny_runs.run_tiny(tmp_path / "run", *changes, recipe=recipe)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints/00000004")
    tiny_runs.run_tiny(tmp_path / "again", *changes, recipe=recipe)
    assert tiny_runs.differences(tmp_path / "run", tmp_path / "again") == []


@pytest.mark.slow
def test_compiled(plain: Path, tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path / "run", "compile=true")
    for compiled, eager in zip(tiny_runs.lines(tmp_path / "run"), tiny_runs.lines(plain), strict=True):
        assert compiled == pytest.approx(eager, rel=1e-3, abs=1e-3)
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["environment"]["compile_seconds"] > record["seconds"]


def test_graphs_need_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="CUDA GPU; use compile=true"):
        tiny_runs.run_tiny(tmp_path / "run", "compile=graphs")


MAE = ("objective={name: mae, mask_share: 0.5, decoder_width: 16, decoder_depth: 1, patch_norm: false}",)


@pytest.mark.slow
def test_masked_autoencoding_trains_resumes_and_is_a_start(tmp_path: Path) -> None:
    """Through the same loop: each setting changes the loss, and the model, which has no head, starts another run."""
    mae = (*MAE, "data.evaluate=null")
    tiny_runs.run_tiny(tmp_path / "run", *mae)
    losses = {tiny_runs.lines(tmp_path / "run")[-1]["loss"]}
    for change in ("mask_share=0.25", "decoder_width=32", "decoder_depth=2", "patch_norm=true"):
        tiny_runs.run_tiny(tmp_path / change, *mae, f"objective.{change}")
        losses.add(tiny_runs.lines(tmp_path / change)[-1]["loss"])
    assert len(losses) == 5
    tiny_runs.run_tiny(tmp_path / "next", f"model.name={tmp_path / 'run'}")
    assert vitkit.load(tmp_path / "next").class_names == tuple("0123456789")


def test_frozen_weights_stay(tmp_path: Path) -> None:
    for name, freeze in (("free", ""), ("frozen", "optimizer.freeze=[blocks.*]")):
        tiny_runs.run_tiny(tmp_path / name, *filter(None, [freeze, "duration=3"]))
    tiny_runs.run_tiny(tmp_path / "start", "duration=3", "optimizer.learning_rate=1e-30")
    weights = {name: vitkit.load(tmp_path / name).model.state_dict() for name in ("free", "frozen", "start")}
    key = "blocks.0.mlp.fc1.weight"
    assert torch.equal(weights["frozen"][key], weights["start"][key])
    assert not torch.equal(weights["free"][key], weights["start"][key])
    assert not torch.equal(weights["frozen"]["head.weight"], weights["start"]["head.weight"])
