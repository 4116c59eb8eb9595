"""Names and shapes that our writers produce are those of the published checkpoints."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from vitkit.models import build
from vitkit.models.configs import ModelConfig
from vitkit.models.names import model_config
from vitkit.weights import google, huggingface, torchvision
from vitkit.weights.files import Tensors
from vitkit.weights.rules import Pattern

Shapes = dict[str, tuple[int, ...]]
CSV = Path(__file__).parent / "checkpoint_keys.csv"
VIT, R50, STEM, MAP = "ViT-B/16", "R50+ViT-B/16 backbone", "R+ViT-Ti/16 stem only", "big_vision MAP head"
BIT = "BiT-M-R50x1"


def meta(name: str, **settings: Any) -> tuple[ModelConfig, Tensors]:
    config = model_config(name, **settings)
    with torch.device("meta"):
        return config, build(config).state_dict()


def shapes(tensors: Tensors) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def rows(group: str, names: str, shape: str) -> Shapes:
    """Names and shapes of one layout in the table, without its remarks; stacked thirds become one."""
    found: Shapes = {}
    with CSV.open(newline="") as file:
        for row in csv.DictReader(file):
            column = next(name for name in row if name.startswith(names))
            name = re.sub(r" \(.*", "", row[column])
            if not row["group"].startswith(group) or not name or row["npz_key"].startswith("("):
                continue
            size = tuple(map(int, row[shape].split("x")))
            if part := re.search(r"\[0:|\[(\d+):(\d+)\]$", name):
                name = name[: part.start()]
                if name in found:
                    size = (found[name][0] + size[0], *size[1:])
            found[name] = size
    assert found
    return found


def test_old_names_of_a_vit() -> None:
    written = shapes(google.write(*meta("B/16", pre_logits=768)))
    assert written == rows(VIT, "npz_key", "npz_shape")
    assert len(written) == 202  # every tensor of vit_jax's B/16
    assert len(google.write(*meta("B/16"))) == 200


def test_linen_names_of_a_vit() -> None:
    config, ours = meta("B/16", pre_logits=768)
    linen = rows(VIT, "linen", "npz_shape")
    reading = google.read({name: torch.empty(shape, device="meta") for name, shape in linen.items()})
    assert reading.unused == []
    assert shapes(reading.tensors) == shapes(ours)
    assert reading.settings["heads"] == 12
    assert config.prefix_positions


@pytest.mark.parametrize(("name", "group"), [("R50+B/16", R50), ("R+Ti/16", STEM)])
def test_hybrids(name: str, group: str) -> None:
    config, ours = meta(name)
    written = shapes(google.write(config, ours))
    listed = rows(group, "npz_key", "npz_shape")
    flat = {key: shape[3:] if shape[:3] == (1, 1, 1) else shape for key, shape in listed.items()}
    assert flat.items() <= written.items()
    encoder = ("Transformer/", "cls", "head/", "embedding/")
    assert {key for key in written if not key.startswith(encoder)} == {
        key for key in flat if not key.startswith(encoder)
    }
    old = {key: torch.empty(listed.get(key, shape), device="meta") for key, shape in written.items()}
    reading = google.read(old)
    assert reading.unused == []
    assert shapes(reading.tensors) == shapes(ours)


def test_map_head() -> None:
    written = shapes(google.write(*meta("B/16", pool="map")))
    listed = rows(MAP, "npz_key", "npz_shape")
    assert {key: shape for key, shape in written.items() if "MAPHead_0" in key} == listed
    assert written["params/pos_embedding"] == (1, 196, 768)
    assert all(key.startswith("params/") for key in written)


def test_bit() -> None:
    config, ours = meta("BiT-R50x1", num_classes=21843)
    assert shapes(google.write(config, ours)) == rows(BIT, "npz_key", "npz_shape")
    on_disk = rows(BIT, "hf_disk_key", "pytorch_shape")
    on_disk["classifier.1.weight"] = on_disk["classifier.1.weight"][:2]  # a linear layer there
    assert shapes(huggingface.write(config, ours)) == on_disk
    assert shapes(ours) == rows(BIT, "timm_key", "pytorch_shape")


def test_transformers_names_on_disk() -> None:
    written = shapes(huggingface.write(*meta("B/16")))
    listed = rows(VIT, "hf_disk_key", "pytorch_shape")
    poolers = {name: shape for name, shape in listed.items() if name.startswith("pooler.")}
    assert poolers == {"pooler.dense.weight": (768, 768), "pooler.dense.bias": (768,)}
    assert written == {name: shape for name, shape in listed.items() if name not in poolers}
    with_pooler = shapes(huggingface.write(*meta("B/16", pre_logits=768, num_classes=0)))
    assert {f"vit.{name}": shape for name, shape in poolers.items()}.items() <= with_pooler.items()


def test_transformers_names_in_memory() -> None:
    _, ours = meta("B/16")
    memory = rows(VIT, "hf_v5", "pytorch_shape")
    reading = huggingface.read({name: torch.empty(shape, device="meta") for name, shape in memory.items()})
    assert reading.unused == []
    assert shapes(reading.tensors) == shapes(ours)


def test_torchvision_names() -> None:
    assert shapes(torchvision.write(*meta("B/16"))) == rows(VIT, "torchvision_key", "pytorch_shape")


def test_timm_names_are_ours() -> None:
    assert shapes(meta("B/16")[1]) == rows(VIT, "timm_key", "pytorch_shape")


@pytest.mark.parametrize(
    ("module", "name", "settings", "expected"),
    [
        (google, "B/16", {}, {"Transformer/encoderblock_11/MlpBlock_3/Dense_1/kernel": (3072, 768)}),
        (google, "B/16", {}, {"Transformer/encoderblock_0/MultiHeadDotProductAttention_1/out/kernel": (12, 64, 768)}),
        (google, "B/16", {"prefix_positions": False}, {"params/pos_embedding": (1, 196, 768)}),
        (google, "B/16", {"pool": "mean"}, {"Transformer/posembed_input/pos_embedding": (1, 196, 768)}),
        (google, "R26+S/32", {}, {"block4/unit1/conv_proj/kernel": (1, 1, 1024, 2048)}),
        (google, "BiT-R101x1", {}, {"resnet/block3/unit23/c/standardized_conv2d/kernel": (1, 1, 256, 1024)}),
        (google, "BiT-R50x1", {}, {"resnet/head/conv2d/kernel": (1, 1, 2048, 1000)}),
        (huggingface, "L/16", {}, {"vit.encoder.layer.23.intermediate.dense.bias": (4096,)}),
        (huggingface, "BiT-R50x1", {}, {"classifier.1.weight": (1000, 2048)}),
        (torchvision, "L/16", {}, {"encoder.layers.encoder_layer_23.self_attention.in_proj_weight": (3072, 1024)}),
        (torchvision, "L/16", {"pre_logits": 64}, {"heads.pre_logits.weight": (64, 1024)}),
    ],
)  # fmt: skip
def test_single_names(module: Any, name: str, settings: dict[str, Any], expected: Shapes) -> None:
    assert expected.items() <= shapes(module.write(*meta(name, **settings))).items()


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("blocks.{i}.norm", "blocks.11.norm", {"i": 11}),
        ("block{s+1}/unit{u+1:02}/", "block3/unit05/", {"s": 2, "u": 4}),
        ("block{s+1}/unit{u+1:02}/", "block3/unit23/", {"s": 2, "u": 22}),
        ("block{s+1}/unit{u+1:02}/", "block3/unit5/", None),
        ("blocks.{i}.norm", "blocks.011.norm", None),
        ("blocks.{i}.norm", "blocks.x.norm", None),
        ("blocks.{i}.norm", "blocks.1.norm.weight", None),
        ("blocks.{i}.norm", "blocks.²", None),
        ("blocks.{i}.norm", "blocks.².norm", None),
    ],
)
def test_patterns_of_names(text: str, name: str, values: dict[str, int] | None) -> None:
    pattern = Pattern(text)
    assert pattern.match(name) == values
    if values is not None:
        assert pattern.format(values) == name
