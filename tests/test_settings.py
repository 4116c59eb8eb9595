"""Settings in Python: keyword arguments, mappings and 'key=value' are the same run; editors know them; paths are paths."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

import vitkit
from tests.test_docs import REFERENCE, found
from tests.write_settings import FILE, text
from vitkit.config import Change, as_changes, merge, read_yaml
from vitkit.errors import InputError
from vitkit.models.model import Model
from vitkit.predictor import Predictor
from vitkit.runs import read_config, read_record
from vitkit.training.recipes import resolve
from vitkit.training.schedules import ScheduleConfig
from vitkit.transfer.finetune import FinetuneRequest, finetuning_path

SHORT = ["data.train=digits:train[:200]", "data.evaluate=digits:test[:50]", "duration=1", "batch_size=40"]


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(InputError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize(
    ("texts", "settings"),
    [
        (["minutes=3"], {"minutes": 3}),
        (["minutes=3.0"], {"minutes": 3}),
        (["optimizer.learning_rate=1e-3"], {"optimizer": {"learning_rate": 0.001}}),
        (["optimizer.learning_rate=1e-3"], {"optimizer.learning_rate": np.float64(1e-3)}),
        (["duration=2ep", "average=null"], {"duration": "2ep", "average": None}),
        (["model.stochastic_depth=0.1", "data.workers=2"], {"model": {"stochastic_depth": 0.1}, "data.workers": 2}),
        (['optimizer.freeze=["*.bias"]'], {"optimizer": {"freeze": ("*.bias",)}}),
        (["optimizer.freeze=*.bias"], {"optimizer": {"freeze": "*.bias"}}),
        (["data.train=./photos"], {"data": {"train": Path("photos")}}),
        (["data.pipeline=resize(256)|random_crop(224,a=1/2)|flip"], {"data": {"pipeline": "resize(256)|random_crop(224,a=1/2)|flip"}}),
        (["frozen.evaluators=[fewshot, knn]"], {"frozen": {"evaluators": ["fewshot", "knn"]}}),
        (["track=tensorboard"], {"track": "tensorboard"}),
        (["seed=1", "compile=true"], {"seed": np.int64(1), "compile": True}),
        ([], {"optimizer": {}}),
    ],
)  # fmt: skip
def test_settings_are_the_same_however_they_are_given(texts: list[str], settings: dict[str, Any]) -> None:
    """As key=value, as a mapping, and as keyword arguments: the same texts, which a request keeps, and values."""
    expected = as_changes(texts)
    for made in (as_changes(settings), as_changes((), settings)):
        assert made == expected
        assert merge({}, made) == merge({}, texts)
    assert as_changes([str(change) for change in expected]) == expected  # as they are read back from a folder


def test_a_section_is_replaced_by_its_dataclass_and_changed_by_a_mapping() -> None:
    known = {"schedule": {"name": "cosine", "warmup": 10}}
    assert merge(known, as_changes({"schedule": {"name": "constant"}}))["schedule"] == {
        "name": "constant",
        "warmup": 10,
    }
    whole = merge(known, as_changes({"schedule": ScheduleConfig(name="constant")}))["schedule"]
    assert whole["name"] == "constant" and whole["warmup"] == ScheduleConfig().warmup


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(VALUES)
@example("\n")
@example(["a\u2028b", 3.0, "\r"])
def test_every_value_is_read_back_from_its_text(value: Any) -> None:
    change = Change("a.b", value)
    text = str(change).removeprefix("a.b=")
    assert "\n" not in text
    assert read_yaml(f"value: {text}", "text")["value"] == value
    assert as_changes([str(change)])[0].value == value


def test_a_change_is_copied_with_its_value() -> None:
    change = Change("optimizer", {"name": "sgd"})
    for other in (copy.deepcopy(change), pickle.loads(pickle.dumps(change))):
        assert other == change and other.key == "optimizer" and other.value == {"name": "sgd"}
    merged = merge({}, [change, "optimizer.name=adam"])
    assert merged == {"optimizer": {"name": "adam"}} and change.value == {
        "name": "sgd"
    }  # merging changes no change


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["seed"], "'seed' is not a setting; expected key=value, such as seed=1"),
        ([3], "a change is 3; expected 'key=value', or a mapping of settings"),
        ({3: 1}, "a setting's name is 3; expected text, such as 'seed'"),
    ],
)
def test_what_is_no_change(changes: Any, message: str) -> None:
    assert refused(lambda: as_changes(changes)) == message


def test_python_and_the_command_line_are_the_same_run(
    vit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*SHORT, "optimizer.learning_rate=1e-3", "model.dropout=0.1"]
    assert vit("train", "digits", *words, "--device", "cpu").status == 0
    [run] = Path("runs").iterdir()
    made = vitkit.train(
        "digits",
        data={"train": "digits:train[:200]", "evaluate": "digits:test[:50]"},
        model={"dropout": 0.1},
        duration=1,
        batch_size=40,
        optimizer={"learning_rate": 0.001},
        device="cpu",
        progress=False,
    )
    assert made is not None and Path(made.run) == run and [run] == list(Path("runs").iterdir())
    assert read_config(run)["optimizer"]["learning_rate"] == 0.001


def test_a_request_is_the_same_in_python_and_on_the_command_line() -> None:
    paths = {
        finetuning_path(FinetuneRequest("Ti/16", "./photos", changes))
        for changes in (
            ("minutes=3", "optimizer.learning_rate=1e-3"),
            ("minutes=3.0", "optimizer.learning_rate=0.001"),
            tuple(as_changes((), {"minutes": 3, "optimizer": {"learning_rate": 1e-3}})),
        )
    }
    assert len(paths) == 1
    request = FinetuneRequest("Ti/16", "./photos", ("optimizer.learning_rate=1e-3",))
    assert request.to_json()["changes"] == ["optimizer.learning_rate=0.001"]


def test_a_folder_that_keeps_a_setting_as_it_was_written_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions kept the words of the command line."""
    import json

    monkeypatch.chdir(tmp_path)
    call: Callable[..., Any] = lambda: vitkit.finetune(  # noqa: E731
        vitkit.create_model("mu/16", patch=4, image_size=8, num_classes=10),
        "digits:train[:100]",
        {"data.evaluate": "digits:test[:50]", "optimizer.learning_rate": 1e-3},
        duration=1,
        head_first=False,
        protocol="quick",
        run="kept",
        device="cpu",
        progress=False,
    )
    first = call()
    record = read_record("runs/kept", "finetune")
    assert "optimizer.learning_rate=0.001" in record["settings"]["changes"]
    record["settings"]["changes"] = [
        change.replace("0.001", "1e-3") for change in record["settings"]["changes"]
    ]
    Path("runs/kept/finetune.json").write_text(json.dumps(record))
    assert call() == first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 8}, "unknown setting 'batch' in the config; did you mean 'batch_size'?"),
        ({"learning_rate": 1}, "unknown setting 'learning_rate' in the config; did you mean 'optimizer.learning_rate'?"),
        ({"optimizer": {"learning_rat": 1}}, "unknown setting 'learning_rat' in optimizer; did you mean 'learning_rate'?"),
        ({"seed": "one"}, "seed in the config is 'one'; expected a whole number"),
        ({"seed": object}, "seed in the config is <class 'object'>; expected a whole number"),
        ({"seed": {"a": 1}}, "seed in the config is {'a': 1}; expected a whole number"),
    ],
)  # fmt: skip
def test_unknown_settings_get_the_command_lines_error(settings: dict[str, Any], message: str) -> None:
    assert refused(lambda: vitkit.train("digits", **settings)) == message
    assert refused(lambda: resolve("digits", settings)) == message


def test_unknown_settings_of_a_fine_tuning() -> None:
    text = "unknown setting 'minute'; did you mean 'minutes'?"
    assert refused(lambda: vitkit.finetune("mu/16", "digits", minute=3)) == text  # type: ignore[call-arg]
    assert refused(lambda: vitkit.finetune("mu/16", "digits", ["minute=3"])) == text
    assert refused(lambda: vitkit.vtab("mu/16", "shapes", minute=3)) == text  # type: ignore[call-arg]
    section = "data is a section: change its settings one by one, as in data.workers=4"
    assert refused(lambda: vitkit.finetune("mu/16", "digits", data="digits")) == section  # type: ignore[typeddict-item]


def test_model_and_data_are_sections_by_name_or_the_arguments_themselves() -> None:
    plan = "the model is asked for"

    def load_start(model: Any) -> Any:
        raise InputError(f"{plan}: {model}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.transfer.plan.load_start", load_start)
        options: dict[str, Any] = dict(progress=False, run=Path("nowhere"))
        call = lambda: vitkit.finetune(model="mu/16", data="digits", **options)  # type: ignore[typeddict-item]  # noqa: E731
        assert refused(call) == f"{plan}: mu/16"
        call = lambda: vitkit.finetune("mu/16", "digits", model={"dropout": 0.1}, **options)  # noqa: E731
        assert refused(call) == f"{plan}: mu/16"
    with pytest.raises(TypeError, match=r"finetune\(\) needs a data, as in vitkit.finetune"):
        vitkit.finetune("mu/16")
    with pytest.raises(TypeError, match=r"vtab\(\) needs a model"):
        vitkit.vtab(model={"dropout": 0.1})


def test_editors_are_told_the_settings_that_the_configs_have() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "make settings writes vitkit/settings.py"


def public_functions() -> list[str]:
    return [name for name in vitkit.PUBLIC if name != "InputError"]


@pytest.mark.parametrize("name", public_functions())
def test_hints_of_public_functions_resolve(name: str) -> None:
    function = getattr(vitkit, name)
    hints = typing.get_type_hints(function)
    assert set(hints) == {*inspect.signature(function).parameters, "return"}


@pytest.mark.parametrize("path", REFERENCE)
def test_hints_of_documented_classes_resolve(path: str) -> None:
    kind = found(path)
    if isinstance(kind, type):
        typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        assert {field.name for field in dataclasses.fields(kind)} <= typing.get_type_hints(kind).keys()


@pytest.mark.parametrize("kind", [Predictor, Model])
def test_hints_of_methods_resolve(kind: type) -> None:
    for name, method in vars(kind).items():
        if inspect.isfunction(method):
            assert "return" in typing.get_type_hints(method), name


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small model and two classes of photos, which paths name without a './'."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    for split, count in (("train", 6), ("test", 3)):
        for label in ("cat", "dog"):
            folder = Path("photos", split, label)
            folder.mkdir(parents=True)
            for number in range(count):
                color = (200 * (label == "cat"), 25 * number, 60 * (split == "test"))
                Image.new("RGB", (10, 8), color).save(folder / f"{number}.png")
    model = vitkit.create_model("mu/16", patch=4, image_size=8, num_classes=2)
    vitkit.save(model, Path("model"), class_names=["cat", "dog"])
    return tmp_path


def test_paths_name_models_data_and_targets(desk: Path) -> None:
    model, photos = Path("model"), Path("photos")
    Path("names.txt").write_text("cat\ndog\n")
    Path("map.csv").write_text("class,head\ncat,cat\ndog,dog\n")
    Path("real.json").write_text("[]")
    quiet: dict[str, Any] = dict(device="cpu", progress=False)
    assert isinstance(vitkit.load(model, device="cpu", names=Path("names.txt")), Predictor)
    assert len(vitkit.predict(model, photos / "test" / "cat", names=Path("names.txt"), **quiet)) == 3
    assert len(vitkit.open_data(photos)) == 12
    measured = vitkit.evaluate(model, photos, mapping=Path("map.csv"), **quiet)
    assert measured.data == "./photos:test" and measured.images == 6
    assert "real.json" in refused(lambda: vitkit.evaluate(model, photos, real=Path("real.json"), **quiet))
    assert vitkit.convert(model, Path("converted")).target == "converted"
    assert vitkit.pack(photos, Path("packed"), size=8, progress=False).shards == 2


@pytest.mark.slow
def test_paths_name_runs_and_reports(desk: Path) -> None:
    model, photos = Path("model"), Path("photos")
    quiet: dict[str, Any] = dict(device="cpu", progress=False)
    assert vitkit.describe_data(photos, out=Path("sheet.png"), progress=False).num_classes == 2
    assert vitkit.evaluate(model, photos, out=Path("measured"), **quiet).files
    assert vitkit.knn(model, photos, k=2, evaluate=photos / "test", **quiet).test.startswith("./photos/test")
    assert vitkit.probe(model, photos, l2=1.0, **quiet).train == "./photos:train"
    assert vitkit.fewshot(model, photos, shots=[1], seeds=1, **quiet).train == "./photos:train"
    assert vitkit.inspect_model(model, photos / "test", out=Path("seen"), num_photos=1, **quiet).html
    recipe = Path("mine.yaml")
    recipe.write_text("model: {name: mu/16, patch: 4}\ndata: {train: digits, pipeline: resize(8)}\nduration: 1\n"
                      "batch_size: 8\noptimizer: {learning_rate: 1e-3}\n")  # fmt: skip
    result = vitkit.train(recipe, model=model, data=photos, evaluate=photos, run=Path("out/run"), **quiet)
    assert result is not None and result.run == "out/run"
    assert read_config("out/run")["data"]["train"] == "./photos"
    again = vitkit.train(Path("out/run"), **quiet)
    assert again is not None and again.status == "done"
    tuned = vitkit.finetune(model, photos, run=Path("tuned"), duration=1, head_first=False, **quiet)
    assert tuned.run == "tuned" and tuned.request.data == "./photos" and Path("tuned/model").is_dir()
    assert Path(vitkit.report(Path("out/run"), out=Path("report")).html).is_file()


def test_vtab_takes_paths(desk: Path) -> None:
    assert refused(lambda: vitkit.vtab(Path("model"), Path("nothing"), run=Path("tasks"))).startswith(
        "./nothing is not a folder; expected shapes, or the folder of VTAB's tasks"
    )
    result = vitkit.vtab(
        Path("model"), "shapes", protocol="fewshot", tasks=["count"], run=Path("tasks"), device="cpu", progress=False
    )  # fmt: skip
    assert result.run == "tasks" and result.status == "done"
