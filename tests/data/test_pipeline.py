"""Pipelines as strings."""

from __future__ import annotations

import typing

import pytest

from vitkit import InputError
from vitkit.data.pipeline import IMAGE_STEPS, RANGES, batch_steps, mix_steps, parse_pipeline


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
        (
            "inception_crop(a)",
            "inception_crop: size is 'a'; expected a whole number or HEIGHTxWIDTH such as 224x160",
        ),
        (
            "resize(8,interpolation=linear)",
            "resize: interpolation is 'linear'; expected one of 'bilinear', 'bicubic'",
        ),
        ("flip(0.5,1)", "flip takes at most 1 arguments: probability"),
        ("flip(chance=1)", "flip has no argument 'chance'"),
        ("flip(0.5,probability=0.5)", "flip is given probability twice"),
        ("flip||flip", "pipeline 'flip||flip': '' is not a step; expected name or name(arguments)"),
        ("|flip", "pipeline '|flip': '' is not a step"),
        (
            "resize((64,32))",
            "resize: size is '(64,32)'; expected a whole number or HEIGHTxWIDTH such as 224x160",
        ),
        ("resize(64/32)", "resize: size is '64/32'; expected a whole number or HEIGHTxWIDTH"),
        (
            "resize(64,32)",
            "resize: interpolation is '32'; expected one of 'bilinear', 'bicubic'; two sides are resize(64x32)",
        ),
        (
            "inception_crop(224,224)",
            "inception_crop: area_min is 224.0; expected 0 or more, 1 at most; two sides are "
            "inception_crop(224x224)",
        ),
        ("resize(224", "pipeline 'resize(224': 'resize(224' is not a step; expected name or name(arguments)"),
    ],
)
def test_errors_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_pipeline(text)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inception_crop(24,2,3)", "inception_crop: area_min is 2.0; expected 0 or more, 1 at most"),
        ("inception_crop(0)", "inception_crop: size is 0; expected 1 or more, 65535 at most"),
        ("inception_crop(24,0.5,0.2)", "inception_crop: area_min is 0.5, above area_max, 0.2"),
        ("inception_crop(24,area_max=0.01)", "inception_crop: area_min is 0.05, above area_max, 0.01"),
        ("inception_crop(24,ratio_min=0)", "inception_crop: ratio_min is 0.0; expected above 0"),
        ("central_crop(0)", "central_crop: size is 0; expected"),
        ("resize(0)", "resize: size is 0; expected"),
        ("resize(-3)", "resize: size is -3; expected"),
        ("resize_small(8x0)", "resize_small: size is 0; expected"),
        ("flip(5)", "flip: probability is 5.0; expected 0 or more, 1 at most"),
        ("flip(nan)", "flip: probability is nan; expected"),
        ("pad_crop(-1)", "pad_crop: padding is -1; expected"),
        ("randaugment(0)", "randaugment: layers is 0; expected 1 or more"),
        ("randaugment(2,-5)", "randaugment: magnitude is -5.0; expected"),
        ("timm_randaugment(rand-q9)", "RandAugment string 'rand-q9': unknown section 'q9'"),
        ("erase(7)", "erase: probability is 7.0; expected"),
        ("erase(0.25,mean=0.5/7/0.5)", "erase: mean is 7.0; expected 0 or more, 1 at most"),
        ("color_jitter(nan)", "color_jitter: brightness is nan; expected 0 or more"),
        ("color_jitter(inf)", "color_jitter: brightness is inf; expected 0 or more"),
        ("color_jitter(hue=0.6)", "color_jitter: hue is 0.6; expected 0 or more, 0.5 at most"),
        ("mixup(0)", "mixup: alpha is 0.0; expected above 0"),
        ("cutmix(0)", "cutmix: alpha is 0.0; expected above 0"),
        ("mix(-1,1)", "mix: mixup_alpha is -1.0; expected 0 or more"),
        ("mix(0,0)", "mix: both alphas are 0"),
    ],
)
def test_values_are_checked_before_anything_runs(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_pipeline(text)
    assert str(error.value).startswith(message)


def test_every_number_has_a_range() -> None:
    for function in (IMAGE_STEPS | batch_steps() | mix_steps()).values():
        for name, hint in typing.get_type_hints(function).items():
            kinds = {hint, *typing.get_args(hint)}
            if name not in ("return", "group") and kinds & {int, float}:
                assert name in RANGES, f"{name} of {function.__name__}"


def test_several_numbers_have_slashes_between_them() -> None:
    pipeline = parse_pipeline("trivialaugment(fill=1/2/3)|erase(0.25,mean=0.5/0.4/0.5,std=0.1/0.1/1)")
    assert dict(pipeline.batch[0].arguments) == {"fill": (1, 2, 3)}
    assert dict(pipeline.batch[1].arguments)["mean"] == (0.5, 0.4, 0.5)
    assert parse_pipeline(str(pipeline)) == pipeline
