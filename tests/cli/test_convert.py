"""`vit convert` writes every format, says what it assumed, overwrites nothing unasked and leaves nothing half-written."""

from __future__ import annotations

import json
import re
import resource
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitkit
from vitkit.weights.convert import convert
from vitkit.weights.load import load_model

TARGETS = {
    "vitkit": ["out", "out.safetensors", "out.pth"],
    "timm": ["out", "out.safetensors", "out.pth"],
    "npz": ["out.npz"],
    "hf": ["out"],
    "torchvision": ["out.pth", "out.safetensors"],
}
CASES = [(to, target) for to, targets in TARGETS.items() for target in targets]
PREPROCESSING_NOTE = (
    "source.safetensors doesn't state its preprocessing; assuming: shorter side resized to 35, centre crop 32x32, "
    "bicubic, mean 0.5, std 0.5\n"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small model in timm's layout, with a head that is not zero."""
    torch.manual_seed(0)
    model = vitkit.create_model("mu/16", image_size=32, num_classes=7)
    torch.nn.init.normal_(model.head.weight)
    save_file(model.state_dict(), tmp_path / "source.safetensors")
    return tmp_path / "source.safetensors"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(("to", "target"), CASES)
def test_every_format(vit: Callable[..., Any], to: str, target: str, source: Path, tmp_path: Path) -> None:
    answer = vit("convert", str(source), str(tmp_path / target), "--to", to)
    assert answer.status == 0
    assert answer.err == PREPROCESSING_NOTE
    parameters = sum(tensor.numel() for tensor in load_model(source).model.parameters())
    assert answer.out == f"{tmp_path / target}: mu/16, {parameters:,} parameters, as {to}\n"
    again, first = load_model(tmp_path / target), load_model(source)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again.model(images), first.model(images))
    assert again.preprocessing.size == first.preprocessing.size
    assert again.preprocessing.mean == first.preprocessing.mean
    if "." in target:
        assert files(tmp_path) == sorted(["source.safetensors", target, f"{target}.json"])
        assert again.preprocessing == first.preprocessing
    else:
        third = "preprocessor_config.json" if to == "hf" else "README.md"
        names = {"config.json", "model.safetensors", third}
        assert {path.name for path in (tmp_path / target).iterdir()} == names


def test_the_ending_says_the_format(vit: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    answer = vit("convert", str(source), str(tmp_path / "out.npz"))
    assert answer.status == 0 and answer.out.endswith(" parameters, as npz\n")
    vitkit.save(load_model(source).model, tmp_path / "saved.npz")
    assert convert(source, tmp_path / "again.npz").to == "npz"
    images = torch.randn(2, 3, 32, 32)
    for name in ("out.npz", "saved.npz", "again.npz"):
        assert np.load(tmp_path / name)["embedding/kernel"].shape == (16, 16, 3, 32)
        assert torch.equal(load_model(tmp_path / name).model(images), load_model(source).model(images))


@pytest.mark.parametrize("to", [None, *TARGETS, "onnx"])
@pytest.mark.parametrize("name", ["out", "out.npz", "out.pth", "out.onnx"])
def test_errors_of_python_name_no_flag_of_the_format(
    to: Any, name: str, source: Path, tmp_path: Path
) -> None:
    said = []
    try:
        vitkit.save(load_model(source).model, tmp_path / name, to)
    except vitkit.InputError as error:
        said.append(str(error))
    assert not any("--to" in text for text in said)


def test_vitkit_is_the_default(vit: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    assert vit("convert", str(source), str(tmp_path / "out")).status == 0
    assert "vitkit" in json.loads((tmp_path / "out" / "config.json").read_text())


def test_json_is_what_python_returns(vit: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    answer = vit("convert", str(source), str(tmp_path / "out"), "--json")
    assert answer.status == 0
    document = json.loads(answer.out)
    assert document == convert(source, tmp_path / "out", force=True).to_json()
    assert document == {
        "source": str(source),
        "target": str(tmp_path / "out"),
        "format": "vitkit",
        "model": "mu/16",
        "parameters": 37799,
        "image_size": [32, 32],
        "num_classes": 7,
        "notes": [PREPROCESSING_NOTE.rstrip("\n")],
    }


def test_changes_on_the_way(vit: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    flags = ["--image-size", "32x64", "--num-classes", "4", "--channels", "1"]
    assert vit("convert", str(source), str(tmp_path / "out"), *flags).status == 0
    config = load_model(tmp_path / "out").model.config
    assert (config.size, config.num_classes, config.channels) == ((32, 64), 4, 1)


def test_an_untrained_model_is_said_to_be_one(vit: Callable[..., Any], tmp_path: Path) -> None:
    answer = vit("convert", "mu/16", str(tmp_path / "out"), "--image-size", "32")
    assert answer.status == 0
    assert answer.err.startswith("mu/16 is untrained: ")


@pytest.mark.parametrize(("to", "target"), CASES)
def test_nothing_is_overwritten_unasked(
    vit: Callable[..., Any], to: str, target: str, source: Path, tmp_path: Path
) -> None:
    arguments = ("convert", str(source), str(tmp_path / target), "--to", to)
    assert vit(*arguments).status == 0
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in files(tmp_path)}
    answer = vit(*arguments)
    assert answer == (2, "", f"error: {tmp_path / target} exists; --force overwrites it\n")
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in files(tmp_path)} == before
    assert vit(*arguments, "--force").status == 0
    assert files(tmp_path) == sorted(before)


def test_a_sidecar_of_another_file_is_kept(vit: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.npz.json").write_text("mine")
    answer = vit("convert", str(source), str(tmp_path / "out.npz"), "--to", "npz")
    assert answer == (2, "", f"error: {tmp_path / 'out.npz.json'} exists; --force overwrites it\n")
    assert (tmp_path / "out.npz.json").read_text() == "mine"


def test_force_replaces_nothing_but_models(vit: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("three years")
    answer = vit("convert", str(source), str(precious), "--force")
    assert answer.status == 2
    reason = "holds 'thesis.txt', which vitkit didn't write; choose another folder\n"
    assert answer.err.endswith(f"error: {precious} {reason}")
    (precious / "config.json").write_text("{}")
    assert vit("convert", str(source), str(precious), "--force").status == 2
    (precious / "config.json").unlink()
    assert files(tmp_path) == ["precious/thesis.txt", "source.safetensors"]
    (precious / "thesis.txt").unlink()
    assert vit("convert", str(source), str(precious), "--force").status == 0


def test_source_and_target_may_be_the_same(vit: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    assert vit("convert", str(source), str(folder)).status == 0
    before = load_model(folder).model.state_dict()
    answer = vit("convert", str(folder), str(folder), "--force", "--num-classes", "2")
    assert (answer.status, answer.err) == (0, "the head is new and untrained: 2 classes instead of 7\n")
    after = load_model(folder).model.state_dict()
    assert after["head.weight"].shape == (2, 32)
    assert torch.equal(after["pos_embed"], before["pos_embed"])


def test_a_link_to_a_model_stays_a_link(vit: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "model")
    for flags in ([], ["--force"]):
        assert vit("convert", str(source), str(tmp_path / "link"), *flags).status == 0
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "deep" / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("to", "target", "message"),
    [
        ("npz", "out", "format npz is a single file: give a path that ends in .npz, not out"),
        (
            "timm",
            "out.npz",
            "format timm can't be written to out.npz: it needs a file that ends in .safetensors or .pth",
        ),
        ("hf", "out.safetensors", "format hf can't be written to out.safetensors: it needs a folder"),
        (
            "torchvision",
            "out",
            "format torchvision is a single file: give a path that ends in .pth or .safetensors, not out",
        ),
        ("vitkit", "out.bin", "out.bin can't be written: weight files end in .safetensors, .pth or .npz"),
    ],
)
def test_targets_of_another_kind(
    vit: Callable[..., Any], to: str, target: str, message: str, tmp_path: Path
) -> None:
    answer = vit("convert", "no such source.npz", str(tmp_path / target), "--to", to)
    assert answer == (2, "", f"error: {message}\n")
    assert files(tmp_path) == []


@pytest.mark.parametrize("target", ["out", "out.npz", "out.pth"])
def test_targets_that_can_not_be_written(
    vit: Callable[..., Any], target: str, source: Path, tmp_path: Path
) -> None:
    path = source / target  # below a file
    answer = vit("convert", str(source), str(path), "--to", "npz" if target.endswith("npz") else "vitkit")
    assert answer.status == 2
    assert answer.err.startswith(f"error: {path} can't be written: ")
    assert answer.err.count("\n") == 1


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow beyond 20 kB, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("to", "target"), CASES)
def test_a_full_disk_leaves_nothing(
    vit: Callable[..., Any], to: str, target: str, source: Path, tmp_path: Path, full_disk: None
) -> None:
    answer = vit("convert", str(source), str(tmp_path / target), "--to", to)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"error: {tmp_path / target} can't be written: ")
    assert answer.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["source.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "onnx"], "Invalid value for '--to': 'onnx' is not one of"),
        (["--image-size", "big"], "--image-size is 'big'; expected a whole number or HEIGHTxWIDTH"),
        (["--image-size", "8"], "is smaller than one patch of 16"),
        (["--channels", "0"], "channels must be at least 1, not 0"),
        (["--num-classes", "-2"], "num_classes must be at least 0, not -2"),
        (["surplus"], "unexpected argument 'surplus'"),
    ],
)
def test_wrong_arguments(
    vit: Callable[..., Any], arguments: list[str], message: str, source: Path, tmp_path: Path
) -> None:
    answer = vit("convert", str(source), str(tmp_path / "out"), *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert message in answer.err
    assert files(tmp_path) == ["source.safetensors"]


def test_accepting_tensors_and_numerics(vit: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    tensors = {**load_model(source).model.state_dict(), "mask_token": torch.ones(1)}
    save_file(tensors, source)
    refused = vit("convert", str(source), str(tmp_path / "out"))
    assert refused.status == 2
    assert "unused tensors (1): mask_token; to load anyway, accept them by name" in refused.err
    assert vit("convert", str(source), str(tmp_path / "out"), "--accept", "mask_*").status == 0
    npz = tmp_path / "google.npz"
    assert vit("convert", str(tmp_path / "out"), str(npz), "--to", "npz").status == 0
    (tmp_path / "google.npz.json").unlink()
    arguments = ("convert", str(npz), str(tmp_path / "tv.pth"), "--to", "torchvision")
    refused = vit(*arguments)
    assert refused.status == 2
    assert refused.err.endswith(
        "error: torchvision uses gelu erf instead of tanh, so its logits would differ; "
        "to write it anyway, use --accept numerics\n"
    )
    assert vit(*arguments, "--accept", "numerics").status == 0


def test_help_names_the_formats(vit: Callable[..., Any]) -> None:
    answer = vit("convert", "--help")
    assert answer.status == 0
    for to in TARGETS:
        assert to in answer.out


def test_the_page_runs(vit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "weights.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    convert("mu/16", "weights.npz", "npz", image_size=32)
    Path("weights.npz.json").unlink()
    commands = [line for kind, block in blocks if kind == "sh" for line in block.splitlines()]
    local = [line for line in commands if "@" not in line and "hf-hub:" not in line]
    assert (len(local), len(commands)) == (7, 10)
    for command in local:
        answer = vit(*shlex.split(command, comments=True)[1:])
        assert answer.status == 0 and answer.out, answer.err
    for command in set(commands) - set(local):
        words = shlex.split(command, comments=True)
        answer = vit(*words[1:])  # no downloads in tests
        assert answer.status == 2 and "is not in the cache" in answer.err
    for kind, block in blocks:
        if kind == "python":
            exec(block, {})
    assert Path("model-python").is_dir()


def test_a_failed_replacement_keeps_the_old_model(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    vitkit.convert(source, folder)
    before = (folder / "config.json").read_bytes()
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == folder and not self.name.endswith(".old"):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(vitkit.files, "_exchange", lambda *_: False)
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(vitkit.InputError, match="can't be written: No space left on device"):
        vitkit.convert(source, folder, force=True)
    assert (folder / "config.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "source.safetensors"]


def test_an_unknown_format_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(
        vitkit.InputError, match="unknown format 'onnx'; expected one of vitkit, npz, timm, hf"
    ):
        vitkit.convert(source, tmp_path / "x", to="onnx")  # type: ignore[arg-type]


def test_a_path_that_is_too_long_is_bad_input(vit: Callable[..., Any], source: Path) -> None:
    answer = vit("convert", str(source), "x" * 300)
    assert answer.status == 2 and answer.err.strip().count("\n") <= 1
