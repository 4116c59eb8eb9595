"""What a caller has opened and loaded already is taken as it is: nothing is opened, loaded or said twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import vitkit
from tests.training.tiny_runs import Listener, differences, run_tiny, write_recipe
from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.runs import read_config
from vitkit.training import build
from vitkit.training.build import Inputs
from vitkit.training.recipes import resolve
from vitkit.training.run import train_config
from vitkit.weights.load import load_model
from vitkit.world import World


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("start") / "run"
    run_tiny(path, "duration=2")
    return path


def opened_inputs(start: Path) -> Inputs:
    train = open_data("digits:train[:128]")
    return Inputs(train, open_data("digits:test[:65]"), load_model(start))


def test_passed_in_equals_opened_here(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [f"model.name={start}", "duration=4"]
    run_tiny(tmp_path / "strings", *changes)
    inputs, config = opened_inputs(start), resolve(write_recipe(tmp_path), changes)
    for name in ("open_data", "load_model"):
        monkeypatch.setattr(build, name, lambda *_, **__: pytest.fail("opened again"))
    train_config(config, tmp_path / "objects", inputs=inputs, device="cpu")
    assert differences(tmp_path / "strings", tmp_path / "objects") == []


def test_a_start_serves_several_runs(start: Path, tmp_path: Path) -> None:
    inputs = opened_inputs(start)
    assert inputs.start is not None
    before = {name: tensor.clone() for name, tensor in inputs.start.model.state_dict().items()}
    changes = [f"model.name={start}", "duration=2", "model.image_size=16", "model.new_head=true"]
    config = resolve(write_recipe(tmp_path), [*changes, "data.pipeline=resize(16)"])
    for name in ("one", "two"):
        train_config(config, tmp_path / name, inputs=inputs, device="cpu")
    after = inputs.start.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert inputs.start.model.config.size == (8, 8)
    assert differences(tmp_path / "one", tmp_path / "two") == []


def test_notes_of_inputs_are_not_repeated(start: Path, tmp_path: Path) -> None:
    inputs = opened_inputs(start)
    assert inputs.train is not None and inputs.measured is not None and inputs.start is not None
    inputs.train.notes, inputs.measured.notes, inputs.start.notes = (
        ("train note",),
        ("test note",),
        ("start note",),
    )
    config = resolve(write_recipe(tmp_path), [f"model.name={start}", "duration=2"])
    listener = Listener()
    train_config(config, tmp_path / "run", inputs=inputs, device="cpu", listener=listener)
    assert not {"train note", "test note", "start note"} & set(listener.notes)
    assert f"starts from {start}" in listener.notes


def test_a_second_build_opens_nothing(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(write_recipe(tmp_path), ["data.cache=ram"])
    world = World(0, 1, torch.device("cpu"))
    first = build.build(config, world)
    monkeypatch.setattr(build, "open_data", lambda *_, **__: pytest.fail("opened again"))
    second = build.build(config, world, first.inputs)
    assert second.source is first.source


def test_train_takes_objects(start: Path, tmp_path: Path) -> None:
    recipe, named = write_recipe(tmp_path), {"data": "digits:train[:64]", "evaluate": "digits:val[:32]"}
    options = {"device": "cpu", "changes": ["duration=2", "average=null"]}
    sources = {name: vitkit.open_data(text) for name, text in named.items()}
    model = vitkit.load(start, device="cpu")
    vitkit.train(recipe, **named, model=str(start), run=str(tmp_path / "strings"), **options)
    vitkit.train(recipe, **sources, model=model, run=str(tmp_path / "objects"), **options)
    assert differences(tmp_path / "strings", tmp_path / "objects") == []
    for run in ("strings", "objects"):
        config = read_config(tmp_path / run)
        assert (config["data"]["train"], config["model"]["name"]) == ("digits:train[:64]", str(start))


def test_other_than_rgb_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^Ti/16 takes 1-channel images; data has 3 channels \(RGB\)$"):
        run_tiny(tmp_path / "run", "model.channels=1")
