"""Scales of float8: measured once, kept in the model folder next to the weights that they belong to, never for others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vitkit
from tests.conftest import Answer
from vitkit.calibration import FILE
from vitkit.errors import InputError
from vitkit.kernels.float8 import LARGEST
from vitkit.models.float8 import MARGIN, Float8Linear

DATA = "digits:train[:40]"
WORDS = "float8: scales measured on 40 images of digits:train[:40]"


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU pass for a GPU that has float8: it computes the same in plain PyTorch."""
    monkeypatch.setattr("vitkit.models.precision.has_float8", lambda _: True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = vitkit.create_model("mu/16", image_size=32, num_classes=10)
    torch.nn.init.normal_(model.head.weight)
    vitkit.save(model, tmp_path / "model")
    return tmp_path / "model"


def load(folder: Path | str, **settings: Any) -> vitkit.Predictor:
    return vitkit.load(folder, device="cpu", precision="float8", **settings)


def layers(predictor: vitkit.Predictor) -> list[Float8Linear]:
    return [module for module in predictor.model.modules() if isinstance(module, Float8Linear)]


@pytest.mark.usefixtures("emulated")
def test_a_folder_keeps_its_scales(folder: Path) -> None:
    dynamic = load(folder)
    assert all(layer.scale is None for layer in layers(dynamic))
    assert dynamic.notes[-1].startswith(
        "float8: each token has its own scale, which is slower; --calibrate DATA"
    )
    measured = load(folder, calibrate=DATA)
    assert measured.notes[-1] == f"{WORDS}, saved in {folder / FILE}"
    again = load(folder)
    assert again.notes[-1] == "float8: scales from 40 images of digits:train[:40]"
    document = json.loads((folder / FILE).read_text())
    for name, module in again.model.named_modules():
        if isinstance(module, Float8Linear):
            assert module.scale is not None
            assert module.scale.item() == pytest.approx(MARGIN * document["largest"][name] / LARGEST)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(again.logits(images), measured.logits(images))
    assert not torch.equal(again.logits(images), dynamic.logits(images))
    vitkit.save(vitkit.load(folder), folder, force=True)  # a file of ours: the folder may be replaced
    assert not (folder / FILE).exists()


@pytest.mark.usefixtures("emulated")
def test_a_model_without_a_folder_has_its_scales_for_once(tmp_path: Path) -> None:
    found = load("mu/16", image_size=32, num_classes=3, calibrate=DATA)
    assert found.notes[-1] == f"{WORDS}, for this command alone"
    assert all(layer.scale is not None for layer in layers(found))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weights_sha256": "0" * 64},
            "float8.json belongs to other weights: --calibrate DATA measures the scales of these",
        ),
        ({"largest": {}}, "float8.json belongs to other weights"),
        ({"largest": [1]}, "float8.json belongs to other weights"),
        ({"format_version": 2}, "float8.json has format version 2; this version of vitkit reads 1"),
    ],
)
def test_scales_of_other_weights_are_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    load(folder, calibrate=DATA)
    path = folder / FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message):
        load(folder)
    load(folder, calibrate=DATA)
    load(folder)


@pytest.mark.usefixtures("emulated")
def test_files_and_images_that_do_not_do(folder: Path) -> None:
    (folder / FILE).write_text("{")
    with pytest.raises(InputError, match="float8.json is not valid JSON"):
        load(folder)
    with pytest.raises(
        InputError, match="digits:train has 9 images; float8 needs 16 or more to calibrate on, preferably 64"
    ):
        load(folder, calibrate="digits:train[:9]")
    for settings in ({}, {"precision": "bfloat16"}):
        with pytest.raises(InputError, match="calibrate is for precision float8: leave it out, or give both"):
            vitkit.load(folder, device="cpu", calibrate=DATA, **settings)


@pytest.mark.parametrize("verb", [["predict", "M", "x.png"], ["eval", "M", "digits"], ["bench", "M"]])
def test_a_cpu_has_no_float8(vit: Callable[..., Answer], folder: Path, verb: list[str]) -> None:
    (folder.parent / "x.png").write_bytes(b"")
    words = [
        str(folder) if word == "M" else str(folder.parent / word) if ".png" in word else word for word in verb
    ]
    answer = vit(*words, "--precision", "float8", "--device", "cpu")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        "error: precision 'float8' needs an NVIDIA GPU that has it (Ada, Hopper and later), and device 'cpu' does not: use "
        "bfloat16 or float32\n"
    )


@pytest.mark.usefixtures("emulated")
def test_bench_shows_fixed_and_dynamic_scales(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.timing.rounds.TURN_SECONDS", 0.0)
    monkeypatch.setattr("vitkit.timing.measure.MATRIX_SECONDS", 0.0)
    settings: dict[str, Any] = dict(device="cpu", batch_sizes=[1], rounds=1, memory=False, progress=False)
    result = vitkit.bench(folder, precision=["float32", "float8"], **settings)
    assert [(row.precision, row.scales) for row in result.rows] == [("float32", None), ("float8", "dynamic")]
    result = vitkit.bench(folder, precision=["float32", "float8"], calibrate=DATA, merge=2, **settings)
    assert [(row.precision, row.scales, row.merge) for row in result.rows] == [
        ("float32", None, 0), ("float32", None, 2), ("float8", "static", 0), ("float8", "static", 2),
        ("float8", "dynamic", 0), ("float8", "dynamic", 2),
    ]  # fmt: skip
    assert result.rows[4].to_json()["scales"] == "dynamic"
    assert any(note.startswith(WORDS) for note in result.notes)
    assert set(result.matrix_flops_per_second) == {"float32", "float8"}
    with pytest.raises(
        InputError, match="float8 is for inference: leave out train, or use another precision"
    ):
        vitkit.bench(folder, precision="float8", train=True, **settings)
