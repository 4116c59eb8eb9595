"""Weights in the official layouts, read by vitkit, give the official code's logits, features and tokens."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vitkit.errors import InputError
from vitkit.models import build
from vitkit.models.model import Model
from vitkit.models.positions import resample_table
from vitkit.weights import google
from vitkit.weights.convert import convert
from vitkit.weights.files import read_tensors, write_npz
from vitkit.weights.load import load_model

GOLDEN = Path(__file__).parents[1] / "golden"
# Changes of the logits when one detail is wrong: GELU form, LayerNorm epsilon (README of the fixtures).
MODELS = {
    "vit_jax_token": (1.5e-4, 3.8e-4),
    "vit_jax_token_rep32": (1.5e-4, 4.2e-4),
    "vit_jax_gap": (2.5e-4, 2.5e-4),
    "vit_jax_token_nonsquare_16x24": (1.5e-4, 2.6e-4),
    "vit_jax_hybrid_r111": (1.9e-4, 3.2e-4),
    "vit_jax_hybrid_r1111": (3.3e-4, 4.4e-4),
    "vit_jax_hybrid_stem": (3.1e-4, 1.4e-4),
    "big_vision_tok_learn": (3.0e-4, 4.7e-4),
    "big_vision_tok_sincos2d": (2.7e-4, 8.0e-4),
    "big_vision_gap_learn": (2.4e-4, 1.9e-4),
    "big_vision_gap_learn_scan": (2.4e-4, 1.9e-4),
    "big_vision_gap_sincos2d_nonsquare_16x24": (2.1e-4, 3.6e-5),
    "big_vision_map_learn": (3.1e-4, 2.4e-4),
    "big_vision_map_sincos2d": (4.5e-4, 3.0e-5),
    "big_vision_map_learn_rep24": (3.6e-4, 1.3e-4),
    "cct_vit_lite_2_4": (4.1e-4, 3.7e-4),
    "cct_cvt_2_4": (1.3e-4, 9.8e-6),
    "cct_cct_2_3x2": (2.3e-4, 9.7e-6),
    "cct_cct_2_3x2_sine": (2.5e-4, 7.9e-6),
    "cct_cct_2_3x2_nopos": (2.6e-4, 8.6e-6),
}
COMPACT_NAMES = {
    "cct_vit_lite_2_4": "ViT-Lite-2/4",
    "cct_cvt_2_4": "CVT-2/4",
    "cct_cct_2_3x2": "CCT-2/3x2",
    "cct_cct_2_3x2_sine": "cct_2_3x2_32_sine",
    "cct_cct_2_3x2_nopos": "CCT-2/3x2",
}
GOOGLE_MODELS = [name for name in MODELS if not name.startswith("cct")]
STAGED_HYBRIDS = ("vit_jax_hybrid_r111", "vit_jax_hybrid_r1111")
OLD_NAMES = {
    "checkpoint_prelinen_vit_jax_token": "vit_jax_token",
    "checkpoint_prelinen_vit_jax_hybrid_stem": "vit_jax_hybrid_stem",
}


def tolerance(name: str) -> float:
    return 5e-5 if name in STAGED_HYBRIDS else 3e-6 if name.startswith("cct") else 1e-5


@dataclasses.dataclass
class Case:
    """One fixture: what goes in, what must come out, and the official weights in a file."""

    name: str
    config: dict[str, Any]
    arrays: dict[str, Tensor]
    file: Path

    @property
    def images(self) -> Tensor:
        return self.arrays["images"]

    @property
    def spec(self) -> str:
        """MODEL: Compact Transformers are named, whose sine table can't be told from a learned one."""
        name = COMPACT_NAMES.get(self.name)
        return f"{name}@{self.file}" if name else str(self.file)


def read_case(name: str, folder: Path) -> Case:
    with np.load(GOLDEN / f"{name}.npz") as stored:
        config = json.loads(str(stored["config"]))
        arrays = {key: stored[key] for key in stored.files if key != "config"}
    weights = {
        key.removeprefix("weights/"): value for key, value in arrays.items() if key.startswith("weights/")
    }
    if name.startswith("cct"):
        file = folder / f"{name}.pth"
        torch.save({key: torch.from_numpy(value) for key, value in weights.items()}, file)
    else:
        file = folder / f"{name}.npz"
        np.savez(file, **weights)
    outputs = {key: torch.from_numpy(value) for key, value in arrays.items() if key not in weights}
    return Case(name, config, outputs, file)


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return read_case(request.param, tmp_path_factory.mktemp("case"))


def load_case(case: Case) -> Model:
    """Load without naming the model; a table of a non-square grid needs its image size."""
    size = tuple(case.images.shape[2:])
    return load_model(case.spec, image_size=size).model


@torch.inference_mode()
def outputs(model: Model, images: Tensor) -> dict[str, Tensor]:
    """The logits and what the head reads, from one pass, and the encoder's tokens."""
    features = model.features(images)
    return {"features": features, "logits": model.classify(features), "tokens": model.encode(images)}


def distance(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max())


@pytest.mark.parametrize("case", MODELS, indirect=True)
def test_official_outputs(case: Case) -> None:
    found = outputs(load_case(case), case.images)
    limit = tolerance(case.name)
    assert distance(found["logits"], case.arrays["logits"]) < limit
    # Tokens and features are larger than logits; float32 rounding grows with them.
    assert distance(found["features"], case.arrays["features"]) < 2 * limit
    assert distance(found["tokens"], case.arrays["tokens"]) < 2 * limit


@pytest.mark.parametrize("case", MODELS, indirect=True)
def test_numerics_are_recognised(case: Case) -> None:
    config = load_case(case).config
    assert config.gelu == case.config["gelu"]
    assert config.norm_epsilon == case.config["layernorm_eps"]
    if "groupnorm_eps" in case.config:
        assert config.group_norm_epsilon == case.config["groupnorm_eps"]
        assert config.standardization == "std"
        assert config.standardization_epsilon == case.config["weight_standardisation_eps"]
    if case.config.get("posemb") == "sincos2d":
        assert config.positions == "sincos_2d"


def with_settings(model: Model, **settings: Any) -> Model:
    """The same weights in a model with other numerics."""
    other = build(dataclasses.replace(model.config, **settings)).eval()
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize("case", MODELS, indirect=True)
def test_the_tolerance_tells_wrong_numerics_apart(case: Case) -> None:
    model, expected = load_case(case), case.arrays["logits"]
    config, limit = model.config, tolerance(case.name)
    wrong_gelu = with_settings(model, gelu="erf" if config.gelu == "tanh" else "tanh")
    wrong_epsilon = with_settings(
        model,
        norm_epsilon=1e-5 if config.norm_epsilon == 1e-6 else 1e-6,
    )
    with torch.inference_mode():
        changes = [distance(wrong(case.images), expected) for wrong in (wrong_gelu, wrong_epsilon)]
    assert changes == pytest.approx(MODELS[case.name], rel=0.1, abs=tolerance(case.name) / 2)
    assert min(changes) > limit


@pytest.mark.parametrize(
    ("case", "formula", "without"), [("vit_jax_hybrid_r111", 4e-3, 6e-3), ("vit_jax_hybrid_r1111", 1e-2, 2e-2)],
    indirect=["case"],
)  # fmt: skip
def test_the_tolerance_tells_wrong_standardisation_apart(case: Case, formula: float, without: float) -> None:
    model, expected = load_case(case), case.arrays["logits"]
    with torch.inference_mode():
        timms = with_settings(model, standardization="variance", standardization_epsilon=1e-8)(case.images)
        none = with_settings(model, standardization_epsilon=1e-30)(case.images)
    assert distance(timms, expected) == pytest.approx(formula, rel=0.5)
    assert distance(none, expected) == pytest.approx(without, rel=0.5)


@pytest.mark.parametrize("case", ["vit_jax_hybrid_r111", "vit_jax_hybrid_stem"], indirect=True)
def test_a_hybrids_parts(case: Case) -> None:
    model = load_case(case)
    with torch.inference_mode():
        embedding = model.patch_embed(case.images).transpose(1, 2).unflatten(2, model.config.grid)
        assert distance(embedding, case.arrays["embedding"]) < 5e-5
        if "feature_map" in case.arrays:
            cells = model.patch_embed.backbone(case.images)
            assert distance(cells, case.arrays["feature_map"]) < 5e-5


@pytest.mark.parametrize("case", [name for name in MODELS if "sincos2d" in name], indirect=True)
def test_the_fixed_table(case: Case) -> None:
    table = load_case(case).position_table()
    assert distance(table.reshape(case.arrays["posemb"].shape), case.arrays["posemb"]) < 1e-6


@pytest.mark.parametrize("checkpoint", OLD_NAMES)
def test_files_with_the_old_names(checkpoint: str, tmp_path: Path) -> None:
    case = read_case(OLD_NAMES[checkpoint], tmp_path)
    old, linen = load_model(GOLDEN / f"{checkpoint}.npz").model, load_case(case)
    assert all(torch.equal(linen.state_dict()[name], tensor) for name, tensor in old.state_dict().items())
    found = outputs(old, case.images)
    assert distance(found["logits"], case.arrays["logits"]) < 1e-5
    assert distance(found["tokens"], case.arrays["tokens"]) < 2e-5


def test_scanned_blocks_are_the_same_model(tmp_path: Path) -> None:
    plain = load_case(read_case("big_vision_gap_learn", tmp_path)).state_dict()
    scanned = load_case(read_case("big_vision_gap_learn_scan", tmp_path)).state_dict()
    assert plain.keys() == scanned.keys()
    assert all(torch.equal(plain[name], scanned[name]) for name in plain)


@pytest.mark.parametrize("case", GOOGLE_MODELS, indirect=True)
def test_npz_round_trip_is_exact(case: Case, tmp_path: Path) -> None:
    size = tuple(case.images.shape[2:])
    target = tmp_path / "again.npz"
    convert(case.spec, target, "npz", image_size=size)
    first, again = load_model(case.spec, image_size=size), load_model(target)
    assert again.model.config == first.model.config
    assert again.preprocessing == first.preprocessing
    assert again.notes == ()
    state = again.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in first.model.state_dict().items())


@pytest.mark.parametrize("case", GOOGLE_MODELS, indirect=True)
def test_what_we_write_are_the_official_arrays(case: Case, tmp_path: Path) -> None:
    target = tmp_path / "again.npz"
    convert(case.spec, target, "npz", image_size=tuple(case.images.shape[2:]))
    written, official = read_tensors(target), read_tensors(case.file)
    if "scan" in case.name:
        official = read_tensors(read_case("big_vision_gap_learn", tmp_path).file)
    if not any(name.startswith("params/") for name in written):
        written = {google._rename_block(name, google.OLD_TO_LINEN): t for name, t in written.items()}
    written = {name.removeprefix("params/"): tensor for name, tensor in written.items()}
    if case.name.startswith("big_vision_gap_learn"):  # without a class token both layouts mean the same
        written["pos_embedding"] = written.pop("Transformer/posembed_input/pos_embedding")
    assert written.keys() == official.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in official.items())


@pytest.mark.parametrize("checkpoint", OLD_NAMES)
def test_the_old_names_are_written(checkpoint: str, tmp_path: Path) -> None:
    target = tmp_path / "old.npz"
    convert(read_case(OLD_NAMES[checkpoint], tmp_path).spec, target, "npz")
    official, written = read_tensors(GOLDEN / f"{checkpoint}.npz"), read_tensors(target)
    assert written.keys() == official.keys()
    assert all(torch.equal(written[name].flatten(), tensor.flatten()) for name, tensor in official.items())


@pytest.mark.parametrize("prefix", ["opt/target/", "params/", "params/img/"])
@pytest.mark.parametrize(
    "case", ["vit_jax_token", "big_vision_map_learn", "vit_jax_hybrid_r111"], indirect=True
)
def test_prefixes(case: Case, prefix: str, tmp_path: Path) -> None:
    prefixed = tmp_path / "prefixed.npz"
    write_npz(prefixed, {prefix + name: tensor for name, tensor in read_tensors(case.file).items()})
    plain, found = load_case(case).state_dict(), load_model(prefixed).model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())


@pytest.mark.parametrize("case", ["big_vision_map_learn"], indirect=True)
def test_old_big_vision_files_have_the_map_head_at_the_top(case: Case, tmp_path: Path) -> None:
    old = tmp_path / "old.npz"
    tensors = read_tensors(case.file)
    write_npz(old, {name.removeprefix("MAPHead_0/"): tensor for name, tensor in tensors.items()})
    plain, found = load_case(case).state_dict(), load_model(old).model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())


@pytest.mark.parametrize("case", COMPACT_NAMES, indirect=True)
@pytest.mark.parametrize("to", ["npz", "timm", "hf", "torchvision"])
def test_peers_have_no_compact_transformers(case: Case, to: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no such model: it has (no Compact Transformers|native|plain)"):
        convert(case.spec, tmp_path / {"npz": "out.npz", "torchvision": "out.pth"}.get(to, "out"), to)


@pytest.mark.parametrize("case", COMPACT_NAMES, indirect=True)
def test_compact_transformers_through_our_folder(case: Case, tmp_path: Path) -> None:
    convert(case.spec, tmp_path / "folder")
    again = load_model(tmp_path / "folder")
    assert again.model.config == load_case(case).config
    with torch.inference_mode():
        assert distance(again.model(case.images), case.arrays["logits"]) < 3e-6


METHODS = {
    "vit_jax": "bilinear_corners",
    "big_vision": "bilinear_corners",
    "timm": "bicubic",
    "timm_bicubic_noantialias": "bicubic_plain",
    "cct": "bilinear",
}


def resampled() -> list[str]:
    with np.load(GOLDEN / "pos_embed_resample.npz") as stored:
        return [name for name in stored.files if "/" in name]


@pytest.mark.parametrize("name", resampled())
def test_position_tables_are_resampled_as_their_source_does(name: str) -> None:
    source, shape = name.split("/")
    table, _, grid = shape.rpartition("_")
    rows, columns = map(int, grid.split("x"))
    prefix = int(table == "with_class")
    with np.load(GOLDEN / "pos_embed_resample.npz") as stored:
        before, expected = torch.from_numpy(stored[table]), torch.from_numpy(stored[name])
    found = resample_table(before, (4, 4), (rows, columns), prefix, METHODS[source])
    assert distance(found, expected) < 2e-6
    assert torch.equal(found[:, :prefix], before[:, :prefix])
    others = {method for key, method in METHODS.items() if method != METHODS[source]}
    for method in others:
        assert distance(resample_table(before, (4, 4), (rows, columns), prefix, method), expected) > 1e-3
