"""`--explain` shows the config that a run is built from: of recipes, of runs, and of starts that aren't there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training import tiny_runs
from vitkit.errors import InputError
from vitkit.results import as_json
from vitkit.training.build import build_model
from vitkit.training.explain import Explanation, explain
from vitkit.training.recipes import list_recipes, resolve


def settings(document: Explanation) -> dict[str, Any]:
    return {row.name: as_json(row.value) for row in document.settings}


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ([], [8, 8]),
        (["model={name: Ti/16, patch: 4, width: 16, heads: 2}", "data.pipeline=inception_crop(12x16)|mixup(0.2)"], [12, 16]),
        (["model={name: Ti/16}", "data.pipeline=flip|mixup(0.2)"], [224, 224]),
        (["model={name: Ti/16, image_size: [32, 16]}", "data.pipeline=resize(64)|mixup(0.2)"], [32, 16]),
        (["model={name: Ti/16}", "model.image_size=32x16"], [32, 16]),
    ],
)  # fmt: skip
def test_the_image_size_is_the_one_that_is_built(changes: list[str], size: list[int], tmp_path: Path) -> None:
    recipe = tiny_runs.write_recipe(tmp_path)
    shown = settings(explain(recipe, changes))["model.image_size"]
    built, _, _ = build_model(resolve(recipe, changes), ("one", "two"))
    assert shown == size == list(built.config.size)


@pytest.mark.slow
def test_every_recipe_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    starts = {}
    for name in (row["name"] for row in list_recipes()):
        document = explain(name)
        for note in document.notes:
            if "without those of its start" in note:
                starts[name] = note
        assert ("model.channels" in settings(document)) == (name not in starts), name
    first = "model: the settings given alone, without those of its start: no such file or folder: ./runs/"
    assert starts == {
        "imagenet384_cct14": f"{first}imagenet_cct14",
        "flowers102_cct14": f"{first}imagenet384_cct14",
    }


def test_settings_given_beside_a_start_that_is_not_there(tmp_path: Path) -> None:
    recipe = tiny_runs.write_recipe(tmp_path)
    shown = settings(explain(recipe, ["model={name: ./no-such-run, dropout: 0.2}", "seed=7"]))
    assert {key: value for key, value in shown.items() if key.startswith("model.")} == {
        "model.name": "./no-such-run",
        "model.new_head": False,
        "model.dropout": 0.2,
    }
    assert shown["seed"] == 7


def test_an_unknown_model_is_an_error(tmp_path: Path) -> None:
    recipe = tiny_runs.write_recipe(tmp_path)
    with pytest.raises(InputError, match="unknown model 'Tii/16'"):
        explain(recipe, ["model.name=Tii/16"])


def test_runs_and_starts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_runs.run_tiny(run, "duration=2", "model.dropout=0.1")
    document = explain(run)
    recipe = tmp_path / "tiny.yaml"
    assert document.settings == explain(recipe, ["duration=2", "model.dropout=0.1"]).settings
    assert document.notes == (f"run: {run}",)
    with pytest.raises(
        InputError, match="a run has its own settings; to change some, explain its recipe: seed=1"
    ):
        explain(run, ["seed=1"])
    start = ["data.pipeline=resize(16)|mixup(0.2)", f"model={{name: {run}, stochastic_depth: 0.3}}"]
    shown = settings(explain(recipe, start))
    assert (shown["model.width"], shown["model.dropout"], shown["model.stochastic_depth"]) == (16, 0.1, 0.3)
    assert shown["model.image_size"] == [16, 16]
    assert settings(explain(recipe, [*start, "model.image_size=8x16"]))["model.image_size"] == [8, 16]
    with pytest.raises(InputError, match=r"^image_size in model is '8x'; expected a whole number or HEIGHTx"):
        explain(recipe, [*start, "model.image_size=8x"])
