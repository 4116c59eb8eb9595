"""The pipeline that measuring uses: a model's own preprocessing, in the words of pipelines."""

from __future__ import annotations

import math

from vitkit.data.pipeline import Pipeline, Step
from vitkit.models.configs import Preprocessing


def evaluation_pipeline(preprocessing: Preprocessing) -> Pipeline:
    """Return resize, or resize of the shorter side and a centre crop, as the model's folder will state it."""
    size, interpolation = preprocessing.size, ("interpolation", preprocessing.interpolation)
    if preprocessing.crop_fraction is None:
        return Pipeline(image=(Step("resize", (("size", size), interpolation)),))
    rows, columns = (math.floor(side / preprocessing.crop_fraction) for side in size)
    small = ("size", rows if rows == columns else (rows, columns))
    return Pipeline(
        image=(Step("resize_small", (small, interpolation)), Step("central_crop", (("size", size),)))
    )
