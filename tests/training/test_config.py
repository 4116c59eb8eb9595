"""A run's config: recipes and `key=value` become one checked config, and every refusal is one clear line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.training import tiny_runs
from vitkit.config import from_dict, meanings, to_dict
from vitkit.errors import InputError
from vitkit.runs import RunFolder, read_config, run_name
from vitkit.training.build import resolve_periods
from vitkit.training.config import TrainConfig
from vitkit.training.recipes import Setting, explain, list_recipes, resolve


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path: Path = tiny_runs.write_recipe(tmp_path)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("micro_batches=1", "unknown setting 'micro_batches' in the config; did you mean 'micro_batch'?"),
        (
            "optimizer.learning_rat=1",
            "unknown setting 'learning_rat' in optimizer; did you mean 'learning_rate'?",
        ),
        ("data.pipelin=flip", "unknown setting 'pipelin' in data; did you mean 'pipeline'?"),
        ("seed=one", "seed in the config is 'one'; expected a whole number"),
        ("activation_checkpointing=1", "activation_checkpointing in the config is 1; expected true or false"),
        ("optimizer.learning_rate=fast", "learning_rate in optimizer is 'fast'; expected a number"),
        (
            "precision=fp16",
            "precision in the config is 'fp16'; expected one of 'auto', 'float32', 'bfloat16'",
        ),
        ("track=[wand]", "track in the config is ['wand']; expected a list of one of 'tensorboard', 'wandb'"),
        ("micro_batch=0", "micro_batch must be at least 1, not 0"),
        ("batch_size=0", "batch_size must be at least 1, not 0"),
        ("keep_checkpoints=0", "keep_checkpoints must be at least 1, not 0"),
        ("average=1", "average must be above 0 and below 1, not 1"),
        ("data.group=0", "group must be at least 1, not 0"),
        ("model.name=null", "model needs a name, as in model.name=B/16"),
        ("optimizer=adam", "optimizer in the config is 'adam'; expected a mapping of settings"),
        ("seed.x=1", None),
        ("seed", "'seed' is not a setting; expected key=value, such as seed=1"),
        ("=1", "'=1' is not a setting; expected key=value, such as seed=1"),
        ("batch_size.x=1", "'batch_size.x=1': batch_size is 16, which has no settings of its own"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(recipe: Path, change: str, message: str | None) -> None:
    with pytest.raises(InputError) as error:
        resolve(recipe, [change])
    assert "\n" not in str(error.value)
    if message:
        assert str(error.value) == message


def test_values_are_read_as_yaml(recipe: Path) -> None:
    config = resolve(
        recipe,
        [
            "optimizer.learning_rate=1e-5",
            "optimizer.freeze=[blocks.0.*, '*.bias']",
            "average=null",
            "model.class_token=false",
            "data.pipeline=",
            "data.train=shapes:train[size=16,:5%]",
            "duration=3 epochs",
            "preprocessing.mean=[0.5, 0.5, 0]",
        ],
    )
    assert config.optimizer.learning_rate == 1e-5
    assert config.optimizer.freeze == ("blocks.0.*", "*.bias")
    assert (config.average, config.data.pipeline, config.duration) == (None, "", "3 epochs")
    assert config.model["class_token"] is False
    assert config.data.train == "shapes:train[size=16,:5%]"
    assert config.preprocessing.mean == (0.5, 0.5, 0.0)


def test_there_and_back_through_the_run_folder(recipe: Path, tmp_path: Path) -> None:
    config = resolve(recipe, ["optimizer.learning_rate=1e-7", "schedule.name=step", "track=[tensorboard]"])
    RunFolder(tmp_path / "run", to_dict(config)).close()
    assert from_dict(TrainConfig, read_config(tmp_path / "run"), "config.yaml") == config


def test_another_setting_is_another_run(recipe: Path) -> None:
    names = [
        run_name("tiny", to_dict(resolve(recipe, changes)))
        for changes in ([], ["seed=0"], ["seed=1"], ["optimizer.weight_decay=0.1"], ["model.dropout=0.1"])
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 4


def test_periods(recipe: Path) -> None:
    config = resolve(recipe, ["duration=10ep", "log_every=1ep", "evaluate_every=50%", "checkpoint_every=7"])
    periods = resolve_periods(config, 128)
    assert dataclasses.astuple(periods) == (80, 8, 40, 7, 16, 8.0)
    for duration, steps in ((7, 1), (100, 5), (990, 50), (10_000, 50)):
        assert resolve_periods(resolve(recipe, [f"duration={duration}", "log_every=null"]), 1000).log == steps
    for name in ("log_every", "evaluate_every", "checkpoint_every"):
        with pytest.raises(InputError, match=f"{name} must be at least one step, not 0"):
            resolve_periods(resolve(recipe, [f"{name}=0"]), 128)
    with pytest.raises(InputError, match="duration 0 is less than one step"):
        resolve_periods(resolve(recipe, ["duration=0"]), 128)
    with pytest.raises(InputError, match="duration is '5%'; the length of a run must be in steps or epochs"):
        resolve_periods(resolve(recipe, ["duration=5%"]), 128)


def test_an_unknown_recipe_is_answered_with_near_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        resolve("digit")
    assert str(error.value) == "unknown recipe 'digit'; did you mean 'digits'? `vit recipes` lists them all"
    with pytest.raises(InputError, match="no such recipe file: .*none.yaml"):
        resolve(tmp_path / "none.yaml")


def test_a_folder_of_images_is_for_finetune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="^unknown recipe 'pictures'; .* vit finetune MODEL ./FOLDER$"):
        resolve("pictures")
    Path("pictures").mkdir()
    for recipe in ("pictures", "./pictures"):
        with pytest.raises(InputError) as error:
            resolve(recipe)
        message = (
            f"{recipe!r} is a folder, not a recipe; if it holds your images: vit finetune MODEL ./pictures"
        )
        assert str(error.value) == message


def test_a_fine_tuning_is_resumed_by_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"model": "Ti/16", "data": "./my photos", "changes": ["minutes=3"], "sweep": None, "seeds": 2}
    RunFolder("runs/tuned", asked, kind="finetune").close()
    for recipe in ("runs/tuned", "tuned"):
        with pytest.raises(InputError) as error:
            resolve(recipe)
        command = "vit finetune Ti/16 './my photos' minutes=3 --seeds 2 --run runs/tuned"
        assert str(error.value) == f"runs/tuned is a fine-tuning, not a recipe; to resume it: {command}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "tiny.yaml, line 1"),
        ("- a", "tiny.yaml holds no settings; expected lines such as 'seed: 1'"),
        ("seed: 1\nbatch_size: 2\nseed: 2", "tiny.yaml, line 3: seed is given twice"),
        ("model:\n  name: B/16\n  name: L/16", "tiny.yaml, line 3: name is given twice"),
        ("", "tiny.yaml holds no settings"),
        ("seed: 1", "missing setting 'model' in the config"),
        (
            "a: !!python/object/apply:os.system ['true']",
            "tiny.yaml, line 1: could not determine a constructor",
        ),
    ],
)
def test_a_broken_recipe(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        resolve(tiny_runs.write_recipe(tmp_path, text))
    assert str(error.value).startswith(message)


def test_every_setting_has_a_meaning(recipe: Path) -> None:
    config = resolve(recipe)
    sections = [
        config,
        config.data,
        config.optimizer,
        config.schedule,
        config.objective,
        config.preprocessing,
    ]
    for section in sections:
        words = meanings(type(section))
        for field in dataclasses.fields(section):
            assert words[field.name].endswith((".", ").")), field.name


def test_explain_names_every_setting(recipe: Path) -> None:
    document = explain(recipe, ["seed=7"])
    rows = {row.name: row for row in document.settings}
    config = to_dict(resolve(recipe))
    for name, value in config.items():
        assert (
            {f"{name}.{inner}" for inner in value} <= rows.keys() if isinstance(value, dict) else name in rows
        )
    assert rows["seed"] == Setting("seed", 7, "Seed of all randomness.")
    assert rows["model.width"].value == 16
    assert rows["model.registers"].value == 0  # not in the recipe: the model's own
    assert all(row.meaning for row in rows.values())
    assert "about: A tiny ViT on a few digits." in document.notes
    with pytest.raises(InputError, match="did you mean 'dropout'"):
        explain(recipe, ["model.droput=0.1"])


def test_recipes_say_what_they_are() -> None:
    rows = list_recipes()
    assert "digits" in {row["name"] for row in rows}
    for row in rows:
        assert row["about"] and f"train {row['name']}" in row["command"], row["name"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("schedule={name: constant, warmup_from: 1e-5}", "warmup_from does not apply without a warm-up"),
        (
            "data={train: digits, mix_until: 3}",
            "mix_until does not apply to a pipeline that doesn't mix images",
        ),
        (
            "optimizer={name: sgd, momentum: 0, momentum_dtype: bfloat16}",
            "momentum_dtype does not apply without momentum",
        ),
        ("optimizer={decay: all}", "decay does not apply without weight_decay"),
        (
            "seed=99999999999999999999999",
            "seed must be below 2**63, not 99999999999999999999999",
        ),
    ],
)
def test_a_setting_that_would_do_nothing_or_break_is_refused(change: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        resolve("digits", [change])
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        ("lr=0.1", "optimizer.learning_rate"),
        ("epochs=3", "duration"),
        ("warmup=5", "schedule.warmup"),
        ("optimizer.lr=0.1", "optimizer.learning_rate"),
    ],
)
def test_a_setting_by_another_word_or_without_its_section_is_found(change: str, meant: str) -> None:
    with pytest.raises(InputError) as raised:
        resolve("digits", [change])
    assert (
        str(raised.value)
        == f"unknown setting {change.partition('=')[0]!r} in the config; did you mean {meant!r}?"
    )


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ("track=tensorboard", "track", ("tensorboard",)),
        ("duration=1e3", "duration", 1000),
        ("batch_size=64.0", "batch_size", 64),
    ],
)
def test_one_value_is_a_list_and_1e3_a_whole_number(change: str, name: str, value: object) -> None:
    assert getattr(resolve("digits", [change]), name) == value


def test_a_number_with_a_tail_is_no_number() -> None:
    with pytest.raises(InputError, match="learning_rate in optimizer is '1e-3x'; expected a number"):
        resolve("digits", ["optimizer.learning_rate=1e-3x"])
