"""Damaged records are one line that names the file, whatever is wrong in them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.runs.damage import damaged_copies
from vitkit.data.threads import Unreadable
from vitkit.errors import InputError
from vitkit.evaluation.measured import ClassScore
from vitkit.evaluation.run import Evaluation
from vitkit.evaluation.temperature import Calibration
from vitkit.results import from_json
from vitkit.runs import Evaluated, KeptModel, RunFolder, read_record
from vitkit.transfer.finetune import FinetuneRequest, FinetuneResult, TriedRate, run_finetuning

FACTS = {"images": 20, "classes": 2, "class_names": "ab", "fingerprint": "cd"}
SKIPPED = Unreadable("a.png", "cannot be decoded", "./photos:train")


def write_training(path: Path) -> dict[str, Any]:
    """Write a run folder whose record has all that a record may have."""
    with closing(RunFolder(path, {"seed": 0})) as folder:
        folder.update(
            status="stopped",
            step=4,
            steps=8,
            environment={"torch": "2", "device": "cpu", "processes": 1, "threads": 2, "compile_seconds": 0.5},
            data={**FACTS, "began_with": 21},
            measured=FACTS,
            best=Evaluated("val/accuracy", 0.5, 4).to_json(),
            models={"model": [KeptModel(4, "ab").to_json()]},
            cost={"parameters": 10, "exaflops": 0.5},
            unreadable=[SKIPPED._asdict()],
        )
    return folder.record


def test_a_damaged_record_of_a_training_is_refused_or_fits(tmp_path: Path) -> None:
    record, file = write_training(tmp_path), tmp_path / "run.json"
    refused = {}
    for name, damaged in damaged_copies(record):
        file.write_text(json.dumps(damaged))
        try:
            found = read_record(tmp_path)
        except InputError as error:
            refused[name] = str(error)
            continue
        # What a run that resumes does with its record.
        assert int(found["environment"].get("threads", 1)) >= 1
        assert found["environment"].get("compile_seconds", 0.0) >= 0
        for facts in filter(None, (found["data"], found["measured"])):
            assert f"{facts['images']:,} images of {facts['classes']:,} {facts['class_names']}"
        assert all(KeptModel(**entry) for entries in found["models"].values() for entry in entries)
        assert all(Unreadable(**entry).image for entry in found["unreadable"])
        assert sum(found["cost"].values()) >= 0
    assert {
        f"{name} 'x'" for name in ("environment", "data", "models", "unreadable", "cost", "measured")
    } <= {*refused}
    assert refused["data.images 'x'"] == f"{file} is damaged: 'data.images' is 'x'"
    assert refused["models.model.0.step [None]"] == f"{file} is damaged: 'models.model.step' is [None]"
    assert refused["unreadable.0.image 'gone'"] == f"{file} is damaged: 'unreadable.image' is missing"
    assert refused["best 'gone'"] == f"{file} is damaged: it has no 'best'"


RESULT = FinetuneResult(
    FinetuneRequest("Ti/16", "digits", ("minutes=1",), "lr", 2),
    "done",
    "runs/photos",
    "runs/photos/model",
    ("runs/photos/model",),
    accuracy=0.5,
    std=0.1,
    metric="accuracy",
    measured_on="digits:test",
    values=(0.4, 0.6),
    image_size=(32, 32),
    learning_rate=0.1,
    evaluation=Evaluation(
        model="model",
        image_size=(32, 32),
        precision="float32",
        merge=0,
        data="digits:test",
        images=10,
        left_out=0,
        classes=2,
        accuracy=0.5,
        per_class=(ClassScore("a", 5, 0.5, None, 0.5),),
        confusion={"a": {"b": 1}},
        unreadable=(SKIPPED,),
    ),
    calibration=Calibration(1.0, "digits:val", 10, 0.5, 0.5),
    sweep_results=(TriedRate(0.1, 0.5, 1.0),),
    unreadable=(SKIPPED,),
)


def test_a_damaged_result_of_a_fine_tuning_is_refused_or_fits() -> None:
    document = json.loads(json.dumps(RESULT.to_json()))
    assert from_json(FinetuneResult, document) == RESULT
    refused = {}
    for name, damaged in damaged_copies(document):
        try:
            found = from_json(FinetuneResult, damaged, "finetune.json")
        except InputError as error:
            refused[name] = str(error)
        else:
            json.dumps(found.to_json(), allow_nan=False)
            assert repr(found) and found._repr_html_()
    assert all(message.startswith("finetune.json is damaged: ") for message in refused.values())
    assert refused["values.0 'x'"] == "finetune.json is damaged: 'values' is 'x'"
    assert refused["evaluation.images [None]"] == "finetune.json is damaged: 'evaluation.images' is [None]"
    assert refused["request 'gone'"] == "finetune.json is damaged: 'request' is missing"
    assert {"image_size [None]", "evaluation 7", "calibration.images None", "unreadable.0 'x'"} <= {*refused}


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ({"values": [0.4, "x"]}, "'values' is 'x'"),
        ({"settings": {"model": 7}}, "'model' is 7"),
        ({"settings": "x"}, "'settings' is 'x'"),
        ({"data": {"images": "x"}}, "'data.images' is 'x'"),
    ],
)
def test_a_finished_fine_tuning_with_a_damaged_record_names_it(
    tmp_path: Path, damage: dict[str, Any], expected: str
) -> None:
    with closing(RunFolder(tmp_path, RESULT.request.to_json(), kind="finetune")) as folder:
        folder.update(**RESULT.to_json(), data=FACTS)
    assert run_finetuning(RESULT.request, lambda: pytest.fail("trained again"), tmp_path) == RESULT
    (tmp_path / "finetune.json").write_text(json.dumps(folder.record | damage))
    with pytest.raises(InputError) as error:
        run_finetuning(RESULT.request, lambda: pytest.fail("trained again"), tmp_path)
    assert str(error.value) == f"{tmp_path / 'finetune.json'} is damaged: {expected}"
