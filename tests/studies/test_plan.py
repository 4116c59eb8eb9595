"""What a study costs: table 6's exaFLOPs without JFT, and data that doesn't fit refused before anything is spent."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from tests.studies.finished import write_run
from vitkit import plan_study
from vitkit.costs import cost_of
from vitkit.errors import InputError
from vitkit.models.names import model_config
from vitkit.published import PUBLISHED_SCALING
from vitkit.studies.config import list_studies, read_study
from vitkit.studies.measures import Work
from vitkit.studies.pace import Pace
from vitkit.studies.plan import check_runs

LIMITS = {"ViT": 0.021, "Hybrid": 0.03, "ResNet": 0.045}


@pytest.fixture(autouse=True)
def rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of 1 TFLOP/s."""
    monkeypatch.setattr("vitkit.studies.pace.matrix_rate", lambda *_: 1e12)


def test_table_6_without_jft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_study("paper_compute", device="cpu")
    assert "./jft:train" in plan.absent
    assert [run.model for run in plan.runs] == [name for name, *_ in PUBLISHED_SCALING]
    for run, (name, epochs, published) in zip(plan.runs, PUBLISHED_SCALING, strict=True):
        assert abs(run.exaflops / published - 1) < LIMITS[run.family], name
        assert run.images == 303_000_000
        assert abs(run.steps * run.batch_size - epochs * 303e6) <= 4096
    assert plan.exaflops == pytest.approx(sum(run.exaflops for run in plan.runs))


def test_the_number_of_images_is_a_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole, tenth = (
        plan_study("paper_compute", [f"data_images={images}"], device="cpu")
        for images in (303_000_000, 30_300_000)
    )
    assert tenth.exaflops == pytest.approx(whole.exaflops / 10, rel=1e-4)


TEXT = """\
# Widths on digits.
recipe: digits
settings: {duration: 20}
grid:
  model: {narrow: {}, wide: {model.width: 128}}
  images: [100, 400]
measure:
  - {by: knn, data: digits}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "widths.yaml"
    path.write_text(TEXT)
    return path


def test_cost_follows_from_model_and_steps(study: Path) -> None:
    plan = plan_study(study, device="cpu")
    names = ["narrow_images-100", "narrow_images-400", "wide_images-100", "wide_images-400"]
    assert [run.name for run in plan.runs] == names
    run = plan.runs[-1]
    fields = {"patch": 4, "depth": 4, "heads": 4, "mlp_width": 128, "pool": "mean", "image_size": 16}
    cost = cost_of(model_config("Ti/16", width=128, num_classes=10, **fields))
    assert (run.images, run.steps, run.batch_size, run.family) == (400, 20, 128, "ViT")
    assert (run.parameters, run.macs) == (cost.parameters, cost.macs)
    assert run.exaflops == pytest.approx(6 * cost.macs * 20 * 128 / 1e18)
    # 4 evaluations on the 382 images of test, then features of all 1,797 images.
    assert run.seconds == pytest.approx(2 * cost.macs * (3 * 20 * 128 + 4 * 382 + 1157 + 382) / 0.4e12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("settings.model.patch=32", "smaller than one patch"),
        ("settings.model.image_size=24", "the pipeline gives images of 16x16, but the model takes 24x24"),
        ("grid={images: [100, 5000]}", "asks for image 5,000"),
        ("settings.schedule.warmup=21", "warmup and cooldown take 21 and 0 steps"),
        ("settings.data.train=./nowhere:train", "to plan without it, give data_images=NUMBER"),
        ("settings.model.num_classes=7", "num_classes in model differs from the data's 10 classes"),
        ("settings.model.name=B/16x", "unknown model 'B/16x'"),
        ("settings.duration=0", "is less than one step"),
    ],
)
def test_a_run_that_cannot_start_is_refused(study: Path, change: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        plan_study(study, ["grid={model: {narrow: {}}}", change], device="cpu")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command(vit: Callable[..., Any], study: Path) -> None:
    answer = vit("study", "plan", str(study), "grid.images=[100]", "--device", "cpu")
    assert answer.status == 0
    assert "narrow_images-100" in answer.out
    assert "2 runs" in answer.out
    document = json.loads(vit("study", "plan", str(study), "--device", "cpu", "--json").out)
    assert [run["images"] for run in document["runs"]] == [100, 400, 100, 400]
    answer = vit("study", "plan", str(study), "grid.images=[]")
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert answer.err.startswith("error: grid.images is []; expected")
    assert (
        vit("study", "pln").err
        == "error: unknown verb 'pln'; did you mean 'plan'? `vit study --help` lists them all\n"
    )


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (
            "{by: fewshot, data: digits, shots: 5000}",
            "measure 'digits 5000-shot': shots of digits:train must be at most",
        ),
        ("{by: knn, data: 'digits:train[:5]'}", "digits:train[:5] has no image"),
        (
            "{by: knn, data: 'digits:train[:40]', neighbours: 50}",
            "neighbours in digits:train[:40] must be at most 40",
        ),
        (
            "{by: knn, data: digits, evaluate: 'digits:train'}",
            "holds 1,157 of the images that would be measured",
        ),
        ("{by: test, data: 'shapes:test[:10]'}", "shapes has class"),
        ("{by: finetune, data: digits, settings: {droput: 0.1}}", "unknown setting 'droput'"),
        ("{by: finetune, data: ./nowhere, settings: {droput: 0.1}}", "unknown setting 'droput'"),
        (
            "{by: finetune, data: digits, settings: {protocol: paper, image_size: 31}}",
            "image_size 31 is not a multiple",
        ),
        (
            "{by: finetune, data: digits, settings: {protocol: paper, duration: 5, schedule.warmup: 9}}",
            "warmup",
        ),
    ],
)
def test_a_measure_that_cannot_work_is_refused(study: Path, measure: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        plan_study(study, [f"measure=[{measure}]"], device="cpu")
    assert message in str(error.value) and str(error.value).startswith("run narrow_images-100: measure ")
    assert "\n" not in str(error.value)


def test_what_is_measured_on_is_looked_for(study: Path) -> None:
    plan = plan_study(study, ["measure=[{by: knn, data: digits, evaluate: ./nowhere}]"], device="cpu")
    assert plan.absent == ("./nowhere",)


def seconds_of(study: Path, measure: str) -> float:
    """Return the estimated time of a run's measure alone."""
    plain, whole = (plan_study(study, [f"measure=[{each}]"], device="cpu").runs[0] for each in ("", measure))
    return whole.seconds - plain.seconds


def test_a_fine_tuning_costs_its_own_size_and_steps(study: Path) -> None:
    paper = "{by: finetune, data: digits, seeds: 2, settings: {protocol: paper, image_size: 32, duration: 7, batch_size: 64}}"
    fields = {
        "patch": 4,
        "depth": 4,
        "heads": 4,
        "mlp_width": 128,
        "width": 64,
        "pool": "mean",
        "image_size": 32,
    }
    macs = cost_of(model_config("Ti/16", num_classes=10, **fields)).macs
    assert seconds_of(study, paper) == pytest.approx(2 * 2 * macs * (3 * 7 * 64 + 382) / 0.4e12)
    # Without a duration, the protocol's own: 500 steps of 512 for so few images, of 128 pixels for such small ones.
    macs = cost_of(model_config("Ti/16", num_classes=10, **(fields | {"image_size": 128}))).macs
    own = "{by: finetune, data: digits, settings: {protocol: paper}}"
    assert seconds_of(study, own) == pytest.approx(2 * macs * (3 * 500 * 512 + 382) / 0.4e12)
    quick = "{by: finetune, data: digits, seeds: 2, settings: {protocol: quick, minutes: 3}}"
    assert seconds_of(study, quick) == pytest.approx(2 * 3 * 60)


def test_the_papers_protocol_is_known_without_its_data(study: Path) -> None:
    macs = cost_of(
        model_config(
            "Ti/16",
            patch=4,
            depth=4,
            heads=4,
            mlp_width=128,
            width=64,
            pool="mean",
            image_size=384,
            num_classes=10,
        )
    ).macs
    assert seconds_of(study, "{by: finetune, data: ./cifar10, settings: {protocol: paper}}") == pytest.approx(
        6 * macs * 10_000 * 512 / 0.4e12
    )


def test_models_are_timed_once(study: Path, vit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parent)
    monkeypatch.setattr("vitkit.transfer.outlook.TRIAL_SECONDS", 0.05)
    assert not plan_study(study, device="cpu").is_measured
    answer = vit("study", "plan", str(study), "--measure", "--device", "cpu")
    assert "as measured here" in answer.out
    assert [line for line in answer.err.splitlines() if line.startswith("timing")] == [
        "timing the model of narrow_images-100",
        "timing the model of wide_images-100",
    ]
    kept = json.loads(Path("runs/widths/paces.json").read_text())
    assert len(kept) == 2 and all(pace["trained"] > 0 and pace["passed"] > 0 for pace in kept.values())
    plan = plan_study(study, device="cpu")
    assert plan.is_measured
    pace = Pace(**next(iter(kept.values())))
    macs = plan.runs[0].macs
    work = Work(trained=6 * macs * 20 * 128, passed=2 * macs * (4 * 382 + 1157 + 382), starts=1)
    assert plan.runs[0].seconds == pytest.approx(pace.seconds(work))
    # Another batch size is another pace.
    assert not plan_study(study, ["settings.batch_size=64"], device="cpu").is_measured
    # What runs of a study take is counted in these seconds.
    found = read_study(study)
    seconds, _ = check_runs(found, found.runs, Path("runs/widths"), torch.device("cpu"))
    assert seconds == {run.name: pytest.approx(run.seconds) for run in plan.runs}


def test_the_total_time_counts_runs_that_share_a_device(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parent)
    alone = plan_study(study, device="cpu")
    assert (alone.workers, alone.seconds) == (1, pytest.approx(sum(run.seconds for run in alone.runs)))
    Path("runs/widths").mkdir(parents=True)
    found = {"images_per_second": {"1": 100.0, "2": 150.0, "4": 152.0}}
    Path("runs/widths/workers.json").write_text(json.dumps(found))
    shared = plan_study(study, device="cpu")
    assert (shared.workers, shared.seconds) == (2, pytest.approx(alone.seconds / 1.5))


def test_a_large_model_is_timed_without_its_data(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parent)
    monkeypatch.setattr("vitkit.transfer.outlook.TRIAL_SECONDS", 0.05)
    changes = [
        "data_images=1000",
        "data_classes=7",
        "settings.data.train=./nowhere",
        "measure=[]",
        "grid.images=[500]",
    ]
    changes += [
        "settings.data.evaluate=null",
        "settings.batch_size=256",
        "settings.data.pipeline='inception_crop(16)|flip'",
    ]
    monkeypatch.setattr("vitkit.studies.pace.LONGEST", 0.01)  # so that a smaller batch is timed
    assert plan_study(study, changes, measure=True, device="cpu").is_measured


def test_too_few_computes_for_a_law_are_a_warning(study: Path, vit: Callable[..., Any]) -> None:
    answer = vit("study", "plan", str(study), "figures=[laws]", "--device", "cpu")
    words = "ViT will have no law: a law needs 3 different computes or more, and there are 2; add sizes or durations"
    assert words in answer.err.splitlines()
    assert (
        plan_study(study, ["figures=[laws]", "grid.duration=[20, 30]", "settings={}"], device="cpu").notes
        == ()
    )


def test_other_settings_than_a_runs_are_refused(study: Path, tmp_path: Path) -> None:
    found = read_study(study)
    run = found.runs[0]
    write_run(tmp_path / run.name, run, (), (), exaflops=1, parameters=1)
    changed = read_study(study, ["settings.duration=30"])
    with pytest.raises(InputError) as error:
        check_runs(changed, changed.runs, tmp_path, torch.device("cpu"))
    path = tmp_path / run.name
    assert str(error.value).endswith(
        f"duration is 20 there, 30 here; choose another --run, or remove {path} to train it again"
    )


SHIPPED = [study["name"] for study in list_studies()]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_study_can_be_planned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_study(name, device="cpu")
    assert plan.runs and plan.about.endswith(".")
    assert len({run.name for run in plan.runs}) == len(plan.runs)
    if name.endswith("_tiny"):
        assert plan.absent == ()
        assert plan.exaflops < 1e-5
    else:
        assert f"{name}_tiny" in SHIPPED or name == "paper_subsets" or name.startswith("cifar")


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of parquet files with as many images and classes as CIFAR-10 and CIFAR-100; all images are one."""
    root, file = tmp_path_factory.mktemp("cifar"), io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "PNG")
    for classes in (10, 100):
        (root / f"cifar{classes}").mkdir()
        for split, count in (("train", 50_000), ("test", 10_000)):
            table = {
                "image": [{"bytes": file.getvalue()}] * count,
                "label": [place % classes for place in range(count)],
            }
            pyarrow.parquet.write_table(pyarrow.table(table), root / f"cifar{classes}" / f"{split}.parquet")
    return root


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("cifar")])
def test_cifar_studies_fit_their_data(name: str, cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cifar)
    plan = plan_study(name, ["grid.seed=[0]"], device="cpu")
    assert plan.absent == ()
    assert all(run.steps >= 4000 and run.batch_size == 256 for run in plan.runs)


def test_several_sets_each_have_a_number_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_study("paper_data", device="cpu")
    assert {run.images for run in plan.runs} == {1_281_167, 14_197_087, 303_000_000}
    heads = {run.name: run.parameters for run in plan.runs}
    assert heads["B-16-JFT-300M"] - heads["B-16-ImageNet"] == 769 * (18_291 - 1_000)
    with pytest.raises(InputError, match=r"data_images of ./jft is 'many'; expected a whole number above 0"):
        plan_study("paper_data", ["data_images={./jft: many}"])
    with pytest.raises(
        InputError, match=r"'./imagenet:train' isn't here; to plan without it, give data_images"
    ):
        plan_study("paper_data", ["data_images={./jft: 5}"], device="cpu")
