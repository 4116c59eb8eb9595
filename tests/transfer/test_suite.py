"""The paper's suite: what is here is run by its protocol, what isn't is named, and every departure is said."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.training.tiny_runs import Listener
from vitkit.data.sources import vtab as vtab_source
from vitkit.data.sources.vtab import TASKS
from vitkit.data.unreadable import BadImageRule
from vitkit.errors import InputError
from vitkit.evaluation.imagenet import WORDNET_IDS
from vitkit.evaluation.real import RealAccuracy
from vitkit.evaluation.run import evaluate
from vitkit.models.names import model_config
from vitkit.notes import kind_of
from vitkit.transfer import suite as module
from vitkit.transfer.finetune import HEAD_ALONE, FinetuneRequest, FinetuneResult
from vitkit.transfer.published import ROWS, TABLE_2, TABLE_5, PublishedAccuracy, paper_size, published_columns
from vitkit.transfer.suite import FinetunedRow, real_row, run_suite
from vitkit.transfer.suite_data import SETS, find_root
from vitkit.transfer.vtab.document import OverallMean, TaskRow, VtabResult, VtabSettings

CHANGES = ["image_size=8", "duration=2", "schedule.warmup=1", "batch_size=8"]
TINY: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 16, "patch": 4, "image_size": 8}
ABSENT = {"imagenet", "real", "cifar100", "pets", "flowers102", "vtab"}
Vit = Callable[..., Any]


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("vitkit.training.estimate.matrix_rate", lambda *_: 1e10)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    vitkit.save(vitkit.create_model("Ti/16", num_classes=3, **TINY), tmp_path / "model")


def write_photos(root: Path, classes: tuple[str, ...] = ("cat", "dog"), count: int = 8) -> None:
    pixels = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(pixels.integers(0, 256, (8, 8, 3), np.uint8)).save(
                    root / split / name / f"{number}.png"
                )


def write_imagenet(root: Path) -> None:
    """Write a thousand classes with an image each, and ReaL's labels, which agree with every other image."""
    lists: list[list[int]] = [[] for _ in range(50_000)]
    for label, name in enumerate(WORDNET_IDS):
        for split in ("train", "val"):
            folder = root / "imagenet" / split / name
            folder.mkdir(parents=True)
            side = Image.new("RGB", (8, 8), (label % 256, label // 4, 40 * (split == "val")))
            side.save(folder / f"ILSVRC2012_{split}_{label + 1:08d}.JPEG")
        lists[label] = [label if label % 2 else (label + 1) % 1000]
    (root / "real.json").write_text(json.dumps(lists))


def write_vtab(root: Path, test: int = 5) -> None:
    """Write DTD in the shared layout: an image to learn from and one to measure, again and again."""
    folder = root / "vtab" / "dtd"
    (folder / "images").mkdir(parents=True)
    for split, count in {"train800val200": 1000, "test": test}.items():
        Image.new("RGB", (8, 8), (count % 256, 0, 0)).save(folder / "images" / f"{split}.png")
        lines = [f"images/{split}.png {number % 47}" for number in range(count)]
        (folder / f"{split}.txt").write_text("\n".join(lines))


class Standing:
    """Stands in for what takes long, and remembers what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[dict[str, Any]] = []
        self.values = [0.7, 0.8, 0.9]
        self.kept = "weights of step 2"
        self.stops: str | None = None
        self.fails: str | None = None
        self.vtab: dict[str, Any] = {}
        self.vtab_asked: dict[str, Any] = {}
        monkeypatch.setattr(module, "run_finetuning", self.finetune)
        monkeypatch.setattr(module, "run_vtab", self.run_vtab)

    def finetune(self, request: FinetuneRequest, make: object, path: Path, **options: Any) -> FinetuneResult:
        self.asked.append({**request.to_json(), "run": str(path), **options})
        if self.fails and self.fails in request.data:
            raise RuntimeError("out of luck\nand more")
        if self.stops and self.stops in request.data:
            return FinetuneResult(request, "stopped", str(path))
        values = tuple(self.values[: request.seeds])
        return FinetuneResult(
            request,
            "done",
            str(path),
            protocol="quick" if "protocol=quick" in request.changes else "paper",
            kept=self.kept,
            models=tuple(f"{path}/seed-{seed}/run/model" for seed in range(request.seeds)),
            metric="accuracy",
            accuracy=statistics.mean(values),
            values=values,
            device_hours=1.5,
            measured_on=f"{request.data}:test",
        )

    def run_vtab(self, model: object, asked: VtabSettings, **options: Any) -> VtabResult:
        self.vtab_asked = {**vars(asked), **options}
        whole = VtabResult(
            *(
                "model",
                asked.data,
                "vit",
                asked.seeds,
                None,
                None,
                (),
                "vit: 2,500 steps",
                str(options["run"]),
            ),
            *("done", True, (), (), 0.6, OverallMean("VTAB-1k", 0.6, 0.01, (0.59, 0.61), 19), ()),
            *(7200.0, 2.0),
        )
        return dataclasses.replace(whole, **self.vtab)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> Standing:
    return Standing(monkeypatch)


@pytest.mark.slow
def test_what_is_here_is_run_and_what_is_not_is_named(tmp_path: Path) -> None:
    write_photos(tmp_path / "data" / "cifar10")
    listener = Listener()
    result = run_suite("./model", "paper", "./data", CHANGES, seeds=2, device="cpu", listener=listener)
    assert result.status == "done"
    assert list(result.results) == ["cifar10"]
    row = result.results["cifar10"]
    assert len(row.values) == 2
    assert row.std == pytest.approx(np.std(row.values, ddof=1))
    assert row.protocol == "paper" and row.changes == tuple(CHANGES)  # on a CPU too
    assert row.remarks[0] == f"changed: {', '.join(CHANGES)}"
    assert (
        "not the official data: 2 classes, 16 and 16 images; official are 10 classes, 50,000 and 10,000 images"
        in (row.remarks)
    )
    assert set(result.absent) == ABSENT
    assert result.absent["pets"] == "data has neither a folder pets nor torchvision's"
    assert result.absent["real"] == "data has no real.json"
    assert result.absent["vtab"] == "data has no folder vtab"
    assert "skipped vtab: data has no folder vtab" in listener.notes
    assert "./model on cifar10, each with 2 seeds; roughly 0 seconds on cpu" in listener.notes
    assert result.device_hours > 0
    column = result.published["L/16 I21k, table 2"]
    assert column["cifar10"] == PublishedAccuracy(pytest.approx(0.9915), pytest.approx(0.0003))
    again = run_suite("./model", "paper", "./data", CHANGES, seeds=2, device="cpu")
    assert again == result
    folder = Path(result.run)
    record = json.loads((folder / "suite.json").read_text())
    assert {name: record[name] for name in result.to_json()} == result.to_json()
    text = (folder / "suite.md").read_text()
    assert f"| cifar10 | {row.accuracy * 100:.2f} ± {row.std * 100:.2f}* | paper | 99.50 ± 0.06 |" in text
    assert "\\* cifar10: changed: image_size=8" in text and "skipped real: data has no real.json" in text


@pytest.mark.slow
def test_real_is_measured_on_every_seeds_model(tmp_path: Path) -> None:
    write_imagenet(tmp_path / "data")
    changes = [*CHANGES, "optimizer.learning_rate=0.5"]
    result = run_suite("./model", "paper", "./data", changes, seeds=2, device="cpu", run="mine")
    assert result.status == "done", result.failures
    imagenet, real = result.results["imagenet"], result.results["real"]
    models = [f"runs/mine/imagenet/seed-{seed}/run/model" for seed in range(2)]
    expected = []
    for model in models:
        answer = evaluate(model, "./data/imagenet:val", real="data/real.json", device="cpu")
        assert answer.real
        expected.append(answer.real.accuracy)
    assert real.values == tuple(expected)
    assert real.accuracy == pytest.approx(np.mean(expected))
    assert real.std == pytest.approx(np.std(expected, ddof=1))
    assert imagenet.models == tuple(models)


@pytest.mark.slow
def test_reals_mean_and_deviation_are_its_own(
    tmp_path: Path, standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_imagenet(tmp_path / "data")
    found = iter([0.8, 0.86, 0.92])
    asked: list[str] = []

    def measure(model: str, data: object, **options: Any) -> SimpleNamespace:
        asked.append(model)
        return SimpleNamespace(real=RealAccuracy(next(found), images=10, left_out=0))

    monkeypatch.setattr(module, "evaluate", measure)
    result = run_suite("./model", "paper", "./data", device="cpu", run="mine")
    real = result.results["real"]
    assert asked == [f"runs/mine/imagenet/seed-{seed}/run/model" for seed in range(3)]
    assert real.values == (0.8, 0.86, 0.92)
    assert (real.accuracy, real.std) == pytest.approx((0.86, 0.06))
    assert result.device_hours == 1.5
    again = run_suite(
        "./model", "paper", "./data", device="cpu", run="mine"
    )  # nothing is left to measure with
    assert again.results["real"] == real


@pytest.mark.parametrize("damaged", ['{"imagenet": [0.7', "[]", '{"imagenet": [0.7], "values": ["x"]}', "{}"])
def test_damaged_accuracies_by_reassessed_labels_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    row = FinetunedRow(0.7, None, (0.7,), (), "vit", (), 1.0, "run", (), "", "imagenet:val", ("model",))
    found = SimpleNamespace(real=RealAccuracy(0.8, images=10, left_out=0))
    monkeypatch.setattr(module, "evaluate", lambda *_, **__: found)
    file, source, rule = (
        tmp_path / "known.json",
        vitkit.open_data("digits:test"),
        BadImageRule("skip", "setting"),
    )
    for _ in range(2):
        real = real_row(file, row, tmp_path / "real.json", source, "cpu", rule, force=False)
        assert (real.accuracy, real.values) == (0.8, (0.8,))
        assert json.loads(file.read_text()) == {"imagenet": [0.7], "values": [0.8]}
        file.write_text(damaged)


@pytest.mark.slow
def test_vtab_with_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_vtab(tmp_path / "data")
    opened: list[tuple[str, ...]] = []

    def reading(folder: Path, splits: Sequence[str], *arguments: Any) -> Any:
        opened.append((folder.name, *splits))
        return read_lists(folder, splits, *arguments)

    read_lists = vtab_source._read_lists
    monkeypatch.setattr(vtab_source, "_read_lists", reading)
    result = run_suite("./model", "paper", "./data", CHANGES, seeds=2, device="cpu", run="mine")
    assert result.status == "done", result.failures
    row = result.results["vtab"]
    assert row.remarks == (
        "mean of 1 task, not the official images; the paper's is of all 19",
        f"changed: {', '.join(CHANGES)}",
    )
    assert len(opened) == len(set(opened))
    document = json.loads(Path("runs/mine/vtab/vtab.json").read_text())
    assert document["steps"] == 2 and document["changes"] == [
        "image_size=8",
        "schedule.warmup=1",
        "batch_size=8",
    ]
    [dtd] = [entry for entry in document["tasks"] if entry["task"] == "dtd"]
    assert list(row.values) == dtd["values"] and len(dtd["values"]) == 2
    assert row.std == pytest.approx(statistics.stdev(dtd["values"]))
    changes = json.loads(Path("runs/mine/vtab/dtd.json").read_text())["changes"]
    assert "image_size=8" in changes and "duration=2" in changes and changes[-1] == "batch_size=8"


def test_what_is_vtabs_alone_is_not_run_by_it(tmp_path: Path, standing: Standing) -> None:
    write_vtab(tmp_path / "data")
    write_photos(tmp_path / "data" / "pets")
    for change, why in (
        ("protocol=quick", "VTAB has no protocol=quick: vit vtab has the protocols light and fewshot"),
        ("duration=2ep", "duration=2ep is not a number of steps, which VTAB's protocols need"),
    ):
        result = run_suite("./model", "paper", "./data", [change], device="cpu")
        assert result.absent["vtab"] == why and list(result.results) == ["pets"]


def test_a_stopped_vtab_stops_the_suite(tmp_path: Path, standing: Standing, vit: Vit) -> None:
    write_vtab(tmp_path / "data")
    write_photos(tmp_path / "data" / "pets")
    standing.vtab = {"status": "stopped", "overall": None}
    answer = vit("finetune", "./model", "./data", "--suite", "paper", "--device", "cpu", "--run", "mine")
    assert answer.status == 130
    assert "stopped; run the same command again to resume" in answer.err and "80.00 ± 10.00" in answer.out
    assert json.loads(Path("runs/mine/suite.json").read_text())["status"] == "stopped"
    standing.vtab, standing.stops = {}, "pets"
    assert run_suite("./model", "paper", "./data", device="cpu", run="mine").status == "stopped"


def test_vtabs_failures_are_the_suites(tmp_path: Path, standing: Standing, vit: Vit) -> None:
    write_vtab(tmp_path / "data")
    standing.vtab = {
        "status": "failed",
        "overall": OverallMean("mean of 2 tasks", 0.6, None, (0.6,), 2),
        "tasks": (TaskRow("dtd", "DTD", "Natural", "failed", "no luck", True, 5),),
    }
    answer = vit("finetune", "./model", "./data", "--suite", "paper", "--device", "cpu")
    assert answer.status == 1
    assert "60.00*" in answer.out and "77.63" in answer.out
    assert "* vtab: mean of 2 tasks; the paper's is of all 19; 1 task failed" in answer.out
    assert "vtab failed: dtd: no luck" in answer.out
    standing.vtab |= {"overall": None}
    answer = vit("finetune", "./model", "./data", "--suite", "paper", "--device", "cpu", "--json")
    assert answer.status == 1
    assert json.loads(answer.out)["failures"] == {"vtab": "no task was done; dtd: no luck"}


def test_a_set_that_fails_leaves_the_others(tmp_path: Path, standing: Standing, vit: Vit) -> None:
    write_photos(tmp_path / "data" / "pets")
    write_photos(tmp_path / "data" / "cifar10")
    standing.fails = "cifar10"
    answer = vit("finetune", "./model", "./data", "--suite", "paper", "--device", "cpu", "--json")
    document = json.loads(answer.out)
    assert (answer.status, document["status"], list(document["results"])) == (1, "failed", ["pets"])
    assert document["failures"] == {"cifar10": "RuntimeError: out of luck"}


def test_three_seeds_by_the_papers_protocol_unless_it_is_said(
    tmp_path: Path, standing: Standing, vit: Vit
) -> None:
    write_photos(tmp_path / "data" / "pets")
    base = ("finetune", "./model", "./data", "--suite", "paper", "--device", "cpu")
    assert vit(*base).status == 0
    assert standing.asked[-1]["seeds"] == 3 and standing.asked[-1]["changes"] == ["protocol=paper"]
    answer = vit(*base, "protocol=quick", "--seeds", "1")
    assert standing.asked[-1]["seeds"] == 1 and standing.asked[-1]["changes"] == ["protocol=quick"]
    assert re.search(r"pets +70\.00\* +quick +97\.56 ± 0\.03 .* 93\.81 ", answer.out)
    assert "* pets: protocol quick, not the paper's; not the official data" in answer.out
    for seeds in ("0", "-1"):
        answer = vit(*base, "--seeds", seeds)
        assert (answer.status, answer.err) == (2, f"error: seeds must be at least 1, not {seeds}\n")


def test_one_model_is_not_counted_several_times(tmp_path: Path, standing: Standing) -> None:
    write_photos(tmp_path / "data" / "pets")
    standing.values, standing.kept = [0.5, 0.5, 0.5], HEAD_ALONE
    row = run_suite("./model", "paper", "./data", ["protocol=quick"], device="cpu").results["pets"]
    assert row.std is None
    assert row.remarks[-1] == "the fitted head was kept for every seed: one model, so there is no deviation"
    standing.kept = "weights of step 2"
    row = run_suite("./model", "paper", "./data", device="cpu", run="other").results["pets"]
    assert row.std == 0 and row.remarks[-1] == "every seed gave the same number"


def test_long_runs_are_announced_before_they_start(tmp_path: Path, standing: Standing) -> None:
    write_photos(tmp_path / "data" / "pets")
    write_vtab(tmp_path / "data")
    listener = Listener()
    run_suite("Ti/16", "paper", "./data", device="cpu", listener=listener)
    [line] = [line for line in listener.notes if kind_of(line) == "summary"]
    assert re.fullmatch(r"Ti/16 on pets, vtab, each with 3 seeds; roughly [0-9.]+ days on cpu", line)
    assert listener.notes.index(line) < listener.notes.index("pets:")
    assert standing.vtab_asked["seeds"] == 3 and standing.vtab_asked["data"] == "data/vtab"


@pytest.mark.slow
def test_runs_of_other_models_have_other_folders(tmp_path: Path, standing: Standing) -> None:
    write_photos(tmp_path / "data" / "pets")
    for name in ("runs/a/model", "runs/b/model"):
        vitkit.save(vitkit.create_model("Ti/16", num_classes=3, **TINY), tmp_path / name)
    models = ("Ti/16", "S/16", "./runs/a/model", "./runs/b/model")
    folders = [run_suite(model, "paper", "./data", device="cpu").run for model in models]
    assert len(set(folders)) == len(models)
    assert run_suite("Ti/16", "paper", "./data", device="cpu").run == folders[0]
    assert run_suite("Ti/16", "paper", "./data", ["duration=9"], device="cpu").run != folders[0]


def test_bad_input_is_one_line(tmp_path: Path, vit: Vit) -> None:
    Path("data").mkdir()
    sets = "imagenet, cifar10, cifar100, pets, flowers102 or vtab"
    for arguments, message in (
        (["./nothere"], f"./nothere is not a folder; expected one that holds {sets}"),
        (["./data"], f"data holds no data set of the suite; expected {sets}"),
        (
            ["./data", "data.evaluate=x"],
            "data.evaluate=x is one data set's or one run's; a suite has several: leave it out",
        ),
    ):
        answer = vit("finetune", "./model", *arguments, "--suite", "paper", "--device", "cpu")
        assert (answer.status, answer.err) == (2, f"error: {message}\n")
    answer = vit("finetune", "./model", "--suite", "paper", "--device", "cpu")
    assert f"{find_root(None)} holds no data set of the suite" in answer.err and "name a folder" in answer.err
    write_photos(tmp_path / "data" / "pets")
    answer = vit("finetune", "./model", "./data", "image_size=9", "--suite", "paper", "--device", "cpu")
    assert answer.status == 2 and "image_size 9 is not a multiple" in answer.err
    with pytest.raises(InputError, match="^unknown suite 'imagenet'; expected paper$"):
        run_suite("./model", "imagenet", "./data", device="cpu")


def test_several_processes_are_refused(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="^a suite runs in one process"):
        run_suite("./model", "paper", ".", device="cpu")


def test_without_a_folder_the_cache_is_looked_at(tmp_path: Path, standing: Standing) -> None:
    write_photos(tmp_path / "cache" / "data" / "pets")
    write_vtab(tmp_path / "cache" / "data")
    result = run_suite("./model", device="cpu")
    assert list(result.results) == ["pets", "vtab"]
    assert standing.vtab_asked["data"] == str(tmp_path / "cache" / "data" / "vtab")


def test_the_papers_columns_are_whole() -> None:
    columns = published_columns(model_config("H/14"))
    for name, numbers in TABLE_2.items():
        assert len(numbers.split()) == (2 if name.startswith("Noisy Student") else len(ROWS))
    assert all(len(numbers.split()) == len(ROWS) - 1 for numbers in TABLE_5.values()) and len(TABLE_5) == 14
    assert columns["H/14 JFT, table 2"]["vtab"] == PublishedAccuracy(0.7763, 0.0023)
    big_transfer, noisy = (
        columns[f"{name}, table 2"] for name in ("BiT-L (ResNet152x4)", "Noisy Student (EfficientNet-L2)")
    )
    assert list(big_transfer.items())[:2] == [
        ("imagenet", PublishedAccuracy(pytest.approx(0.8754), pytest.approx(0.0002))),
        ("real", PublishedAccuracy(pytest.approx(0.9054), None)),
    ]
    assert big_transfer["vtab"] == PublishedAccuracy(pytest.approx(0.7629), pytest.approx(0.017))
    assert noisy == {
        "imagenet": PublishedAccuracy(pytest.approx(0.884), None),
        "real": PublishedAccuracy(pytest.approx(0.9055), None),
    }
    assert set(SETS) <= set(ROWS)


def test_columns_that_fit_the_model_stand_next_to_it() -> None:
    table_2 = [f"{name}, table 2" for name in TABLE_2]
    for name in ("B/16", "B/32", "L/16", "L/32", "H/14"):
        config = model_config(name, num_classes=3, image_size=384 - 384 % int(name[2:]))
        assert paper_size(config) == name
        fitting = [f"{column}, table 5" for column in TABLE_5 if column.startswith(name)]
        assert list(published_columns(config)) == [*table_2, *fitting] and len(fitting) >= 2
    assert paper_size(model_config("Ti/16")) is None and paper_size(model_config("R50+B/16")) is None
    assert "B/16 JFT, table 5" in published_columns(model_config("Ti/16"))
    column = published_columns(model_config("B/16"))["B/16 I21k, table 5"]
    assert column["real"] == PublishedAccuracy(0.8835, None)
    assert "vtab" not in column
    assert len(TASKS) == 19
