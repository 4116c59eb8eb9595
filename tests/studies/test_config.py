"""A study's file: what its grid stands for, and one clear line for each way in which it can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.studies.config import STUDIES, expand, first_images, read_study, study_config

TINY = {"recipe": "digits", "settings": {"duration": 3}}


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def runs(**settings):
    return list(expand(study_config({**TINY, **settings}, "mine.yaml"), "mine.yaml"))


def test_a_grid_is_every_combination_with_the_first_seed_first() -> None:
    found = runs(
        grid={
            "seed": [0, 1],
            "model": {"small": {}, "wide one": {"model": {"width": 128}}},
            "images": [100, 400],
        }
    )
    assert [run.name for run in found] == [
        *("seed-0_small_images-100", "seed-0_small_images-400"),
        *("seed-0_wide-one_images-100", "seed-0_wide-one_images-400"),
        *("seed-1_small_images-100", "seed-1_small_images-400"),
        *("seed-1_wide-one_images-100", "seed-1_wide-one_images-400"),
    ]
    last = found[-1]
    assert last.labels == {"seed": "1", "model": "wide one", "images": "400"}
    assert (last.config.seed, last.config.model["width"], last.config.duration) == (1, 128, 3)
    assert last.config.data.train == "digits:train[:400,seed=0]"


def test_runs_are_combined_with_the_grid_and_may_have_their_own_recipe() -> None:
    found = runs(
        runs=({"name": "a", "group": "depth"}, {"name": "b", "recipe": "shapes", "group": ["depth", "all"]}),
        grid={"optimizer.learning_rate": [1e-3, 3e-3]},
    )
    assert [run.name for run in found] == [
        *("a_learning-rate-0.001", "a_learning-rate-0.003", "b_learning-rate-0.001", "b_learning-rate-0.003")
    ]
    assert [run.groups for run in found] == [("depth",), ("depth",), ("depth", "all"), ("depth", "all")]
    assert [run.config.name for run in found] == ["digits", "digits", "shapes", "shapes"]
    assert [run.config.optimizer.learning_rate for run in found] == [1e-3, 3e-3, 1e-3, 3e-3]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"grids": {}}, "unknown setting 'grids' in mine.yaml; did you mean 'grid'?"),
        ({}, "mine.yaml has neither grid nor runs: give at least one run"),
        ({"grid": {"seed": []}}, "grid.seed is []; expected a list of values, or labels with settings"),
        ({"grid": {"model": {}}}, "grid.model is {}; expected a list of values"),
        ({"grid": {"seed": 3}}, "grid.seed is 3; expected a list of values"),
        ({"grid": {"model": {"a": 3}}}, "grid.model.a is 3; expected settings"),
        ({"grid": {"model": [{"a": 3}]}}, "grid.model holds {'a': 3}; expected plain values"),
        ({"grid": {"sede": [0]}}, "run sede-0: unknown setting 'sede' in the config; did you mean 'seed'"),
        ({"grid": {"optimizer.lr": [0.1]}}, "run lr-0.1: unknown setting 'optimizer.lr' in the config"),
        ({"grid": {"seed": [0, 0]}}, "two runs are called 'seed-0': seed 0; and seed 0"),
        (
            {"grid": {"model": {"a/b": {}, "a b": {}}}},
            "two runs are called 'a-b': model a/b; and model a b",
        ),
        (
            {"grid": {"model": {"a": {"seed": 3}}, "seed": [1]}},
            "both model and seed set seed: leave it to one of them",
        ),
        ({"grid": {"model": {"/": {}}}}, "'/' has no letter or digit"),
        ({"runs": ({"model.width": 64},)}, "a run in runs has no name"),
        (
            {"runs": ({"name": "report"},)},
            "no run can be called 'report', which is a folder of the study's own",
        ),
        ({"runs": ({"name": "a", "images": "all"},)}, "images is 'all' in 'a'; expected a number of images"),
        ({"runs": ({"name": "a", "recipe": 3},)}, "recipe is 3 in 'a'; expected a name or file"),
        ({"runs": ({"name": "a", "group": 3},)}, "group is 3 in 'a'; expected a name, or a list of names"),
        (
            {"recipe": "digts", "grid": {"seed": [0]}},
            "run seed-0: unknown recipe 'digts'; did you mean 'digits'?",
        ),
        ({"grid": {"seed": list(range(3000))}}, "mine.yaml has 3,000 runs; expected at most 2,000"),
        (
            {"grid": {"seed": [0]}, "tables": [["sed"]]},
            "tables name the axis 'sed', which the study doesn't have",
        ),
        ({"grid": {"seed": [0]}, "tables": [["seed"] * 3]}, "a table has an axis for its rows"),
        ({"grid": {"seed": [0]}, "figures": ["dta"]}, "figures in mine.yaml is ['dta']"),
        (
            {"grid": {"seed": [0]}, "measure": 3},
            "measure in mine.yaml is 3; expected a list of {by: ..., data: ...}",
        ),
        ({"measure": [{"by": "fewshot"}]}, "missing setting 'data' in measure 1 of mine.yaml"),
        ({"measure": [{"by": "shots", "data": "digits"}]}, "by in measure 1 of mine.yaml is 'shots'"),
        (
            {"measure": [{"by": "knn", "data": "digits", "shots": 5}]},
            "shots does not apply to measuring by 'knn'",
        ),
        ({"measure": [{"by": "test", "data": "digits", "evaluate": "x"}]}, "evaluate does not apply"),
        ({"measure": [{"by": "knn", "data": "digits"}] * 2}, "two measures are called 'digits kNN'"),
    ],
)
def test_what_is_wrong_is_one_line(keys: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        runs(**keys)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_is_found_by_path_or_name(tmp_path: Path) -> None:
    path = write(
        tmp_path, "# Mine.\nrecipe: digits\nsettings: {duration: 2, batch_size: 8}\ngrid: {seed: [0, 1]}\n"
    )
    study = read_study(
        path, ["grid.seed=[5]", "settings.batch_size=16", "settings.optimizer.learning_rate=1"]
    )
    assert (study.name, study.about) == ("mine", "Mine.")
    assert [run.name for run in study.runs] == ["seed-5"]
    config = study.runs[0].config
    assert (config.batch_size, config.duration, config.optimizer.learning_rate) == (16, 2, 1)
    with pytest.raises(InputError, match="no such study file: nowhere.yaml"):
        read_study("nowhere.yaml")
    with pytest.raises(InputError, match="unknown study 'paper_compte'; did you mean 'paper_compute'?"):
        read_study("paper_compte")


@pytest.mark.parametrize("name", [path.stem for path in STUDIES.glob("*.yaml")])
def test_shipped_studies_can_be_read(name: str) -> None:
    study = read_study(name)
    assert study.runs and study.about


@settings(max_examples=20)
@given(few=st.integers(100, 400), more=st.integers(401, 1000))
def test_more_images_hold_the_fewer(few: int, more: int) -> None:
    small, large = (open_data(first_images("digits:train[:1000,seed=3]", count)) for count in (few, more))
    assert (len(small), len(large)) == (few, more)
    assert {small.where(place) for place in range(few)} <= {large.where(place) for place in range(more)}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("digits:train", "digits:train[:10,seed=0]"),
        ("digits:train[:100,seed=4]", "digits:train[:10,seed=4]"),
        ("digits:train[20:100]", "digits:train[20:30,seed=0]"),
    ],
)
def test_the_first_images_of_data(data: str, expected: str) -> None:
    assert first_images(data, 10) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("digits:train[:5]", "images is 10, but 'digits:train[:5]' has 5"),
        ("digits:train[5shot]", "needs it whole, or a slice"),
        ("digits:train[:90%]", "needs it whole, or a slice"),
    ],
)
def test_images_that_data_cannot_give(data: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        first_images(data, 10)
    assert message in str(error.value)


def test_combinations_may_be_left_out() -> None:
    grid = {"positions": {"none": {"model.positions": "none"}, "learned": {}}, "duration": [3, 4]}
    found = runs(grid=grid, without=({"positions": "none", "duration": 4},))
    assert [run.name for run in found] == ["none_duration-3", "learned_duration-3", "learned_duration-4"]


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (
            {"position": "none"},
            "without names the axis 'position', which the study doesn't have; did you mean 'positions'?",
        ),
        (
            {"positions": "non"},
            "without names 'non' on the axis 'positions', which isn't there; did you mean 'none'?",
        ),
        ({}, "without leaves no run: keep at least one"),
    ],
)
def test_what_is_left_out_must_be_there(without: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as error:
        runs(grid={"positions": {"none": {}, "learned": {"model.depth": 1}}}, without=(without,))
    assert str(error.value) == f"mine.yaml: {message}"
