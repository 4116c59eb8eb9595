"""Colours of tokens: principal components over all images together, on a scale that odd tokens don't set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from tests.inspection.tiny_models import FAMILIES, VIT, images_for, make
from vitkit.errors import InputError
from vitkit.inspection import token_colors
from vitkit.models.configs import ViTConfig
from vitkit.models.record import Record


@pytest.mark.parametrize("layer", [-1, 0])
@pytest.mark.parametrize("family", ["token", "cct"])
def test_colours_are_components_of_all_tokens(family: str, layer: int) -> None:
    model = make(FAMILIES[family])
    images, record = images_for(model.config, 4), Record("tokens")
    model(images, record)
    tokens = record.tokens[layer % 3].detach().double().numpy()[:, model.config.num_prefix :].reshape(-1, 16)
    fitted = PCA(3).fit(tokens)
    values = fitted.transform(tokens)
    signs = [np.sign(row[np.abs(row).argmax()]) for row in fitted.components_]
    values = values * signs
    low, high = np.percentile(values, (2, 98), axis=0)
    expected = ((values - low) / (high - low)).clip(0, 1).reshape(4, *model.config.grid, 3)
    colors = token_colors(model, images, layer)
    np.testing.assert_allclose(colors, expected, atol=1e-3)
    assert colors.min() == 0 and colors.max() == 1


def test_alike_patches_have_one_colour() -> None:
    model: Any = make(ViTConfig(**VIT, pool="mean", positions="none"))
    images = torch.zeros(2, 3, 8, 12)
    images[0, :, :, 4:8], images[1, 0, 4:, :4] = (
        1.0,
        -1.0,
    )  # positions are none: a patch's token is its content's
    colors = token_colors(model, images)
    np.testing.assert_allclose(colors[0, 0, 1], colors[0, 1, 1], atol=1e-5)
    np.testing.assert_allclose(colors[0, 0, 0], colors[0, 1, 2], atol=1e-5)
    assert np.abs(colors[0, 0, 0] - colors[0, 0, 1]).max() > 0.2


def test_what_does_not_vary_is_grey() -> None:
    model = make(ViTConfig(**dict(VIT, width=2, heads=1), pool="mean", positions="none"))
    assert (token_colors(model, images_for(model.config))[..., 2] == 0.5).all()


def test_unknown_layers_are_refused() -> None:
    model = make(FAMILIES["token"])
    with pytest.raises(InputError, match="no layer 3 to record: the model has 3"):
        token_colors(model, images_for(model.config), 3)
