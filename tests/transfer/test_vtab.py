"""The VTAB suite: means beside the paper's, protocols as settings, partial folders, resuming, tasks that fail."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.training.tiny_runs import Listener
from vitkit.config import from_dict, merge
from vitkit.costs import cost_of
from vitkit.data.sources import vtab as vtab_source
from vitkit.data.sources.vtab import TASKS
from vitkit.errors import InputError
from vitkit.evaluation.features import frozen_features
from vitkit.evaluation.fewshot import FewShot
from vitkit.models.configs import Preprocessing
from vitkit.models.names import model_config
from vitkit.predictor import load
from vitkit.training.config import TrainConfig
from vitkit.training.schedules import build_schedule
from vitkit.transfer.finetune import FinetuneRequest, FinetuneResult
from vitkit.transfer.head import FeatureNotes
from vitkit.transfer.protocols import part_changes
from vitkit.transfer.vtab import run
from vitkit.transfer.vtab.document import OverallMean, TaskResult, VtabResult, draw
from vitkit.transfer.vtab.protocols import PROTOCOLS, changes_of, operations_of, protocol_in_words
from vitkit.transfer.vtab.tasks import PRACTICE, PUBLISHED, Exercise, Missing, find_exercise, group_means

BOTH = ("train800val200", "test")
GROUP_OF = {name: task.group for name, task in TASKS.items()}


def write_task(folder: Path, name: str, test: int | None = None) -> None:
    """Write a task in the shared layout: one image to learn, to tune and to measure, which nothing decodes."""
    task = TASKS[name]
    place = folder / (task.folder or name)
    (place / "images").mkdir(parents=True)
    total = 1000 + (task.sizes[2] if test is None else test)
    for image in ("train.jpg", "val.jpg", "test.jpg"):
        (place / "images" / image).touch()
    lines = [
        f"images/{'train' if number < 800 else 'val' if number < 1000 else 'test'}.jpg {number % task.num_classes}"
        for number in range(total)
    ]
    parts = {"train800": lines[:800], "val200": lines[800:1000], "train800val200": lines[:1000]}
    for split, part in {**parts, "test": lines[1000:]}.items():
        (place / f"{split}.txt").write_text("\n".join(part))


def vtab(*arguments: Any, finetune: FakeFinetune | None = None, **options: Any) -> VtabResult:
    """Run VTAB with something in place of what trains."""
    with pytest.MonkeyPatch.context() as patch:
        if finetune is not None:
            patch.setattr("vitkit.transfer.vtab.run.run_finetuning", finetune)
        return run.vtab(*arguments, **options)


def recorded(run: str, document: VtabResult) -> dict[str, Any]:
    """Return what a run's record says of what its document says."""
    record = json.loads(Path("runs", run, "vtab.json").read_text())
    return {name: record[name] for name in document.to_json()}


class FakeFinetune:
    """Answers as run_finetuning does, and remembers what it was asked."""

    def __init__(self, accuracy: Callable[[str, Sequence[str]], float] | float = 0.5) -> None:
        self.accuracy = accuracy
        self.calls: list[dict[str, Any]] = []
        self.stop_at: str | None = None
        self.step = 0.0
        self.makes_plans = False

    def __call__(
        self, request: FinetuneRequest, make: Callable[[], object], path: Path, **options: Any
    ) -> FinetuneResult:
        if self.makes_plans:
            make()
        self.calls.append({**request.to_json(), "run": str(path), **options})
        if self.stop_at and self.stop_at in request.data:
            return FinetuneResult(request, "stopped", str(path))
        accuracy = self.accuracy
        if not isinstance(accuracy, float):
            accuracy = accuracy(request.data, request.changes)
        values = tuple(accuracy + self.step * seed for seed in range(request.seeds))
        return FinetuneResult(
            request,
            "done",
            str(path),
            model=f"{path}/model",
            protocol="paper",
            metric="accuracy",
            accuracy=statistics.mean(values),
            std=statistics.stdev(values) if len(values) > 1 else None,
            values=values,
            learning_rate=0.01,
            seconds=3.0,
        )


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.training.estimate.matrix_rate", lambda *_: 1e11)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    folder = tmp_path / "vtab"
    write_task(folder, "dtd")
    write_task(folder, "kitti")
    write_task(folder, "pets", test=20)
    return folder


def test_means_of_table_9_are_the_papers() -> None:  # ViT, table 9
    rows = list(PUBLISHED.values())
    means = [round(100 * statistics.fmean(row.values()), 2) for row in rows]
    assert means == [77.63, 76.29, 72.71]
    groups = [[round(100 * mean, 3) for mean in group_means(row, GROUP_OF).values()] for row in rows]
    wanted = [(86.69, 87.00, 65.03), (85.56, 86.725, 62.96), (83.27, 84.65, 57.50)]
    for found, expected in zip(groups, wanted, strict=True):
        assert found == pytest.approx(expected, abs=0.006)
    assert PUBLISHED["ViT-H/14 (JFT)"]["kitti"] == pytest.approx(0.845)
    assert PUBLISHED["ViT-L/16 (I21k)"]["smallnorb_ele"] == pytest.approx(0.417)


def exercise(name: str) -> Exercise:
    task = TASKS[name]
    is_small = task.image is not None and task.image[0] * task.image[1] < 96 * 96
    splits = {"test": "x"}
    return Exercise(
        name, task.title, task.group, task.num_classes, splits, 1, is_small, task.flip, task.crop, True
    )


def settings_of(protocol: str, name: str, model: str = "B/16", steps: int | None = None) -> TrainConfig:
    """Return the training run that a task's changes make."""
    changes = changes_of(protocol, exercise(name), model_config(model), steps)
    transfer, rest = part_changes(changes)
    assert transfer.protocol == "paper"
    base = {"name": "finetune", "model": {"name": model}, "data": {"train": "digits"}, "optimizer": {}}
    config = from_dict(TrainConfig, merge(base, rest), "the settings")
    assert config.data.pipeline and transfer.image_size
    assert f"({transfer.image_size})" in config.data.pipeline
    assert (config.optimizer.name, config.optimizer.momentum, config.optimizer.weight_decay) == (
        "sgd",
        0.9,
        0,
    )
    assert config.select == "last"
    return config


def rates(config: TrainConfig, steps: Sequence[int]) -> list[float]:
    assert isinstance(config.duration, int)
    schedule = build_schedule(config.schedule, config.optimizer.learning_rate, config.duration, 1.0)
    return [schedule(step) for step in steps]


def test_vits_protocol() -> None:
    config = settings_of("vit", "caltech101")
    assert (config.duration, config.batch_size, config.optimizer.clip_norm) == (2500, 512, 1.0)
    assert config.data.pipeline == "resize(448)|random_crop(384)|flip"
    assert rates(config, [0, 250, 500, 1500, 2500]) == pytest.approx([0, 0.005, 0.01, 0.005, 0], abs=1e-9)
    assert settings_of("vit", "cifar100").data.pipeline == "resize(448)|random_crop(384)|flip"
    assert settings_of("vit", "kitti").data.pipeline == "resize(384)|flip"
    assert settings_of("vit", "dsprites_loc").data.pipeline == "resize(384)"
    assert settings_of("vit", "smallnorb_azi").data.pipeline == "resize(448)|random_crop(384)"
    assert settings_of("vit", "dtd", "H/14").data.pipeline == "resize(441)|random_crop(378)|flip"
    tall = model_config("B/16", image_size=(224, 112))  # keeps its proportions, with the pixels of 384 x 384
    assert "image_size=544x272" in changes_of("vit", exercise("dtd"), tall, None)
    assert settings_of("vit", "dtd", steps=10).duration == 10


def test_bits_rule() -> None:
    config = settings_of("bit", "dtd")
    assert (config.duration, config.batch_size, config.optimizer.clip_norm) == (500, 512, None)
    # computed by hand: 1,000 examples.
    found = rates(config, [50, 100, 200, 201, 301, 401])
    assert found == pytest.approx([0.0015, 0.003, 0.003, 3e-4, 3e-5, 3e-6])
    assert config.data.pipeline == "resize(448)|random_crop(384)|flip"
    small = {name for name in TASKS if "128" in settings_of("bit", name).data.pipeline}
    assert small == {"cifar100", "svhn", "eurosat", "dsprites_loc", "dsprites_ori"}
    assert settings_of("bit", "svhn").data.pipeline == "resize(160)|random_crop(128)|flip"
    assert settings_of("bit", "dsprites_loc").data.pipeline == "resize(128)"


def test_the_light_script() -> None:
    config = settings_of("light", "svhn")
    assert (config.duration, config.batch_size, config.optimizer.clip_norm) == (1000, 64, None)
    assert config.data.pipeline == "resize(224)"
    found = rates(config, [0, 40, 80, 300, 301, 601, 901])
    assert found == pytest.approx([0, 0.005, 0.01, 0.01, 1e-3, 1e-4, 1e-5])


def test_a_shortened_protocol_says_so() -> None:
    assert protocol_in_words("vit", None) == "vit: 2,500 steps of 512 images, learning rate 0.01, 384 px"
    assert "20 steps (the protocol's are 2,500)" in protocol_in_words("vit", 20)
    assert protocol_in_words("light", 1).startswith("light: 1 step (the protocol's are 1,000) of 64 images")
    assert "small images 128 px" in protocol_in_words("bit", None)
    assert list(PROTOCOLS) == ["vit", "bit", "light"]


def test_a_partial_folder_says_what_is_there(partial: Path) -> None:
    finetune, listener = FakeFinetune(0.25), Listener()
    (partial / "svhn").mkdir()
    document = vtab("Ti/16", str(partial), run="mine", listener=listener, finetune=finetune)
    assert listener.notes[0] == f"{partial}: 3 of 19 tasks are there: dtd, pets, kitti"
    assert (
        f"cifar100: absent: vtab/cifar100 is not in {partial}: expected {partial}/cifar/ with "
        "train800val200.txt and test.txt, or cifar-100-python/" in listener.notes
    )
    assert (
        "vtab/pets: not the official images: test.txt names 20, VTAB's test split has 3,669" in listener.notes
    )
    assert [call["data"] for call in finetune.calls] == [
        f"vtab/{name}:train800val200[root={partial}]" for name in ("dtd", "pets", "kitti")
    ]
    first = finetune.calls[0]
    assert first["changes"][-1] == f"data.evaluate=vtab/dtd:test[root={partial}]"
    assert (first["run"], first["seeds"]) == ("runs/mine/dtd", 1)
    assert document.status == "done"
    assert document.overall == OverallMean("mean of 3 tasks, not the official images", 0.25, None, (0.25,), 3)
    assert document.official_images is False
    official = {entry.task: entry.official_images for entry in document.tasks if entry.accuracy}
    assert official == {"dtd": True, "pets": False, "kitti": True}
    assert [(group.group, group.tasks, group.of) for group in document.groups] == [
        ("Natural", 2, 7),
        ("Structured", 1, 8),
    ]
    published = document.published[0]
    assert published.groups["Natural"] == pytest.approx((0.752 + 0.972) / 2)
    assert published.overall == pytest.approx((0.752 + 0.972 + 0.845) / 3)
    assert document.device_hours == pytest.approx(9 / 3600)
    assert Path(document.figure).read_bytes().startswith(b"\x89PNG")
    assert recorded("mine", document) == document.to_json()
    assert "NaN" not in Path("runs/mine/vtab.json").read_text()


@pytest.mark.slow
def test_all_tasks_together_are_vtab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "vitkit.transfer.vtab.tasks.find_exercise", lambda data, name: exercise_in(data, name)
    )
    document = vtab("Ti/16", str(tmp_path), run="all", finetune=FakeFinetune(lambda data, _: paper(data)))
    assert document.overall.name == "VTAB-1k"
    assert document.mean == pytest.approx(0.7763, abs=5e-5)
    assert [group.accuracy for group in document.groups] == pytest.approx([0.8669, 0.87, 0.6503], abs=6e-5)
    assert document.official_images is True


def exercise_in(data: str, name: str) -> Exercise:
    task = TASKS[name]
    splits = {split: f"vtab/{name}:{split}" for split in ("train800", "val200", "train800val200", "test")}
    return Exercise(
        name, task.title, task.group, task.num_classes, splits, 10, False, task.flip, task.crop, True
    )


def paper(data: str) -> float:
    return PUBLISHED["ViT-H/14 (JFT)"][data.removeprefix("vtab/").split(":")[0]]


@pytest.mark.slow
def test_what_is_done_is_not_run_again(partial: Path) -> None:
    finetune = FakeFinetune()
    vtab("Ti/16", str(partial), run="mine", tasks="dtd", finetune=finetune)
    listener = Listener()
    document = vtab("Ti/16", str(partial), run="mine", listener=listener, finetune=finetune)
    assert [call["run"] for call in finetune.calls] == ["runs/mine/dtd", "runs/mine/pets", "runs/mine/kitti"]
    assert "dtd (1 of 3): already finished" in listener.notes
    assert document.overall.tasks == 3
    vtab("Ti/16", str(partial), run="mine", force=True, finetune=finetune)
    assert len(finetune.calls) == 6


@pytest.mark.slow
def test_the_same_command_is_the_same_run(partial: Path) -> None:
    finetune = FakeFinetune()
    first = vtab("Ti/16", str(partial), tasks="dtd", finetune=finetune)
    assert vtab("Ti/16", str(partial), tasks="dtd", finetune=finetune).run == first.run
    other = vtab("Ti/16", str(partial), tasks="dtd", protocol="light", finetune=finetune)
    assert other.run != first.run and len(finetune.calls) == 2
    with pytest.raises(InputError) as error:
        vtab("Ti/16", str(partial), protocol="bit", run=first.run, finetune=finetune)
    assert str(error.value) == (
        f'{first.run} holds a run with other settings: protocol is "vit" there, "bit" here; '
        "choose another --run, or start over with --force"
    )


@pytest.mark.slow
def test_a_task_that_fails_leaves_the_others(partial: Path) -> None:
    def accuracy(data: str, changes: Sequence[str]) -> float:
        if "pets" in data:
            raise RuntimeError("out of luck\nand more")
        return 0.5

    document = vtab("Ti/16", str(partial), run="mine", finetune=FakeFinetune(accuracy))
    assert document.status == "failed"
    by_name = {entry.task: entry for entry in document.tasks}
    assert (by_name["pets"].status, by_name["pets"].reason) == ("failed", "RuntimeError: out of luck")
    assert by_name["kitti"].status == "done"
    assert document.overall.name == "mean of 2 tasks"
    again = FakeFinetune()
    assert vtab("Ti/16", str(partial), run="mine", finetune=again).status == "done"
    assert [call["run"] for call in again.calls] == ["runs/mine/pets"]


def test_broken_data_is_a_failure_and_the_others_run(partial: Path) -> None:
    (partial / "dtd" / "train800val200.txt").write_text("images/0.jpg 99\n")
    finetune = FakeFinetune()
    document = vtab("Ti/16", str(partial), run="mine", finetune=finetune)
    assert document.status == "failed" and len(finetune.calls) == 2
    reason = next(entry.reason for entry in document.tasks if entry.task == "dtd")
    assert reason == f"{partial}/dtd/train800val200.txt, line 1, has label 99; DTD has 47 classes, 0 to 46"
    with pytest.raises(InputError, match="has label 99"):
        vtab("Ti/16", str(partial), tasks="dtd", run="mine", finetune=finetune)


@pytest.mark.slow
def test_a_stopped_run_goes_on(partial: Path) -> None:
    finetune = FakeFinetune()
    finetune.stop_at = "pets"
    document = vtab("Ti/16", str(partial), run="mine", finetune=finetune)
    assert document.status == "stopped"
    assert [entry.task for entry in document.tasks if entry.status == "done"] == ["dtd"]
    finetune.stop_at = None
    assert vtab("Ti/16", str(partial), run="mine", finetune=finetune).status == "done"
    assert len(finetune.calls) == 4


def test_frozen_features_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([TaskResult(0.5, 1.0), KeyboardInterrupt, TaskResult(0.6, 1.0)])

    def fit(*_: object) -> object:
        answer = next(answers)
        if answer is KeyboardInterrupt:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr("vitkit.transfer.vtab.run.fit_frozen", fit)
    options: dict[str, Any] = {"protocol": "fewshot", "tasks": "class,x", "run": "mine", "device": "cpu"}
    document = vtab(tiny_model(tmp_path / "tiny"), "shapes", **options)
    assert document.status == "stopped"
    assert [entry.task for entry in document.tasks if entry.status == "done"] == ["class"]
    assert vtab(str(tmp_path / "tiny"), "shapes", **options).overall.accuracy == pytest.approx(0.55)


def test_tuning_is_on_val200_and_the_last_run_on_both(partial: Path) -> None:
    def accuracy(data: str, changes: Sequence[str]) -> float:
        return 0.9 if "optimizer.learning_rate=0.003" in changes else 0.1

    finetune = FakeFinetune(accuracy)
    document = vtab("Ti/16", str(partial), tasks="dtd", sweep="lr", seeds=2, run="mine", finetune=finetune)
    *tried, last = finetune.calls
    assert [call["changes"][-2] for call in tried] == [
        f"optimizer.learning_rate={rate}" for rate in ("0.001", "0.003", "0.01", "0.03")
    ]
    for call in tried:
        assert "vtab/dtd:train800[" in call["data"] and "vtab/dtd:val200[" in call["changes"][-1]
        assert call["seeds"] == 1
    assert "vtab/dtd:train800val200[" in last["data"] and "vtab/dtd:test[" in last["changes"][-1]
    assert last["changes"][-2] == "optimizer.learning_rate=0.003" and last["seeds"] == 2
    entry = next(entry for entry in document.tasks if entry.task == "dtd")
    assert len(entry.tuning) == 4 and entry.std == 0
    assert document.device_hours == pytest.approx(5 * 3 / 3600)  # four of the sweep and the last
    assert document.words == (
        "vit: 2,500 steps of 512 images, learning rate chosen by val200, 384 px, mean of 2 seeds"
    )


def test_of_equal_rates_the_middle_one_is_chosen(partial: Path) -> None:
    finetune = FakeFinetune(0.5)
    vtab("Ti/16", str(partial), tasks="dtd", sweep="lr", run="mine", finetune=finetune)
    assert "optimizer.learning_rate=0.01" in finetune.calls[-1]["changes"]


def test_each_split_is_opened_once(partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the inventory, four runs of a sweep and the last run together."""
    opened: list[tuple[str, ...]] = []

    def reading(folder: Path, splits: Sequence[str], *arguments: Any) -> Any:
        opened.append((folder.name, *splits))
        return read_lists(folder, splits, *arguments)

    read_lists = vtab_source._read_lists
    monkeypatch.setattr(vtab_source, "_read_lists", reading)
    finetune = FakeFinetune()
    finetune.makes_plans = True
    document = vtab("Ti/16", str(partial), tasks="dtd", sweep="lr", run="mine", finetune=finetune)
    assert document.status == "done" and len(finetune.calls) == 5
    assert sorted(split for name, split in opened if name == "dtd") == sorted(vtab_source.SPLITS)
    assert len(opened) == len(set(opened))


@pytest.mark.slow
def test_all_the_time_is_told_before_anything_starts(partial: Path) -> None:
    finetune, listener = FakeFinetune(), Listener()
    vtab(
        "Ti/16",
        str(partial),
        sweep="lr",
        seeds=2,
        run="mine",
        device="cpu",
        listener=listener,
        finetune=finetune,
    )
    first = listener.notes.index("dtd (1 of 3)")
    shorter, summary = listener.notes[first - 2 : first]
    assert summary.startswith(
        f"Ti/16 on {partial}, protocol vit: 2,500 steps of 512 images, learning rate chosen by val200, 384 px"
    )
    # Ti/16 at 384 px: 3 tasks of 6 runs; matrices at 1e11 operations a second, 40% of it.
    macs = cost_of(model_config("Ti/16", image_size=384)).macs
    tests = 2 * (TASKS["dtd"].sizes[2] + 20 + TASKS["kitti"].sizes[2]) + 3 * 4 * 200
    days = 2 * macs * (3 * 18 * 2500 * 512 + tests) / 4e10 / 86400
    assert summary.endswith(
        f": 3 tasks, each 2 seeds, and 4 learning rates tried; roughly {days:.1f} days on cpu"
    )
    assert shorter.startswith("shorter: --steps N (now 2,500), --protocol light or fewshot, --tasks A,B")
    vtab(
        "Ti/16",
        str(partial),
        sweep="lr",
        seeds=2,
        run="mine",
        device="cpu",
        listener=listener,
        finetune=finetune,
    )
    assert sum("roughly" in line for line in listener.notes) == 1  # nothing is left to do


def test_features_cost_one_forward_pass() -> None:
    task, model = exercise("dtd"), model_config("Ti/16")
    how: dict[str, Any] = {"steps": None, "seeds": 1, "sweep": None}
    assert operations_of("fewshot", task, model, **how) == 2 * cost_of(model).macs * 1001


def test_deviations_of_means_are_those_of_the_seeds(partial: Path) -> None:
    def accuracy(data: str, changes: Sequence[str]) -> float:
        return 0.5 if "dtd" in data else 0.25

    finetune = FakeFinetune(accuracy)
    finetune.step = 0.1
    document = vtab("Ti/16", str(partial), seeds=3, run="mine", finetune=finetune)
    mean = (0.5 + 0.25 + 0.25) / 3
    assert document.overall.values == pytest.approx([mean, mean + 0.1, mean + 0.2])
    assert document.overall.std == pytest.approx(0.1)
    assert [group.std for group in document.groups] == pytest.approx([0.1, 0.1])


def test_changes_reach_every_task_and_are_told(partial: Path) -> None:
    finetune = FakeFinetune()
    changes = ["protocol=paper", "image_size=100", "batch_size=8"]
    document = vtab("Ti/16", str(partial), steps=3, changes=changes, run="mine", finetune=finetune)
    for call in finetune.calls:
        assert "image_size=96" in call["changes"] and call["changes"][-2] == "batch_size=8"
    pipelines = [change for change in finetune.calls[0]["changes"] if change.startswith("data.pipeline=")]
    assert pipelines == ["data.pipeline=resize(112)|random_crop(96)|flip"]
    assert document.words.endswith("; changed: image_size=100, batch_size=8")
    with pytest.raises(InputError, match="image_size is 100 there, unset here"):
        vtab("Ti/16", str(partial), steps=3, run="mine", finetune=finetune)
    for change in ("protocol=quick", "minutes=3", "duration=5", "data.evaluate=x", "droput=1"):
        with pytest.raises(InputError):
            vtab("Ti/16", str(partial), changes=[change], run="other", finetune=finetune)
    assert not Path("runs/other").exists()


@pytest.mark.parametrize(("patch", "side"), [(14, 378), (20, 380), (16, 384), (100, 400)])
def test_a_side_that_patches_do_not_fill_is_rounded(patch: int, side: int) -> None:
    model = model_config("Ti/16", patch=patch, image_size=2 * patch)
    changes = changes_of("vit", exercise("kitti"), model, None)
    assert f"image_size={side}" in changes and f"data.pipeline=resize({side})|flip" in changes


def test_a_size_may_be_height_x_width() -> None:
    changes = changes_of("vit", exercise("dtd"), model_config("Ti/16"), None, ["image_size=160x321"])
    assert "image_size=160x320" in changes
    assert "data.pipeline=resize(187x373)|random_crop(160x320)|flip" in changes


def test_shapes_practises_and_is_not_compared() -> None:
    finetune = FakeFinetune()
    document = vtab("Ti/16", "shapes", protocol="light", steps=3, run="mine", finetune=finetune)
    assert [entry.task for entry in document.tasks] == list(PRACTICE)
    assert document.published == () and document.official_images is False
    assert document.overall.name == "practice on shapes, mean of 6 tasks"
    assert {entry.group for entry in document.tasks} == {"Natural", "Specialized", "Structured"}
    assert finetune.calls[2]["data"] == "shapes:train[:1000,label=count,size=32]"
    assert finetune.calls[2]["changes"][-1] == "data.evaluate=shapes:test[:1000,label=count,size=32]"


def test_practice_splits_are_apart() -> None:
    from vitkit.data.open import open_data

    for name in PRACTICE:
        task = find_exercise("shapes", name)
        assert isinstance(task, Exercise)
        sources = {split: open_data(data) for split, data in task.splits.items()}
        sizes = {split: len(source) for split, source in sources.items()}
        assert sizes == {"train800": 800, "val200": 200, "train800val200": 1000, "test": 1000}
        assert sources["train800"].num_classes == task.num_classes
        both = [*sources["train800"].labels, *sources["val200"].labels]
        assert both == sources["train800val200"].labels.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"protocol": "vti"},
            "unknown protocol 'vti'; did you mean 'vit'? expected vit, bit, light, fewshot",
        ),
        ({"seeds": 0}, "seeds must be at least 1, not 0"),
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"sweep": "wd"}, "sweep is 'wd'; expected lr"),
        (
            {"protocol": "fewshot", "steps": 5},
            "--steps has no meaning for protocol fewshot, which solves for its head: leave it out",
        ),
        ({"tasks": "dtf"}, "VTAB has no task 'dtf'; did you mean 'dtd'?"),
        ({"tasks": ","}, "--tasks names no task; expected tasks such as --tasks dtd,svhn"),
        (
            {"tasks": "resisc45"},
            "vtab/resisc45 is not in {root}: expected {root}/resisc45/ with train800val200.txt and test.txt",
        ),
        ({"model": "Q/16"}, "unknown model 'Q/16'"),
        ({"device": "tpu"}, "unknown device 'tpu'; expected auto, cpu, cuda or mps"),
        (
            {"data": "nowhere"},
            "nowhere is not a folder; expected shapes, or the folder of VTAB's tasks, such as a folder with "
            "cifar/train800val200.txt in it",
        ),
        (
            {"data": "shapes", "tasks": "dtd"},
            "shapes has no task 'dtd'; there are class, class_small, count, ",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    partial: Path, options: dict[str, Any], message: str
) -> None:
    finetune = FakeFinetune()
    with pytest.raises(InputError) as error:
        vtab(**{"model": "Ti/16", "data": str(partial), "finetune": finetune, **options})
    assert message.format(root=partial) in str(error.value)
    assert not finetune.calls and not Path("runs").exists()


def test_an_empty_folder_and_a_folder_of_other_things(partial: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    listener = Listener()
    with pytest.raises(InputError, match=r"^\S+ holds no task of VTAB; expected folders such as dtd/ with "):
        vtab("Ti/16", str(tmp_path / "empty"), listener=listener, finetune=FakeFinetune())
    assert listener.notes == []
    (tmp_path / "runs" / "other").mkdir(parents=True)
    (tmp_path / "runs" / "other" / "a.txt").touch()
    with pytest.raises(InputError) as error:
        vtab("Ti/16", str(partial), run="other", finetune=FakeFinetune())
    assert (
        str(error.value) == "runs/other holds 'a.txt' and no vtab.json: not a VTAB run; choose another --run"
    )
    (tmp_path / "a,b").mkdir()
    with pytest.raises(InputError, match="has a comma or bracket in its name"):
        vtab("Ti/16", str(tmp_path / "a,b"), finetune=FakeFinetune())


def test_a_missing_task_says_whether_it_is_broken(partial: Path) -> None:
    absent = find_exercise(str(partial), "svhn")
    assert isinstance(absent, Missing) and not absent.is_failure
    (partial / "dtd" / "test.txt").unlink()
    broken = find_exercise(str(partial), "dtd")
    assert isinstance(broken, Missing) and broken.is_failure
    assert broken.reason.startswith("vtab/dtd has no split 'test'")


@pytest.mark.parametrize("protocol", ["vit", "fewshot"])
def test_images_are_not_learned_from_and_measured(partial: Path, protocol: str) -> None:
    with (partial / "dtd" / "test.txt").open("a") as file:
        file.write("\nimages/train.jpg 3")
    reason = "vtab/dtd: test shares 1 image with train: restore the lists"
    with pytest.raises(InputError, match=f"^{reason}$"):
        vtab("Ti/16", str(partial), protocol=protocol, tasks="dtd", finetune=FakeFinetune())
    document = vtab("Ti/16", str(partial), run="mine", finetune=FakeFinetune())
    by_name = {entry.task: entry for entry in document.tasks}
    assert (by_name["dtd"].status, by_name["dtd"].reason) == ("failed", reason)
    assert by_name["pets"].status == "done"


def tiny_model(folder: Path) -> str:
    import torch

    import vitkit

    torch.manual_seed(0)
    model = vitkit.create_model(
        "Ti/16", width=16, depth=1, heads=2, mlp_width=32, image_size=32, num_classes=0
    )
    vitkit.save(model, folder, preprocessing=Preprocessing(image_size=32))
    return str(folder)


@pytest.mark.slow
def test_frozen_features_of_practice_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("vitkit.transfer.vtab.tasks.SHAPES_TEST", 100)
    model = tiny_model(tmp_path / "tiny")
    monkeypatch.setattr(
        "vitkit.transfer.vtab.run.FeatureNotes", lambda heard: FeatureNotes(heard, 0.0)
    )  # at once
    listener = Listener()
    options: dict[str, Any] = {"protocol": "fewshot", "run": "mine", "device": "cpu"}
    document = vtab(model, "shapes", tasks="class,x", listener=listener, **options)
    assert document.status == "done" and document.overall.tasks == 2
    assert "features: 1,000 of 1,000 images" in listener.notes
    by_name = {entry.task: entry for entry in document.tasks}
    assert [name for name, entry in by_name.items() if entry.status == "done"] == ["class", "x"]
    assert all(by_name[name].accuracy is None for name in ("count", "orientation"))
    for name in ("class", "x"):
        task = find_exercise("shapes", name)
        assert isinstance(task, Exercise)
        predictor = load(model, device="cpu")
        train, test = (
            frozen_features(predictor, task.splits[split], default="train", cache=False) for split in BOTH
        )
        answers = FewShot().fit(train.x, train.labels).predict(test.x)
        assert by_name[name].accuracy == pytest.approx(np.mean(answers == test.labels))
    assert recorded("mine", document) == document.to_json()


@pytest.mark.slow
def test_from_start_to_end_on_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.transfer.vtab.tasks.SHAPES_TEST", 64)
    model, listener = tiny_model(tmp_path / "tiny"), Listener()
    options: dict[str, Any] = {
        "protocol": "light",
        "steps": 2,
        "tasks": "count",
        "run": "mine",
        "device": "cpu",
    }
    document = vtab(model, "shapes", **options, seeds=2, listener=listener)
    assert document.status == "done", [entry.reason for entry in document.tasks]
    assert (tmp_path / "runs" / "mine" / "count").is_dir()
    done = [entry for entry in document.tasks if entry.status == "done"]
    assert [entry.task for entry in done] == ["count"]
    # What finetune calls its protocol and its settings is not what these are called here.
    said = "\n".join(listener.notes)
    assert (
        "protocol light: 2 steps (the protocol's are 1,000) of 64 images, learning rate 0.01, 224 px" in said
    )
    assert (
        "shorter: --steps N (now 2), --protocol fewshot, --tasks A,B, a smaller model, a GPU"
        in listener.notes
    )
    assert "HyperRule" not in said and "model.name" not in said and "protocol paper" not in said
    assert said.count("roughly ") == 1 and "cost: " not in said
    assert said.index("roughly ") < said.index("count (1 of 1)")
    [values] = [entry.values for entry in done]
    assert document.overall.values == values and len(values) == 2
    again = vtab(model, "shapes", **options, seeds=2)
    assert again.mean == document.mean


def test_a_figure_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, being_read = tmp_path / "vtab.png", tmp_path / "being read"
    figure.write_bytes(b"old")
    os.link(figure, being_read)
    monkeypatch.setattr("vitkit.transfer.vtab.document.bars", lambda *_: b"new")
    overall = OverallMean("VTAB-1k", 0.5, None, (0.5,), 0)
    document: Any = SimpleNamespace(overall=overall, tasks=(), groups=(), published=(), official_images=True)
    draw(document, "title", figure)
    assert (figure.read_bytes(), being_read.read_bytes()) == (b"new", b"old")
