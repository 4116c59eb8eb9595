"""A calibrated model folder: logits divided in every family, unreadable images skipped, multi-label, older heads."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from vitkit.evaluation.measured import measure
from vitkit.evaluation.temperature import fit_temperature
from vitkit.models.model import HEAD
from vitkit.progress import Silent
from vitkit.transfer.calibrate import divide_head, write_calibrated
from vitkit.transfer.head import FITTED, fit_head
from vitkit.transfer.plan import make_plan
from vitkit.weights.load import read_model

TINY = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 16, "patch": 4, "image_size": 8}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))


def save(folder: Path, names: list[str], multi_label: bool = False) -> Path:
    torch.manual_seed(0)
    model = vitkit.create_model("Ti/16", num_classes=len(names), **TINY)
    with torch.no_grad():
        model.head.weight.normal_()  # a new head is zero
    vitkit.save(model, folder, class_names=names, multi_label=multi_label)
    return folder


@pytest.mark.parametrize("name", ["Ti/16", "CCT-2/3x2", "R+Ti/16", "BiT-R50x1"])
def test_dividing_the_head_divides_the_logits_of_every_family(name: str) -> None:
    torch.manual_seed(0)
    units = {"units": (1, 1, 1, 1)} if name.startswith("BiT") else {}
    model = vitkit.create_model(name, num_classes=3, image_size=32, **units).eval()
    with torch.no_grad():
        for parameter, tensor in model.named_parameters():
            if parameter.startswith(HEAD):
                tensor.normal_()
        images = torch.rand(2, 3, 32, 32)
        before = model(images)
        divide_head(model, 2.5)
        torch.testing.assert_close(model(images), before / 2.5)


def write_table(folder: Path, labels: list[str]) -> str:
    folder.mkdir()
    lines = ["path,label,split"]
    for number, label in enumerate(labels):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{label},val")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "labels.csv")


@pytest.mark.parametrize("several", [False, True])
def test_a_temperature_of_the_labels_kind_is_fitted(several: bool, tmp_path: Path) -> None:
    table = write_table(
        tmp_path / "data", ["a;b" if several and number % 3 else "ab"[number % 2] for number in range(24)]
    )
    held_out = vitkit.open_data(f"{table}:val", classes=("a", "b"))
    start = save(tmp_path / "start", ["a", "b"], several)
    kept = write_calibrated(start, tmp_path / "kept", held_out, "cpu")
    raw = vitkit.load(start, device="cpu")
    logits = measure(raw.model, held_out, raw.preprocessing).logits
    assert kept.fitted is not None and kept.why_not is None
    assert kept.fitted.temperature == pytest.approx(fit_temperature(logits, held_out.labels))
    assert kept.fitted.images == 24 and kept.fitted.fitted_on == held_out.data_name
    assert read_model(tmp_path / "kept").multi_label is several
    other = save(tmp_path / "other", ["a", "b"], not several)
    left = write_calibrated(other, tmp_path / "left", held_out, "cpu")
    assert left.fitted is None and left.why_not is not None
    if several:
        assert (
            left.why_not == "no temperature was fitted: a softmax has no probabilities for multi-label images"
        )


def test_images_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    table = write_table(tmp_path / "data", ["a", "b"] * 6)
    (tmp_path / "data" / "3.png").write_bytes(b"broken")
    held_out = vitkit.open_data(f"{table}:val", classes=("a", "b"))
    start = save(tmp_path / "start", ["a", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = write_calibrated(start, tmp_path / "kept", held_out, "cpu")
    assert kept.fitted is not None and kept.fitted.images == 11


def test_a_fitted_head_is_kept_with_its_temperature_and_fitted_again_where_its_record_is_damaged(
    tmp_path: Path,
) -> None:
    start = save(tmp_path / "start", ["a", "b"])
    plan = make_plan(str(start), "digits:train[:60]", ["protocol=quick", "duration=1"], "cpu")
    config, inputs = plan.config(plan.whole), plan.inputs(plan.whole)
    fitted, again = (fit_head(config, inputs, None, tmp_path / "head", "cpu", Silent()) for _ in range(2))
    assert fitted.temperature is not None and fitted.temperature == again.temperature
    assert fitted.temperature.fitted_on == "held-out images of digits:train[:60]"
    record = json.loads((tmp_path / "head" / FITTED).read_text())
    del record["temperature"]
    (tmp_path / "head" / FITTED).write_text(json.dumps(record))
    assert fit_head(config, inputs, None, tmp_path / "head", "cpu", Silent()).temperature is None
    for torn in ('{"accuracy": 0.5, "sec', json.dumps(record | {"accuracy": "x"}), "[]"):
        (tmp_path / "head" / FITTED).write_text(torn)
        refitted = fit_head(config, inputs, None, tmp_path / "head", "cpu", Silent())
        assert (refitted.accuracy, refitted.temperature) == (fitted.accuracy, fitted.temperature)
