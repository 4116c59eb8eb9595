"""`vitkit.export` and `vit export`: what a folder holds, how it is used, what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitkit
from tests.exports.conftest import CONFIG
from vitkit.errors import InputError
from vitkit.exports.run import Exported
from vitkit.files import digest
from vitkit.results import from_json
from vitkit.runtimes.folder import read_folder

DATA = "digits:test[:100]"


def test_a_folder_has_all_of_the_model_folders_config(folder: Path, exported: Path) -> None:
    entry = json.loads((exported / "config.json").read_text())
    assert entry["vitkit"] == json.loads((folder / "config.json").read_text())["vitkit"]
    export = entry["export"]
    assert export["source_sha256"] == digest(folder / "model.safetensors")
    assert export["sha256"] == {"model.onnx": digest(exported / "model.onnx")}
    assert (export["runtime"], export["precision"], export["opset"]) == ("onnx", "float32", 20)
    assert export["check"]["relative_error"] < 1e-4 and export["calibration"] is None
    assert {path.name for path in exported.iterdir()} == {"config.json", "model.onnx", "README.md"}
    card = (exported / "README.md").read_text()
    assert "for ONNX Runtime, float32" in card and "any batch size" in card
    graph = (exported / "model.onnx").read_bytes()
    assert b"site-packages" not in graph and b"/vitkit/" not in graph  # no paths of this machine


def test_int8_says_how_it_was_calibrated(int8: Path) -> None:
    entry = json.loads((int8 / "config.json").read_text())["export"]
    assert entry["calibration"]["images"] == 32 and entry["calibration"]["data"] == "digits:train[:32]"
    assert entry["calibration"]["smoothed"] == 6
    check = entry["check"]
    assert 0 < check["relative_error"] < 0.2
    assert check["data"] == DATA and check["data_images"] == 100 and check["metric"] == "accuracy"
    assert abs(check["before"] - check["after"]) <= 0.02
    assert "Calibrated on 32 images of `digits:train[:32]`" in (int8 / "README.md").read_text()


@pytest.mark.parametrize("name", ["exported", "int8"])
def test_predict_embed_and_evaluate_take_it(name: str, folder: Path, request: pytest.FixtureRequest) -> None:
    out = request.getfixturevalue(name)
    source, graph = vitkit.load(folder, device="cpu"), vitkit.load(out)
    assert graph.preprocessing == source.preprocessing and graph.class_names == source.class_names
    image = np.random.default_rng(0).integers(0, 255, (20, 20, 3), np.uint8)
    near = 1e-4 if name == "exported" else 0.1
    for before, after in zip(source.predict(image, top=10)[0], graph.predict(image, top=10)[0], strict=True):
        assert abs(before.probability - after.probability) < near
    assert graph.embed([image] * 3).shape == (3, 32)
    assert graph.embed([]).shape == (0, 32)
    measured = vitkit.evaluate(out, DATA, progress=False)
    assert measured.weights_sha256 == read_folder(out).graph_sha256
    assert (
        abs(measured.accuracy - vitkit.evaluate(folder, DATA, device="cpu", progress=False).accuracy) <= 0.02
    )
    assert "parameters" not in graph._repr_html_() and "runtime" in graph._repr_html_()


def test_bfloat16(folder: Path, tmp_path: Path) -> None:
    from vitkit.runtimes.openvino import has_bfloat16

    if not has_bfloat16():
        pytest.skip("this processor has no bfloat16")
    result = vitkit.export(folder, tmp_path / "out", "openvino", "bfloat16", data=DATA)
    assert 1e-4 < result.check.relative_error < 0.05
    assert vitkit.load(tmp_path / "out").embed(np.zeros((20, 20, 3), np.uint8)).shape == (1, 32)


def test_frozen_features_take_it(folder: Path, exported: Path) -> None:
    asked: dict[str, Any] = dict(device="cpu", progress=False)
    before, after = (vitkit.knn(model, "digits", **asked) for model in (folder, exported))
    assert [row.accuracy for row in before.results] == [row.accuracy for row in after.results]


@pytest.mark.slow
def test_the_command(vit: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = vit("export", str(folder), "--to", "openvino", "--out", str(out), "--data", DATA, "--json")
    result = from_json(Exported, json.loads(answer.out))
    assert result.to == "openvino" and result.check.before == result.check.after
    assert {path.name for path in out.iterdir()} == {"config.json", "model.xml", "model.bin", "README.md"}
    again = vit("export", str(folder), "--out", str(out))
    assert again.status == 2 and again.err == f"error: {out} exists; --force overwrites it\n"
    shown = vit("export", str(folder), "--out", str(out), "--force")
    assert shown.status == 0 and "same likeliest class" in shown.out
    assert {path.name for path in out.iterdir()} == {"config.json", "model.onnx", "README.md"}
    assert vit("eval", str(out), DATA).status == 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bfloat16": (
        dict(precision="bfloat16"),
        "ONNX Runtime doesn't compute in bfloat16 on the CPU: use --to openvino, or --precision float32 or int8",
    ),
    "uncalibrated": (
        dict(precision="int8"),
        "int8 is calibrated on images like those that the model will see: add --calibrate DATA",
    ),
    "calibrated": (dict(calibrate=DATA), "--calibrate is for --precision int8, not float32: remove it"),
    "few": (
        dict(precision="int8", calibrate="digits:train[:5]"),
        "digits:train has 5 images; int8 needs 16 or more to calibrate on, preferably 64",
    ),
    "to": (dict(to="onxx"), "to is 'onxx'; did you mean 'onnx'? expected one of onnx, openvino"),
    "precision": (
        dict(precision="int4"),
        "precision is 'int4'; did you mean 'int8'? expected one of float32, bfloat16, int8",
    ),
    "accept": (
        dict(accept="all"),
        "--accept is 'all'; expected loss, which accepts a larger loss than the tolerance",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, folder: Path, tmp_path: Path) -> None:
    settings, message = REFUSED[case]
    with pytest.raises(InputError) as error:
        vitkit.export(folder, tmp_path / "out", **settings)
    assert str(error.value) == message
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_export_that_loses_too_much_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitkit.exports import check

    monkeypatch.setitem(check.TOLERANCES, "float32", check.Tolerance(0.0, 0.0))
    with pytest.raises(
        InputError, match="the export loses too much, so nothing is written: its outputs differ by"
    ) as error:
        vitkit.export(folder, tmp_path / "out")
    assert "--accept loss" in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
    result = vitkit.export(folder, tmp_path / "out", accept="loss")
    assert [note.kind for note in result.notes] == ["warning"]
    vitkit.load(tmp_path / "out")


def test_a_loss_of_accuracy_is_refused() -> None:
    from vitkit.exports.check import Check, what_is_lost

    def lost(after: float, images: int) -> str | None:
        return what_is_lost(Check(16, "", 0.1, 0.1, 1.0, "d:test", images, "accuracy", 0.90, after), "int8")

    assert lost(0.88, 100) is None  # two images
    assert lost(0.88, 1000) == "accuracy on d:test falls from 90.00% to 88.00%; the limit is 1.00%"
    assert lost(0.95, 1000) is None


CHANGED: dict[str, tuple[Callable[[Path, dict[str, Any]], None], str]] = {
    "graph": (
        lambda path, _: (path / "model.onnx").write_bytes((path / "model.onnx").read_bytes() + b" "),
        "model.onnx is not the file that was exported (its SHA-256 differs from config.json's): export the model again",
    ),
    "missing": (
        lambda path, _: (path / "model.onnx").unlink(),
        "model.onnx is missing: export the model again",
    ),
    "opset": (
        lambda _, entry: entry.update(opset=99),
        "its graph has ONNX opset 99; this version of vitkit reads 18 to 23: export it again",
    ),
    "version": (
        lambda _, entry: entry.update(format_version=2),
        "its export has format version 2; this version of vitkit reads 1: export it again",
    ),
    "runtime": (
        lambda _, entry: entry.update(runtime="tflite"),
        "runtime is 'tflite'; expected one of onnx, openvino",
    ),
    "sums": (
        lambda _, entry: entry.update(sha256={"../model.onnx": ""}),
        "'sha256' doesn't name the files of the graph, model.onnx and model.onnx.data",
    ),
    "outputs": (
        lambda _, entry: entry.update(outputs=[]),
        "'outputs' is not a list of logits, features or both",
    ),
    "entry": (
        lambda _, entry: entry.clear(),
        "its export has format version None; this version of vitkit reads 1: export it again",
    ),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_folder_changed_by_hand_is_refused(case: str, exported: Path, tmp_path: Path) -> None:
    path = tmp_path / "changed"
    shutil.copytree(exported, path)
    document = json.loads((path / "config.json").read_text())
    change, message = CHANGED[case]
    change(path, document["export"])
    (path / "config.json").write_text(json.dumps(document))
    with pytest.raises(InputError) as error:
        vitkit.load(path)
    assert str(error.value) == f"{path}: {message}"


def test_what_an_exported_graph_cannot_do(exported: Path, tmp_path: Path) -> None:
    refused: dict[str, Callable[[], Any]] = {
        "runs on the CPU, not on 'cuda': leave out --device": lambda: vitkit.load(exported, device="cuda"),
        "which can't change: give num_classes to": lambda: vitkit.load(exported, num_classes=3),
        "for images of 16: export the model again with --image-size 32": lambda: vitkit.load(
            exported, image_size=32
        ),
        "is already an exported graph": lambda: vitkit.export(exported, tmp_path / "again"),
        "is an exported graph, for predict": lambda: vitkit.convert(exported, tmp_path / "out"),
        "which can't be trained": lambda: vitkit.load(exported).as_loaded(),
        "which hides its": lambda: vitkit.inspect_model(exported, out=tmp_path / "page"),
    }
    for message, act in refused.items():
        with pytest.raises(InputError, match=message) as error:
            act()
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="not on 'cuda'"):
        vitkit.evaluate(exported, DATA, device="cuda", progress=False)


@pytest.mark.parametrize(("name", "package"), [("exported", "onnxruntime"), ("int8", "openvino")])
def test_a_missing_runtime_is_one_line(
    name: str, package: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = request.getfixturevalue(name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r'which is not installed: pip install "vitkit\[export\]"$'):
        vitkit.load(out)


def test_missing_packages_are_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name.startswith("onnx") else find(name))
    with pytest.raises(InputError, match="export needs onnx, onnxscript, onnxruntime: pip install"):
        vitkit.export(folder, tmp_path / "out")


def test_a_resnet_has_nothing_to_gain_from_int8_in_onnx_runtime(tmp_path: Path) -> None:
    from tests.models.test_contract import MODELS, make

    with pytest.raises(InputError, match="a ResNet has no other layers: use --to openvino"):
        vitkit.export(make(MODELS["bit"]), tmp_path / "out", precision="int8", calibrate=DATA)


def test_the_models_size_can_be_chosen(folder: Path, tmp_path: Path) -> None:
    assert vitkit.export(folder, tmp_path / "out", image_size=24).image_size == (24, 24)
    assert vitkit.load(tmp_path / "out").preprocessing.size == (24, 24)
    assert CONFIG.size == (16, 16)
