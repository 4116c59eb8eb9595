"""Batched operations give what Pillow gives for one image, whatever the amounts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.test_operations import FILL, MOVING, PICTURES, PILLOW, RESAMPLE, difference, to_tensor
from vitkit.data.operations import OPERATIONS


@settings(max_examples=40)
@given(
    degrees=st.floats(-180, 180),
    shear=st.floats(-1, 1, width=16),  # a hair below 1 puts a whole edge of places on the image's edge
    pixels=st.floats(-60, 60),
    interpolation=st.sampled_from(sorted(RESAMPLE)),
    picture=st.sampled_from(["flower", "small", "noise"]),
)
def test_any_move_is_pillows(
    degrees: float, shear: float, pixels: float, interpolation: str, picture: str
) -> None:
    image = PICTURES[picture]
    amounts = {
        "Rotate": degrees,
        "ShearX": shear,
        "ShearY": shear,
        "TranslateX": pixels,
        "TranslateY": pixels,
    }
    for name, amount in amounts.items():
        expected = MOVING[name][1](image, amount, fillcolor=FILL, resample=RESAMPLE[interpolation])
        ours = OPERATIONS[name](to_tensor(image)[None], [amount], fill=FILL, interpolation=interpolation)[0]
        # A place on the very edge of the image may fall on its other side.
        assert (difference(ours, expected) <= 1).mean() >= (0.995 if name == "Rotate" else 0.999)


@settings(max_examples=40)
@given(factor=st.floats(0, 4), bits=st.integers(0, 8), level=st.integers(0, 256), seed=st.integers(0, 99))
def test_any_colour_change_is_pillows(factor: float, bits: int, level: int, seed: int) -> None:
    image = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (7, 9, 3), dtype=np.uint8))
    amounts = dict.fromkeys(("Color", "Contrast", "Brightness", "Sharpness"), factor)
    amounts |= {"Posterize": bits, "Solarize": level, "SolarizeAdd": level, "Equalize": 0, "AutoContrast": 0}
    for name, amount in amounts.items():
        ours = OPERATIONS[name](to_tensor(image)[None], [amount])[0]
        assert difference(ours, PILLOW[name][1](image, amount)).max() <= 1
