"""MODEL strings, the account of every tensor, and what a load may change: head, channels, positions."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import vitkit
from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing
from vitkit.models.names import default_preprocessing
from vitkit.models.positions import resample_table
from vitkit.weights import google, huggingface, timm, torchvision
from vitkit.weights.convert import convert, save
from vitkit.weights.files import read_tensors, write_npz
from vitkit.weights.folder import Origin, preprocessing_in_words
from vitkit.weights.load import LoadedModel, load_model

HALF = (0.5, 0.5, 0.5)


def tiny(name: str = "mu/16", **settings: Any) -> LoadedModel:
    """A small model with random weights everywhere."""
    model = vitkit.create_model(name, **{"image_size": 32, "num_classes": 3, **settings}).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) / 4
    return LoadedModel(model, default_preprocessing(model.config), None, name)


@pytest.fixture
def ours() -> LoadedModel:
    return tiny()


@pytest.fixture
def file(ours: LoadedModel, tmp_path: Path) -> Path:
    """The model's weights in timm's layout, nothing beside them."""
    path = tmp_path / "weights.safetensors"
    save_file(ours.model.state_dict(), path)
    return path


def assert_weights(loaded: LoadedModel, expected: LoadedModel) -> None:
    state = loaded.model.state_dict()
    assert state.keys() == expected.model.state_dict().keys()
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(state[name], tensor), name


def message(spec: str | Path, **settings: Any) -> str:
    with pytest.raises(InputError) as error:
        load_model(spec, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_name_alone_is_untrained() -> None:
    loaded = load_model("mu/16", image_size=48, num_classes=4, channels=1)
    config = loaded.model.config
    assert (config.size, config.num_classes, config.channels) == ((48, 48), 4, 1)
    assert loaded.preprocessing == default_preprocessing(config)
    assert loaded.notes == ("mu/16 is untrained: its weights are random, so its predictions are meaningless",)
    assert not loaded.model.training
    assert load_model("CCT-2/3x2").notes == (
        "CCT-2/3x2 is untrained: its weights are random, so its predictions are meaningless",
    )


@pytest.mark.parametrize("name", ["mu/16", "ViT-mu/16"])
def test_a_file_with_and_without_its_name(name: str, ours: LoadedModel, file: Path) -> None:
    for spec in (file, str(file), f"{name}@{file}"):
        loaded = load_model(spec)
        assert_weights(loaded, ours)
        assert loaded.name == "mu/16"
        assert not loaded.model.training
        assert loaded.notes == (
            "weights.safetensors doesn't state its preprocessing; assuming: shorter side resized to 35, "
            "centre crop 32x32, bicubic, mean 0.5, std 0.5",
        )


def test_relative_paths_and_home(ours: LoadedModel, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv("HOME", str(file.parent))
    for spec in (
        "weights.safetensors",
        "./weights.safetensors",
        "~/weights.safetensors",
        "mu/16@~/weights.safetensors",
    ):
        assert_weights(load_model(spec), ours)


def test_an_existing_path_wins(ours: LoadedModel, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may hold an @, or be spelt as a model's name."""
    monkeypatch.chdir(file.parent)
    odd = file.parent / "B@16" / "a@b.safetensors"
    odd.parent.mkdir()
    shutil.copy(file, odd)
    assert_weights(load_model(odd), ours)
    assert_weights(load_model("B@16/a@b.safetensors"), ours)
    assert_weights(load_model(f"mu/16@{odd}"), ours)
    save(ours, Path("B") / "16")
    assert load_model("B/16").name == "mu/16"


def test_runs(ours: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "runs" / "first"
    last = tiny(num_classes=4)
    save(ours, run / "model")
    save(last, run / "model-last")
    assert_weights(load_model(run), ours)
    assert_weights(load_model(f"{run}@last"), last)
    assert_weights(load_model(run / "model-last"), last)
    assert (
        message(f"{run}@best") == f"'{run}@best': a run has only its best model (no @) and @last, not @best"
    )
    shutil.rmtree(run / "model-last")
    assert message(f"{run}@last") == f"no such file or folder: {run / 'model-last'}"
    shutil.rmtree(run / "model")
    assert message(run) == f"{run} is not a model folder: it has no config.json"
    for name in ("run.json", "config.yaml"):
        (run / name).write_text("")
    assert message(run) == f"{run} is a run without a model yet: `vit train {run}` resumes it"
    save(last, run / "model-last")
    assert message(run).endswith(f"resumes it; {run}@last has its latest weights")
    assert load_model(f"{run}@last").name == "mu/16"
    monkeypatch.chdir(tmp_path)
    assert message("runs/second") == "no such file or folder: runs/second"
    assert message(tmp_path / "runs" / "other") == f"no such file or folder: {tmp_path / 'runs' / 'other'}"
    for spec in ("runs/frist", "./runs/frist", "runs/frist@last"):
        name = spec.removesuffix("@last")
        assert message(spec) == f"no such file or folder: {name}; did you mean 'runs/first'?"
    (tmp_path / "mine.safetensors").write_bytes(b"")
    assert message("mien.safetensors").endswith("; did you mean 'mine.safetensors'?")
    assert message("runz/second").startswith("unknown model 'runz/second'")


def test_the_last_weights_of_a_fine_tuning_are_its_first_seeds(ours: LoadedModel, tmp_path: Path) -> None:
    last = tiny(num_classes=4)
    save(ours, tmp_path / "tuned" / "model")
    save(last, tmp_path / "tuned" / "seed-0" / "run" / "model-last")
    assert_weights(load_model(f"{tmp_path}/tuned@last"), last)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("B/17x", "unknown model 'B/17x'"),
        ("vit_bse_patch16_224", "did you mean 'vit_base_patch16_224'"),
        ("B16@augreg_in21k", "unknown model 'B16'"),
        ("", "unknown model ''"),
        ("@", "unknown model ''"),
        ("missing.npz", "no such file or folder: missing.npz"),
        ("./missing", "no such file or folder: ./missing"),
        ("B/16@missing.npz", "no such file: missing.npz"),
        ("B/16@./missing", "no such file: ./missing"),
        ("B/16@augreg_in21", "'augreg_in21' is neither a file nor public weights of B/16; did you mean 'augreg_in21k'"),
        ("B/16@", "'' is neither a file nor public weights of B/16; its tags are augreg_in21k_ft_in1k, "),
        ("mu/16@pretrained", "no public weights are known for mu/16; `vit models --weights` lists them all"),
        ("H/14@pretrained", "'pretrained' is neither a file nor public weights of H/14; its tags are mae"),
        ("x" * 5000, "unknown model"),
        ("mu/16@" + "x" * 5000, "no public weights are known for mu/16"),
        ("~nobody-by-this-name/x.npz", "no such file or folder: ~nobody-by-this-name/x.npz"),
        ("a\0b", "unknown model 'a\\x00b'"),
    ],
    ids=lambda value: value[:30],
)  # fmt: skip
def test_what_is_not_there(spec: str, expected: str) -> None:
    assert expected in message(spec)


def test_the_file_must_be_the_named_model(file: Path) -> None:
    assert message(f"Ti/16@{file}") == f"{file}: the file's model has width 32, but the named one has 192"
    assert message(f"mu/8@{file}") == f"{file}: the file's model has patch 16, but the named one has 8"
    assert message(f"BiT-R50x1@{file}") == f"{file}: the file holds a ViT, but the name means a ResNet"
    assert message(f"R+Ti/16@{file}") == f"{file}: the file holds a ViT, but the name means a Hybrid"


@pytest.mark.parametrize("target", ["ours.npz", "folder"])
def test_what_we_wrote_must_be_the_named_model_too(target: str, ours: LoadedModel, tmp_path: Path) -> None:
    save(ours, tmp_path / target, "npz" if target.endswith(".npz") else "vitkit")
    assert_weights(load_model(f"mu/16@{tmp_path / target}"), ours)
    assert "the file's model has width 32, but the named one has 192" in message(f"Ti/16@{tmp_path / target}")


@pytest.mark.parametrize("name", ["R+Ti/16", "BiT-R26x1", "CCT-2/3x2", "CVT-2/4"])
def test_every_family_by_name(name: str, tmp_path: Path) -> None:
    ours = tiny(name, **({"image_size": 64} if "R" in name else {}))
    save_file(ours.model.state_dict(), tmp_path / "x.safetensors")
    for spec in (tmp_path / "x.safetensors", f"{name}@{tmp_path / 'x.safetensors'}"):
        loaded = load_model(spec)
        assert loaded.name == name
        assert_weights(loaded, ours)


def test_heads_that_a_file_does_not_tell(tmp_path: Path) -> None:
    odd = tiny(mlp_width=100)
    save_file(odd.model.state_dict(), tmp_path / "odd.safetensors")
    assert message(tmp_path / "odd.safetensors") == (
        f"{tmp_path / 'odd.safetensors'}: the file doesn't say how many attention heads the model has: "
        "name the model, as in NAME@FILE"
    )


def test_tensors_without_use(ours: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "more.safetensors"
    save_file(
        {**ours.model.state_dict(), "head_dist.weight": torch.ones(3), "mask_token": torch.ones(1)}, path
    )
    assert message(path) == (
        f"{path}: unused tensors (2): head_dist.weight, mask_token; "
        "to load anyway, accept them by name or pattern: --accept 'NAME*' (accept=[...] in Python)"
    )
    assert "unused tensors (1): mask_token; " in message(path, accept=["head_*"])
    assert_weights(load_model(path, accept=["head_*", "mask_token"]), ours)
    assert_weights(load_model(path, accept=["*"]), ours)


def test_integers_without_use_may_be_accepted(ours: LoadedModel, tmp_path: Path) -> None:
    save_file({**ours.model.state_dict(), "steps": torch.tensor(5)}, tmp_path / "more.safetensors")
    assert_weights(load_model(tmp_path / "more.safetensors", accept=["steps"]), ours)


def test_missing_tensors(ours: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "less.safetensors"
    state = ours.model.state_dict()
    save_file({name: state[name] for name in state if not name.startswith("blocks.0.mlp.fc2")}, path)
    assert message(path) == (
        f"{path}: missing tensors (2): blocks.0.mlp.fc2.weight, blocks.0.mlp.fc2.bias; "
        "to load anyway, accept them by name or pattern: --accept 'NAME*' (accept=[...] in Python)"
    )
    loaded = load_model(path, accept=["blocks.*.mlp.*"])
    assert loaded.notes[-1] == (
        "not in less.safetensors, so randomly initialised: blocks.0.mlp.fc2.weight, blocks.0.mlp.fc2.bias"
    )
    fresh = loaded.model.state_dict()
    assert fresh.pop("blocks.0.mlp.fc2.weight").std() > 0
    assert fresh.pop("blocks.0.mlp.fc2.bias").abs().max() < 1e-4
    assert all(torch.equal(tensor, state[name]) for name, tensor in fresh.items())


def test_both_at_once_and_many(ours: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "renamed.safetensors"
    extra = {f"extra.{index}": torch.ones(1) for index in range(30)}
    state = {name.replace("norm.weight", "norm.gamma"): t for name, t in ours.model.state_dict().items()}
    save_file({**state, **extra}, path)
    text = message(path)
    assert "unused tensors (31): extra.0, " in text
    assert " and 11 more; missing tensors (1): norm.weight; to load anyway, accept them" in text


def test_a_missing_position_table_is_missing(ours: LoadedModel, tmp_path: Path) -> None:
    """Models without positions exist, but their config says so."""
    state = {name: tensor for name, tensor in ours.model.state_dict().items() if name != "pos_embed"}
    save_file(state, tmp_path / "timm.safetensors")
    assert "missing tensors (1): pos_embed; " in message(tmp_path / "timm.safetensors")
    old = google.write(ours.model.config, state)
    write_npz(tmp_path / "old.npz", old)
    assert "missing tensors (1): pos_embed; " in message(tmp_path / "old.npz")


def test_an_incomplete_group_of_tensors(ours: LoadedModel, tmp_path: Path) -> None:
    theirs = google.write(ours.model.config, ours.model.state_dict())
    key = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/key/kernel"
    write_npz(tmp_path / "x.npz", {name: tensor for name, tensor in theirs.items() if name != key})
    linen = key.replace("_1/", "_0/")
    assert message(tmp_path / "x.npz") == (
        f"{tmp_path / 'x.npz'}: tensor {linen} is missing, although {linen.replace('key', 'query')} is present"
    )


def test_unknown_layouts(tmp_path: Path) -> None:
    save_file({f"layer{index}.weight": torch.ones(1) for index in range(7)}, tmp_path / "x.safetensors")
    assert message(tmp_path / "x.safetensors") == (
        f"{tmp_path / 'x.safetensors'}: its tensors have no known layout (layer0.weight, layer1.weight, "
        "layer2.weight, layer3.weight, layer4.weight); expected Google's, timm's, transformers', "
        "torchvision's or Compact-Transformers'"
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mu/16", {}),
        ("mu/16", {"pre_logits": 8}),
        ("mu/16", {"pool": "map"}),
        ("CCT-2/3x2", {}),
    ],
)
def test_a_head_is_replaced_only_when_asked(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    ours = tiny(name, **settings)
    ours.class_names = ("ant", "bee", "cat")
    save(ours, tmp_path / "model")
    assert load_model(tmp_path / "model").class_names == ours.class_names
    same = load_model(tmp_path / "model", num_classes=3)
    assert_weights(same, ours)
    assert same.class_names == ours.class_names
    other = load_model(tmp_path / "model", num_classes=10)
    assert other.class_names is None
    assert other.model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    old, new = ours.model.state_dict(), other.model.state_dict()
    heads = ("head.", "pre_logits.", "classifier.fc.")
    assert all(torch.equal(tensor, old[name]) for name, tensor in new.items() if not name.startswith(heads))
    headless = load_model(tmp_path / "model", num_classes=0).model
    assert headless(torch.zeros(1, 3, 32, 32)).shape == (1, ours.model.config.width)
    assert "num_classes must be at least 0, not -1" in message(tmp_path / "model", num_classes=-1)


FIRST = {
    "mu/16": "patch_embed.proj.weight",
    "R+Ti/16": "patch_embed.backbone.conv.weight",
    "CCT-2/3x2": "tokenizer.conv_layers.0.0.weight",
}


@pytest.mark.parametrize("name", FIRST)
def test_channels(name: str, tmp_path: Path) -> None:
    ours = tiny(name, **({"image_size": 64} if "+" in name else {}))
    ours.preprocessing = dataclasses.replace(ours.preprocessing, mean=(0.3, 0.4, 0.8), std=(0.1, 0.2, 0.3))
    save(ours, tmp_path / "model")
    kernel = ours.model.state_dict()[FIRST[name]]

    gray = load_model(tmp_path / "model", channels=1)
    assert torch.equal(gray.model.state_dict()[FIRST[name]], kernel.sum(1, keepdim=True))
    assert gray.preprocessing.mean == pytest.approx((0.5,))
    assert gray.preprocessing.std == pytest.approx((0.2,))

    four = load_model(tmp_path / "model", channels=4)
    expected = torch.cat([kernel, kernel[:, :1]], dim=1) * 0.75
    assert torch.equal(four.model.state_dict()[FIRST[name]], expected)
    assert four.preprocessing.mean == (0.3, 0.4, 0.8, 0.3)
    assert four.model(torch.zeros(1, 4, *ours.model.config.size)).shape == (1, 3)

    two = load_model(tmp_path / "model", channels=2)
    assert torch.equal(two.model.state_dict()[FIRST[name]], kernel[:, :2] * 1.5)
    assert_weights(load_model(tmp_path / "model", channels=3), ours)
    for wrong in (0, -1):
        assert f"channels must be at least 1, not {wrong}" in message(tmp_path / "model", channels=wrong)


def test_a_gray_image_gives_the_same_logits_in_one_and_three_channels(file: Path) -> None:
    image = torch.randn(1, 1, 32, 32)
    one = load_model(file, channels=1).model(image)
    assert torch.allclose(one, load_model(file).model(image.expand(-1, 3, -1, -1)), atol=1e-5)


def in_layout(layout: str, loaded: LoadedModel, folder: Path) -> Path:
    config, state = loaded.model.config, loaded.model.state_dict()
    if layout == "google":
        write_npz(folder / "x.npz", google.write(config, state))
        return folder / "x.npz"
    theirs = {"transformers": huggingface, "torchvision": torchvision}.get(layout)
    tensors = theirs.write(config, state) if theirs else state
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "x.safetensors")
    return folder / "x.safetensors"


@pytest.mark.parametrize(
    ("layout", "method"),
    [
        ("google", "bilinear_corners"),
        ("timm", "bicubic"),
        ("torchvision", "bicubic"),
        ("transformers", "bicubic_plain"),
    ],
)
@pytest.mark.parametrize("size", [64, (48, 80), 16])
def test_positions_follow_their_source(layout: str, method: Any, size: Any, tmp_path: Path) -> None:
    ours = tiny(image_size=48)
    path = in_layout(layout, ours, tmp_path)
    loaded = load_model(path, image_size=size)
    config = loaded.model.config
    assert config.resample == method
    assert config.size == ((size, size) if isinstance(size, int) else size)
    assert loaded.preprocessing.size == config.size
    expected = resample_table(ours.model.state_dict()["pos_embed"], (3, 3), config.grid, 1, method)
    found = loaded.model.state_dict()["pos_embed"]
    assert torch.equal(found, expected)
    assert torch.equal(found[:, 0], ours.model.state_dict()["pos_embed"][:, 0])
    assert loaded.model(torch.zeros(1, 3, *config.size)).shape == (1, 3)


def test_class_and_register_rows_are_kept(tmp_path: Path) -> None:
    ours = tiny(registers=2)
    save(ours, tmp_path / "model")
    found = load_model(tmp_path / "model", image_size=(32, 64)).model.state_dict()["pos_embed"]
    assert found.shape == (1, 3 + 8, 32)
    assert torch.equal(found[:, :3], ours.model.state_dict()["pos_embed"][:, :3])
    bare = tiny(registers=2, prefix_positions=False)
    save(bare, tmp_path / "bare")
    assert load_model(tmp_path / "bare", image_size=(32, 64)).model.state_dict()["pos_embed"].shape == (
        1,
        8,
        32,
    )


@pytest.mark.parametrize("layout", ["google", "timm"])
def test_tables_of_grids_that_are_not_square(layout: str, tmp_path: Path) -> None:
    ours = tiny(image_size=(32, 48))
    path = in_layout(layout, ours, tmp_path)
    assert message(path) == (
        f"{path}: the position table has 7 rows, which is not a square grid; give the image size that it was made for"
    )
    assert_weights(load_model(path, image_size=(32, 48)), ours)
    assert load_model(path, image_size=(32, 48)).model.config.size == (32, 48)
    assert "not a square grid" in message(path, image_size=(64, 64))


def test_a_square_table_is_taken_as_square(tmp_path: Path) -> None:
    """1 x 4 and 2 x 2 cells are as many; asking for 16x64 pixels doesn't mean the table was made for them."""
    ours = tiny(image_size=32)
    path = in_layout("timm", ours, tmp_path)
    found = load_model(path, image_size=(16, 64)).model
    table = ours.model.state_dict()["pos_embed"]
    assert found.config.size == (16, 64)
    assert torch.equal(found.state_dict()["pos_embed"], resample_table(table, (2, 2), (1, 4), 1, "bicubic"))


def test_a_stated_size_tells_the_grid(tmp_path: Path) -> None:
    ours = tiny(image_size=(16, 64))
    save_file(ours.model.state_dict(), tmp_path / "model.safetensors")
    document = {"architecture": "vit_base_patch16_224", "model_args": {"num_heads": 2, "img_size": [16, 64]}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    loaded = load_model(tmp_path)
    assert loaded.model.config.size == (16, 64)
    assert_weights(loaded, ours)


@pytest.mark.parametrize(
    ("name", "settings", "size"),
    [
        ("ViT-Lite-6/16", {}, (32, 32)),
        ("ViT-Lite-6/16", {"image_size": 64}, (64, 64)),
        ("CCT-2/3x2", {"positions": "none", "image_size": 64}, (32, 32)),
        ("CCT-2/3x2", {"image_size": 64}, (64, 64)),
    ],
)
def test_the_image_size_of_compact_files(
    name: str, settings: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    save_file(tiny(name, **settings).model.state_dict(), tmp_path / "x.safetensors")
    assert load_model(tmp_path / "x.safetensors").model.config.size == size
    assert load_model(tmp_path / "x.safetensors", image_size=(32, 48)).model.config.size == (32, 48)


def test_sidecars(ours: LoadedModel, tmp_path: Path) -> None:
    """Numerics and preprocessing stand beside the file; without them Google's values hold."""
    ours = tiny(gelu="erf", norm_epsilon=1e-3, dropout=0.1)
    ours.preprocessing = Preprocessing((32, 32), 0.8, "bicubic", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    ours.class_names = ("ant", "bee", "cat")
    save(ours, tmp_path / "x.npz", "npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npz", "x.npz.json"]
    document = json.loads((tmp_path / "x.npz.json").read_text())
    assert document["format_version"] == 1
    assert (document["name"], document["family"]) == ("mu/16", "vit")
    assert document["model"]["norm_epsilon"] == 1e-3
    assert document["preprocessing"]["crop_fraction"] == 0.8
    loaded = load_model(tmp_path / "x.npz")
    assert_weights(loaded, ours)
    assert loaded.model.config == ours.model.config
    assert (loaded.preprocessing, loaded.class_names, loaded.notes) == (
        ours.preprocessing,
        ours.class_names,
        (),
    )

    (tmp_path / "x.npz.json").unlink()
    bare = load_model(tmp_path / "x.npz")
    assert_weights(bare, ours)
    assert (bare.model.config.gelu, bare.model.config.norm_epsilon) == ("tanh", 1e-6)
    assert bare.preprocessing == Preprocessing((32, 32), None, "bilinear", HALF, HALF)
    assert bare.class_names is None
    assert bare.notes == (
        "x.npz doesn't state its preprocessing; assuming: the whole image resized to 32x32, bilinear, mean 0.5, std 0.5",
    )


@pytest.mark.parametrize("name", ["x.safetensors", "x.pth"])
def test_single_files_have_a_sidecar_too(name: str, tmp_path: Path) -> None:
    ours = tiny(norm_epsilon=1e-3, heads=4)
    save(ours, tmp_path / name)
    loaded = load_model(tmp_path / name)
    assert_weights(loaded, ours)
    assert loaded.model.config == ours.model.config


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state},
        lambda state: {"model": state, "epoch": 7, "lr": 0.1},
        lambda state: {"model_state_dict": state, "optimizer": {"step": torch.ones(1)}},
        lambda state: {"state_dict": {"model": state}},
        lambda state: {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}},
        lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
        lambda state: {"state_dict": {f"model._orig_mod.{name}": tensor for name, tensor in state.items()}},
        lambda state: {name: torch.nn.Parameter(tensor) for name, tensor in state.items()},
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_trainers_checkpoints(
    wrap: Callable[..., Any], zipped: bool, ours: LoadedModel, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.pth"
    torch.save(wrap(ours.model.state_dict()), path, _use_new_zipfile_serialization=zipped)
    assert_weights(load_model(path), ours)


def rounded(loaded: LoadedModel, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) for name, tensor in loaded.model.state_dict().items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["x.safetensors", "x.pth"])
def test_other_precisions_become_float32(
    dtype: torch.dtype, name: str, ours: LoadedModel, tmp_path: Path
) -> None:
    half = rounded(ours, dtype)
    (save_file if name.endswith("safetensors") else torch.save)(half, tmp_path / name)
    state = load_model(tmp_path / name).model.state_dict()
    assert all(tensor.dtype == torch.float32 for tensor in state.values())
    assert all(torch.equal(state[key], tensor.float()) for key, tensor in half.items())


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_other_precisions_in_npz(dtype: str, ours: LoadedModel, tmp_path: Path) -> None:
    """NumPy has no bfloat16: files hold its two bytes as a void type, 'V2'."""
    half = rounded(ours, getattr(torch, dtype))
    arrays = {}
    for name, tensor in google.write(ours.model.config, half).items():
        tensor = tensor.contiguous()
        array = tensor.view(torch.int16).numpy().view("V2") if dtype == "bfloat16" else tensor.numpy()
        arrays[name] = np.asfortranarray(array)
    np.savez(tmp_path / "x.npz", **arrays)
    state = load_model(tmp_path / "x.npz").model.state_dict()
    assert all(torch.equal(state[name], tensor.float()) for name, tensor in half.items())


def test_the_content_decides_not_the_ending(ours: LoadedModel, file: Path, tmp_path: Path) -> None:
    for name in ("weights.npz", "weights.bin", "weights", "weights.txt"):
        shutil.copy(file, tmp_path / name)
        assert_weights(load_model(tmp_path / name), ours)
    write_npz(tmp_path / "google.pth", google.write(ours.model.config, ours.model.state_dict()))
    assert_weights(load_model(tmp_path / "google.pth"), ours)


def test_what_a_folder_may_lack(ours: LoadedModel, tmp_path: Path) -> None:
    save(ours, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    assert (
        message(tmp_path / "model")
        == f"{tmp_path / 'model' / 'model.safetensors'}: No such file or directory"
    )
    (tmp_path / "model" / "config.json").write_text('{"architecture": "vit_base_patch16_224"}')
    assert message(tmp_path / "model") == (
        f"{tmp_path / 'model'} has no weights: expected model.safetensors or pytorch_model.bin"
    )


def test_a_folder_with_pytorch_model_bin(ours: LoadedModel, tmp_path: Path) -> None:
    document = {
        "architecture": "vit_base_patch16_224",
        "model_args": {"num_heads": 2, "act_layer": "gelu_tanh"},
    }
    (tmp_path / "config.json").write_text(json.dumps(document))
    torch.save(ours.model.state_dict(), tmp_path / "pytorch_model.bin")
    assert_weights(load_model(tmp_path), ours)


def test_saved_models_are_plain_files(ours: LoadedModel, tmp_path: Path) -> None:
    ours.class_names = ("ant", "bee", "cat")
    save(ours, tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    assert load_file(tmp_path / "model" / "model.safetensors").keys() == ours.model.state_dict().keys()
    card = (tmp_path / "model" / "README.md").read_text()
    assert "# mu/16" in card
    assert "3 classes (ant, bee, cat); images of 32x32 pixels, 3 channels." in card


def test_a_card_says_where_a_model_comes_from(ours: LoadedModel, tmp_path: Path) -> None:
    def facts(**options: Any) -> list[str]:
        save(ours, tmp_path / "model", force=True, **options)
        lines = (tmp_path / "model" / "README.md").read_text().splitlines()
        return [line for line in lines if line.startswith("- ")]

    made = f"- Made with vitkit {vitkit.__version__}"
    assert facts() == [f"{made}."]
    weights = "- Weights of `B/16@augreg_in21k` (licence: apache-2.0)."
    assert facts(origin=Origin("B/16@augreg_in21k")) == [weights, f"{made}."]
    assert facts(origin=Origin("vit_base_patch16_224.mae"))[0].endswith("(licence: cc-by-nc-4.0).")
    assert facts(origin=Origin("B/16@weights.npz"))[0] == "- Weights of `B/16@weights.npz`."
    command = "vit finetune S/16@pretrained ./photos --run photos"
    whole = Origin(
        "S/16@pretrained", "./photos:train", 1200, "accuracy 97.33% on ./photos:test, 150 images", command
    )
    assert facts(origin=whole) == [
        "- Trained on `./photos:train`, 1,200 images, starting from `S/16@pretrained` (licence: apache-2.0).",
        "- Measured: accuracy 97.33% on ./photos:test, 150 images.",
        f"{made}: `{command}`",
    ]
    scratch = Origin(data="a\nb", images=9, command="ipykernel_launcher.py -f x.json")
    assert facts(origin=scratch) == ["- Trained on `a\\nb`, 9 images, from scratch.", f"{made}."]


def test_positions_of_every_kind_survive_a_folder(tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [
        {"positions": kind} for kind in ("none", "learned", "learned_2d", "sincos_2d", "relative")
    ]
    kinds += [{"positions_at": place} for place in ("every_layer", "every_layer_shared")]
    images = torch.randn(1, 3, 32, 32)
    for index, settings in enumerate(kinds):
        ours = tiny(**settings)
        save(ours, tmp_path / str(index))
        loaded = load_model(tmp_path / str(index))
        assert loaded.model.config == ours.model.config
        assert torch.equal(loaded.model(images), ours.model(images))


def test_accepted_missing_tensors_keep_fixed_tables(tmp_path: Path) -> None:
    ours = tiny(positions="sincos_2d")
    save(ours, tmp_path / "model")
    tensors = read_tensors(tmp_path / "model" / "model.safetensors")
    del tensors["norm.bias"]
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    ours.model.state_dict()["norm.bias"].zero_()
    loaded = load_model(tmp_path / "model", accept=["norm.bias"])
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(loaded.model(images), ours.model(images))


def test_conversion_resamples_and_replaces(ours: LoadedModel, file: Path, tmp_path: Path) -> None:
    result = convert(file, tmp_path / "out", image_size=(32, 64), num_classes=5, channels=1)
    assert (result.image_size, result.num_classes) == ((32, 64), 5)
    config = load_model(tmp_path / "out").model.config
    assert (config.size, config.num_classes, config.channels) == ((32, 64), 5, 1)


def test_a_size_in_the_name_is_the_size_asked_for(tmp_path: Path) -> None:
    model = vitkit.create_model("Ti/16", image_size=64, num_classes=3)
    save_file(model.state_dict(), tmp_path / "ti.safetensors")
    assert load_model(f"Ti/16@{tmp_path}/ti.safetensors").model.config.size == (64, 64)
    assert load_model(f"vit_tiny_patch16_96@{tmp_path}/ti.safetensors").model.config.size == (96, 96)


def test_one_pattern_may_be_a_plain_text(tmp_path: Path) -> None:
    state = vitkit.create_model("mu/16", num_classes=3).state_dict()
    save_file(state | {"junk": torch.zeros(1)}, tmp_path / "mu.safetensors")
    spec = f"mu/16@{tmp_path}/mu.safetensors"
    assert "junk" in message(spec, accept="head.*")
    load_model(spec, accept="junk")


def test_a_mean_behind_a_class_token_is_told_by_its_norm(tmp_path: Path) -> None:
    model = vitkit.create_model("mu/16", pool="mean", class_token=True, final_norm="pooled", gelu="erf")
    save_file(model.state_dict(), tmp_path / "mae.safetensors")
    config = load_model(f"mu/16@{tmp_path}/mae.safetensors").model.config
    assert (config.pool, config.final_norm, config.class_token) == ("mean", "pooled", True)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "settings"),
    [("BiT-R50x1", {"units": (1,)}), ("R+Ti/16", {})],
)
def test_a_small_stem_is_told_by_its_kernel(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    expected = tiny(name, stem="3x3", **settings)
    save_file(expected.model.state_dict(), tmp_path / "weights.safetensors")
    loaded = load_model(tmp_path / "weights.safetensors", image_size=32)
    assert loaded.model.config.stem == "3x3"  # type: ignore[attr-defined]
    assert_weights(loaded, expected)
    for layout in (google, huggingface, timm):
        assert "no 3x3 stem" in str(layout.unsupported(loaded.model.config))


def test_a_compact_name_fixes_its_pool(tmp_path: Path) -> None:
    save_file(vitkit.create_model("ViT-Lite-2/4").state_dict(), tmp_path / "lite.safetensors")
    assert message(f"CVT-2/4@{tmp_path}/lite.safetensors").endswith(
        "the file's model has pool 'token', but the named one has 'seqpool'"
    )


def test_a_compact_file_of_mnist_size(tmp_path: Path) -> None:
    save_file(vitkit.create_model("CCT-2/3x2", image_size=28).state_dict(), tmp_path / "cct.safetensors")
    assert load_model(tmp_path / "cct.safetensors").model.config.size == (28, 28)


def test_positions_are_resampled_as_told(tmp_path: Path) -> None:
    model = vitkit.create_model("mu/16", image_size=64)
    save_file(model.state_dict(), tmp_path / "mu.safetensors")
    spec = f"mu/16@{tmp_path}/mu.safetensors"
    told = load_model(spec, image_size=96, resample="bilinear_corners").model
    expected = resample_table(model.pos_embed.data, (4, 4), (6, 6), 1, "bilinear_corners")  # type: ignore[arg-type]
    assert torch.equal(told.pos_embed, expected)  # type: ignore[arg-type]
    assert not torch.allclose(load_model(spec, image_size=96).model.pos_embed, expected)  # type: ignore[arg-type]


def test_the_words_of_an_input_that_is_not_square(file: Path) -> None:
    """A photo is resized to cover the box, whichever of its sides is the shorter."""
    loaded = load_model(file, image_size=(160, 320))
    assert preprocessing_in_words(loaded.preprocessing) == (
        "resized to cover 177x355, centre crop 160x320, bicubic, mean 0.5, std 0.5"
    )
    assert preprocessing_in_words(loaded.preprocessing) in loaded.notes[0]


@pytest.mark.parametrize("size", ["64", 32.0, (1, 2, 3), True])
def test_an_image_size_is_pixels(size: Any) -> None:
    with pytest.raises(
        InputError, match="image size is .*; expected a number of pixels, or height and width"
    ):
        vitkit.create_model("mu/16").set_image_size(size)
    model = vitkit.create_model("mu/16")
    model.set_image_size([48, 64])  # type: ignore[arg-type]
    assert model(torch.zeros(1, 3, 48, 64)).shape == (1, 1000)


def test_preprocessing_of_large_images_keeps_the_whole_crop() -> None:
    for name, fraction in (("B/16", 0.9), ("BiT-R50x1", 0.875)):
        small, large = (vitkit.models.model_config(name, image_size=size) for size in (224, 384))
        assert default_preprocessing(small).crop_fraction == fraction
        assert default_preprocessing(large).crop_fraction == 1.0


def test_a_tag_goes_with_the_size_in_the_name() -> None:
    from vitkit.weights.public import find_weights

    for tag in ("augreg_in21k_ft_in1k", "pretrained"):
        assert (
            find_weights("vit_tiny_patch16_384", tag).hub_id
            == "timm/vit_tiny_patch16_384.augreg_in21k_ft_in1k"
        )
        assert (
            find_weights("vit_tiny_patch16_224", tag).hub_id
            == "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
        )


@pytest.mark.parametrize("name", ["CCT-14/7x2", "cct_14_7x2_384", "CCT-7/7x2", "CCT-7/3x1"])
def test_unnamed_compact_files_take_a_published_size(name: str, tmp_path: Path) -> None:
    model = vitkit.create_model(name)
    save_file(model.state_dict(), tmp_path / "cct.safetensors")
    assert load_model(tmp_path / "cct.safetensors").model.config.size == model.config.size


def test_models_are_saved_from_python(tmp_path: Path) -> None:
    model = vitkit.create_model("mu/16", num_classes=2, positions="sincos_2d", gelu="tanh")
    vitkit.save(model, tmp_path / "mu", class_names=["cat", "dog"])
    loaded = vitkit.load(tmp_path / "mu")
    assert loaded.model.config == model.config and loaded.class_names == ("cat", "dog")
    vitkit.save(loaded, tmp_path / "mu.safetensors")
    assert vitkit.load(tmp_path / "mu.safetensors").class_names == ("cat", "dog")
    with pytest.raises(InputError, match="1 class names for 2 classes"):
        vitkit.save(model, tmp_path / "other", class_names=["cat"])


def test_weight_files_are_readable_by_others(tmp_path: Path) -> None:
    vitkit.save(vitkit.create_model("mu/16"), tmp_path / "mu")
    modes = {path.stat().st_mode for path in (tmp_path / "mu").iterdir()}
    assert len(modes) == 1
