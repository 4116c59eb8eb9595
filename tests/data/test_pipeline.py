"""Pipelines as strings."""

from __future__ import annotations

import pytest

from vitkit import InputError
from vitkit.data.pipeline import parse_pipeline


def test_a_pipeline_is_sorted_into_stages() -> None:
    pipeline = parse_pipeline("inception_crop(224, area_min=0.08)|flip|randaugment(2,15)|mixup(0.2)")
    assert [step.name for step in pipeline.image] == ["inception_crop"]
    assert [step.name for step in pipeline.batch] == ["flip", "randaugment"]
    assert [step.name for step in pipeline.mix] == ["mixup"]
    assert dict(pipeline.image[0].arguments) == {"size": 224, "area_min": 0.08}
    assert pipeline.size == (224, 224)
    assert str(pipeline) == (
        "inception_crop(size=224,area_min=0.08)|flip|randaugment(layers=2,magnitude=15.0)|mixup(alpha=0.2)"
    )
    assert parse_pipeline(str(pipeline)) == pipeline


def test_sizes() -> None:
    assert parse_pipeline("resize_small(256)|central_crop(224x160)").size == (224, 160)
    assert parse_pipeline("resize_small(256)|flip").size is None
    assert str(parse_pipeline("")) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flop", "pipeline 'flop': unknown step 'flop'; did you mean 'flip'?"),
        ("flip|resize(3)", "pipeline 'flip|resize(3)': resize works per image; put it before batch steps"),
        ("inception_crop", "inception_crop needs size, as in inception_crop(size=...)"),
        ("inception_crop(a)", "inception_crop: size is 'a'; expected a whole number"),
        (
            "resize(8,interpolation=linear)",
            "resize: interpolation is 'linear'; expected one of 'bilinear', 'bicubic'",
        ),
        ("flip(0.5,1)", "flip takes at most 1 arguments: probability"),
        ("flip(chance=1)", "flip has no argument 'chance'"),
        ("flip(0.5,probability=0.5)", "flip is given probability twice"),
        ("resize(224", "pipeline 'resize(224': 'resize(224' is no step; expected name or name(arguments)"),
    ],
)
def test_errors_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_pipeline(text)
    assert str(error.value).startswith(message)
