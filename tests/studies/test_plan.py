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
from PIL import Image

from vitkit import plan_study
from vitkit.costs import cost_of
from vitkit.errors import InputError
from vitkit.models.names import model_config
from vitkit.published import PUBLISHED_SCALING
from vitkit.studies.config import list_studies

LIMITS = {"ViT": 0.021, "Hybrid": 0.03, "ResNet": 0.045}


@pytest.fixture(autouse=True)
def rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of 1 TFLOP/s."""
    monkeypatch.setattr("vitkit.studies.plan.matrix_rate", lambda *_: 1e12)


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
