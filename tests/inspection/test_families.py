"""Every inspection on every family: an array of the right shape, or a sentence why there is none."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitkit
from tests.inspection import tiny_models
from vitkit import inspection
from vitkit.errors import InputError
from vitkit.inspection.asking import ATTENTION_BYTES, batches
from vitkit.models import build
from vitkit.models.configs import Preprocessing, ViTConfig
from vitkit.models.record import Record
from vitkit.predictor import Predictor

FAMILIES, make, images_for = tiny_models.FAMILIES, tiny_models.make, tiny_models.images_for

CALLS: dict[str, Callable[[Any, Tensor], Any]] = {
    "embedding_filters": lambda model, images: inspection.embedding_filters(model),
    "position_similarity": lambda model, images: inspection.position_similarity(model),
    "attention_distance": inspection.attention_distance,
    "attention_maps": inspection.attention_maps,
    "rollout": inspection.rollout,
    "gradient_rollout": lambda model, images: inspection.gradient_rollout(model, images, 1),
    "token_colors": inspection.token_colors,
    "pooling_map": inspection.pooling_map,
}
NO_TOKENS = "a ResNet has neither tokens nor attention"
UNDEFINED = {
    **{("bit", name): NO_TOKENS for name in CALLS if name != "embedding_filters"},
    **{(family, "position_similarity"): "it has no position embeddings" for family in ("seqpool", "cct")},
    ("relative", "position_similarity"): "its positions are offsets between two tokens, "
    "so patches have no position embeddings",
    ("unpooled", "gradient_rollout"): "it has no pool, so it gives logits for each token, not for the image",
    ("unpooled", "pooling_map"): "it has no pool",
    **{
        (family, "pooling_map"): "its head reads only the class token"
        for family in (
            "token",
            "relative",
            "axial",
            "sparse",
            "reformer",
            "linformer",
            "hybrid",
            "hybrid-stages",
            "vit-lite",
        )
    },
    **{
        ("linformer", name): "Linformer attends to mixtures of all patches, not to patches"
        for name in ("attention_distance", "attention_maps", "rollout", "gradient_rollout")
    },
    **{
        (family, "pooling_map"): "it gives every patch the same weight"
        for family in ("mean", "sincos", "local")
    },
}
GRIDS = {"hybrid-stages": (2, 3), "cct": (4, 6)}
FILTERS = {
    **dict.fromkeys(("token", "mean", "map", "seqpool", "unpooled", "sincos", "relative"), (15, 4, 4, 3)),
    **dict.fromkeys(("axial", "local", "sparse", "reformer", "linformer"), (15, 4, 4, 3)),
    **dict.fromkeys(("vit-lite", "cvt"), (15, 4, 4, 3)),
    **dict.fromkeys(("hybrid", "hybrid-stages", "bit"), (28, 7, 7, 3)),
    "cct": (16, 3, 3, 3),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_array_or_a_reason(family: str, name: str) -> None:
    model = make(FAMILIES[family])
    images = images_for(model.config)
    if (family, name) in UNDEFINED:
        with pytest.raises(InputError) as error:
            CALLS[name](model, images)
        reason = f" is not defined for this model, because {UNDEFINED[family, name]}"
        assert str(error.value).endswith(reason)
        return
    grid, layers = GRIDS.get(family, (2, 3)), 6 if family == "axial" else 3
    shapes = {
        "embedding_filters": FILTERS[family],
        "position_similarity": (*grid, *grid),
        "attention_distance": (layers, 2),
        "attention_maps": (2, layers, 2, *grid),
        "rollout": (2, *grid),
        "gradient_rollout": (2, *grid),
        "token_colors": (2, *grid, 3),
        "pooling_map": (2, *grid),
    }
    result = CALLS[name](model, images)
    assert isinstance(result, np.ndarray) and result.shape == shapes[name]
    assert result.dtype == (np.float64 if name == "attention_distance" else np.float32)
    assert np.isfinite(result).all() and result.std() > 0
    if name in ("rollout", "attention_maps", "pooling_map"):
        assert (result >= 0).all() and (result.sum((-1, -2)) < 1 + 1e-5).all()


@pytest.mark.parametrize(
    "name", [name for name in CALLS if name not in ("embedding_filters", "position_similarity")]
)
def test_the_batch_size_changes_nothing_else(name: str) -> None:
    model = make(FAMILIES["map"])
    images = images_for(model.config, 5)
    function: Any = getattr(inspection, name)
    more = ([0, 4, 1, 2, 2],) if name == "gradient_rollout" else ()
    whole = function(model, images, *more)
    for batch_size in (1, 2):
        np.testing.assert_allclose(
            function(model, images, *more, batch_size=batch_size), whole, rtol=1e-4, atol=1e-5
        )
    with pytest.raises(InputError, match="batch_size must be at least 1, not 0"):
        function(model, images, *more, batch_size=0)


@pytest.mark.parametrize("name", CALLS)
def test_what_load_returns_is_taken_too(name: str) -> None:
    model = make(FAMILIES["cvt"])
    images = images_for(model.config)
    predictor = Predictor(model, Preprocessing(image_size=(8, 12)), [f"class {i}" for i in range(5)])
    np.testing.assert_array_equal(CALLS[name](predictor, images), CALLS[name](model, images))


def test_a_compiled_model_is_asked_itself() -> None:
    model = make(FAMILIES["cvt"])
    images = images_for(model.config)
    found = CALLS["rollout"](torch.compile(model), images)
    np.testing.assert_array_equal(found, CALLS["rollout"](model, images))


@pytest.mark.parametrize("name", ["rollout", "gradient_rollout", "token_colors", "attention_distance"])
def test_training_mode_is_left_as_it_was_and_drops_nothing(name: str) -> None:
    config = ViTConfig(
        **tiny_models.VIT, dropout=0.5, stochastic_depth=0.5, attention_dropout=0.5, patch_dropout=0.5
    )
    model = make(config)
    images = images_for(config)
    expected = CALLS[name](model, images)
    model.train()
    model.blocks[1].eval()
    np.testing.assert_array_equal(CALLS[name](model, images), expected)
    assert model.training and model.blocks[0].training and not model.blocks[1].mlp.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["attention_distance", "attention_maps", "rollout"])
@pytest.mark.parametrize("family", ["token", "map"])
def test_one_layers_attention_is_all_that_is_held(
    family: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(FAMILIES[family])
    keep, held, live = Record.keep, [], []

    def watched(self: Record, kind: Any, tensor: Tensor, layer: int | None = None) -> None:
        live.append(sum(reference() is not None for reference in held))
        if kind == "attention":
            held.append(weakref.ref(tensor))  # alive as long as the tensor or a view of it is
        keep(self, kind, tensor, layer)

    monkeypatch.setattr(Record, "keep", watched)
    CALLS[name](model, images_for(model.config))
    assert len(held) == 3 and max(live) == 0


def test_large_models_take_few_images_at_a_time() -> None:
    with torch.device("meta"):
        model = build(vitkit.models.model_config("L/16", image_size=512))
    images = torch.empty(9, 3, 512, 512, device="meta")
    assert [len(batch) for batch in batches(model, images, None)] == [3, 3, 3]
    assert ATTENTION_BYTES >= 3 * 16 * 1025**2 * 4
    assert [len(batch) for batch in batches(model, images, None, num_kept=48)] == [1] * 9
    assert [len(batch) for batch in batches(model, images, 5)] == [5, 4]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 3, 8, 12, dtype=torch.uint8), "images are torch.uint8; expected a float tensor"),
        (np.zeros((1, 3, 8, 12)), "images are ndarray; expected a float tensor"),
        (torch.zeros(0, 3, 8, 12), "no images to inspect"),
        (torch.zeros(1, 3, 8, 8), r"images have shape \(1, 3, 8, 8\)"),
    ],
)
def test_other_images_are_refused(images: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        inspection.rollout(make(FAMILIES["token"]), images)


def test_public_names_are_there() -> None:
    assert set(inspection.__all__) == set(inspection.PUBLIC) == set(dir(inspection))
    for name in inspection.__all__:
        assert getattr(inspection, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'vitkit.inspection' has no attribute 'role'"):
        _ = inspection.role
