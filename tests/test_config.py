"""Settings: mappings become frozen dataclasses and return unchanged; wrong types and unknown keys are refused."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from vitkit.config import (
    Bounds,
    Count,
    Rate,
    admitted_values,
    as_changes,
    check_bounds,
    convert,
    from_dict,
    meanings,
    merge,
    override,
    read_yaml,
    to_dict,
)
from vitkit.errors import InputError
from vitkit.models.configs import (
    ATTENTION_SETTINGS,
    CompactConfig,
    HybridConfig,
    ModelConfig,
    Preprocessing,
    ResNetConfig,
    ViTConfig,
)


@dataclass(frozen=True)
class Sample:
    """One field of every kind."""

    count: int
    rate: float = 0.5
    name: str = "a"
    flag: bool = False
    choice: Literal["left", "right"] = "left"
    maybe: float | None = None
    size: int | tuple[int, int] = 8
    units: tuple[int, ...] = (1, 2)
    means: tuple[float, ...] = (0.5,)
    derived: int = field(init=False, default=3)


SETTINGS = "count, rate, name, flag, choice, maybe, size, units, means"
samples = st.builds(
    Sample,
    count=st.integers(),
    rate=st.floats(allow_nan=False),
    name=st.text(),
    flag=st.booleans(),
    choice=st.sampled_from(["left", "right"]),
    maybe=st.none() | st.floats(allow_nan=False),
    size=st.integers() | st.tuples(st.integers(), st.integers()),
    units=st.lists(st.integers()).map(tuple),
    means=st.lists(st.floats(allow_nan=False)).map(tuple),
)


def refused(settings: dict[str, Any]) -> str:
    with pytest.raises(InputError) as error:
        from_dict(Sample, settings, "sample.yaml")
    return str(error.value)


@given(samples)
def test_there_and_back(sample: Sample) -> None:
    plain = to_dict(sample)
    assert "derived" not in plain
    assert from_dict(Sample, plain, "sample") == sample
    assert from_dict(Sample, json.loads(json.dumps(plain)), "sample") == sample


rates = st.floats(0.0, 0.99)
epsilons = st.floats(1e-12, 0.1)
sizes = st.integers(16, 64) | st.tuples(st.integers(16, 64), st.integers(16, 64))
ANY: dict[str, st.SearchStrategy[Any]] = {
    "image_size": sizes,
    "channels": st.integers(1, 5),
    "num_classes": st.integers(0, 30),
}
TRANSFORMER = {
    **ANY,
    "depth": st.integers(1, 4),
    "heads": st.sampled_from([1, 2, 4]),
    "mlp_width": st.integers(1, 64),
    "width": st.sampled_from([4, 8, 16]),
    "dropout": rates,
    "attention_dropout": rates,
    "stochastic_depth": rates,
    "norm_epsilon": epsilons,
    "gelu": st.sampled_from(["tanh", "erf"]),
    "resample": st.sampled_from(["bilinear_corners", "bicubic", "bicubic_plain", "bilinear"]),
}
VIT = {
    **TRANSFORMER,
    "patch": st.integers(1, 16),
    "attention": st.sampled_from(["full", "axial", "local", "sparse", "linformer", "reformer"]),
    "attention_window": st.none() | st.integers(1, 9),
    "attention_stride": st.none() | st.integers(1, 9),
    "attention_rank": st.none() | st.integers(1, 9),
    "attention_hashes": st.none() | st.integers(1, 9),
    "attention_chunk": st.none() | st.integers(8, 64),
    "positions": st.sampled_from(["none", "learned", "learned_2d", "sincos_2d", "relative"]),
    "positions_at": st.sampled_from(["stem", "every_layer", "every_layer_shared"]),
    "position_std": st.none() | st.floats(0, 10),
    "prefix_positions": st.booleans(),
    "pool": st.sampled_from(["token", "mean", "map", "seqpool", "none"]),
    "class_token": st.none() | st.booleans(),
    "registers": st.integers(0, 3),
    "final_norm": st.sampled_from(["tokens", "pooled"]),
    "pre_logits": st.integers(0, 9),
    "head_bias": st.floats(-10, 10),
    "patch_dropout": rates,
    "layer_scale": st.none() | st.floats(0, 1),
}
NORMALIZATION = {
    "group_norm_epsilon": epsilons,
    "standardization": st.sampled_from(["std", "variance"]),
    "standardization_epsilon": epsilons,
    "stem": st.sampled_from(["7x7", "3x3"]),
}
FAMILIES: dict[type[ModelConfig], dict[str, st.SearchStrategy[Any]]] = {
    ViTConfig: VIT,
    HybridConfig: {
        **VIT,
        **NORMALIZATION,
        "patch": st.integers(1, 2),
        "backbone_units": st.lists(st.integers(1, 3), max_size=4),
        "backbone_width": st.sampled_from([32, 64]),
    },
    ResNetConfig: {
        **ANY,
        **NORMALIZATION,
        "units": st.lists(st.integers(1, 3), min_size=1, max_size=4),
        "width_factor": st.integers(1, 4),
        "head_bias": st.floats(-10, 10),
    },
    CompactConfig: {
        **TRANSFORMER,
        "tokenizer": st.sampled_from(["patches", "convolutions"]),
        "kernel": st.integers(1, 8),
        "convolutions": st.integers(1, 2),
        "pool": st.sampled_from(["token", "seqpool"]),
        "positions": st.sampled_from(["none", "learned", "sine"]),
    },
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@given(data=st.data())
def test_every_model_config_there_and_back(family: type[ModelConfig], data: st.DataObject) -> None:
    assert set(FAMILIES[family]) == {f.name for f in dataclasses.fields(family)}
    # Few settings at a time: most do not go with all others.
    names = data.draw(st.lists(st.sampled_from(sorted(FAMILIES[family])), max_size=5, unique=True))
    settings = {name: data.draw(FAMILIES[family][name]) for name in names}
    try:
        config = from_dict(
            family, {"patch": 1, **settings} if "patch" in FAMILIES[family] else settings, "model"
        )
    except InputError:
        assume(False)
    plain = json.loads(json.dumps(to_dict(config)))
    again = from_dict(family, plain, "config.json")
    assert again == config
    assert hash(again) == hash(config)
    for name in set(names) - {"class_token", *ATTENTION_SETTINGS}:
        value = getattr(config, name)
        expected = settings[name]
        if name == "image_size" and isinstance(expected, int):
            expected = (expected, expected)
        assert value == (tuple(expected) if isinstance(expected, list) else expected)


def test_defaults_are_left_out_or_given() -> None:
    assert from_dict(Sample, {"count": 1}, "sample") == Sample(1)
    assert refused({"rate": 0.1}) == "missing setting 'count' in sample.yaml"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": "1"}, "count in sample.yaml is '1'; expected a whole number"),
        ({"count": 1.5}, "count in sample.yaml is 1.5; expected a whole number"),
        ({"count": True}, "count in sample.yaml is True; expected a whole number"),
        ({"count": None}, "count in sample.yaml is None; expected a whole number"),
        ({"rate": "0.5"}, "rate in sample.yaml is '0.5'; expected a number"),
        ({"rate": False}, "rate in sample.yaml is False; expected a number"),
        ({"name": 3}, "name in sample.yaml is 3; expected text"),
        ({"flag": 1}, "flag in sample.yaml is 1; expected true or false"),
        ({"choice": "up"}, "choice in sample.yaml is 'up'; expected one of 'left', 'right'"),
        ({"choice": ["left"]}, "choice in sample.yaml is ['left']; expected one of 'left', 'right'"),
        ({"maybe": "none"}, "maybe in sample.yaml is 'none'; expected a number or null"),
        (
            {"size": (1, 2, 3)},
            "size in sample.yaml is (1, 2, 3); expected a whole number or HEIGHTxWIDTH such as 224x160",
        ),
        ({"units": "x"}, "units in sample.yaml is 'x'; expected a list of a whole number"),
        ({"units": [1, 2.5]}, "units in sample.yaml is [1, 2.5]; expected a list of a whole number"),
        ({"means": "0.5"}, "means in sample.yaml is '0.5'; expected a list of a number"),
        ({"cuont": 3}, "unknown setting 'cuont' in sample.yaml; did you mean 'count' or 'units'?"),
        ({"derived": 3}, f"unknown setting 'derived' in sample.yaml; expected one of {SETTINGS}"),
        ({"zzz": 3}, f"unknown setting 'zzz' in sample.yaml; expected one of {SETTINGS}"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    assert refused({"count": 1, **settings}) == message
    with pytest.raises(InputError) as error:
        override(Sample(1), settings, "sample.yaml")
    assert str(error.value) == message


def test_whole_numbers_become_numbers_and_lists_tuples() -> None:
    sample = from_dict(Sample, {"count": 1, "rate": 2, "size": [3, 4], "units": [], "means": [1]}, "sample")
    assert type(sample.rate) is float
    assert (sample.size, sample.units, sample.means) == ((3, 4), (), (1.0,))
    assert type(sample.means[0]) is float


@pytest.mark.parametrize(("text", "size"), [("16x32", (16, 32)), ("16", (16, 16))])
def test_a_size_is_written_as_height_x_width(text: str, size: tuple[int, int]) -> None:
    assert from_dict(Sample, {"count": 1, "size": text}, "sample").size == size
    for wrong in ("16x", "x", "16x32x3", "-1x2", "1.5x2", "16 x 32"):
        assert refused({"count": 1, "size": wrong}).endswith("HEIGHTxWIDTH such as 224x160")


def test_override_replaces_and_keeps() -> None:
    sample = Sample(1, rate=0.25)
    assert override(sample, {"maybe": 1}, "here") == Sample(1, rate=0.25, maybe=1.0)
    assert override(sample, {"maybe": None, "size": [2, 2]}, "here") == Sample(1, rate=0.25, size=(2, 2))
    assert sample == Sample(1, rate=0.25)
    with pytest.raises(InputError, match="dropout must be at least 0 and below 1, not 1"):
        override(ViTConfig(), {"dropout": 1}, "model")


@given(st.sampled_from([int, float, str, bool, int | None, tuple[int, ...], Literal["a", "b"]]), samples)
def test_what_is_converted_stays_converted(hint: Any, sample: Sample) -> None:
    for value in to_dict(sample).values():
        try:
            once = convert(value, hint)
        except TypeError:
            continue
        assert convert(once, hint) == once
    assert admitted_values(hint)


def test_configs_are_frozen_and_compare_by_value() -> None:
    config = ViTConfig(image_size=32)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.width = 3  # type: ignore[misc]
    assert config == ViTConfig(image_size=(32, 32))
    assert len({config, ViTConfig(image_size=(32, 32)), ViTConfig()}) == 2


def test_preprocessing_there_and_back() -> None:
    for wanted in (
        Preprocessing(),
        Preprocessing(
            image_size=(32, 48), crop_fraction=0.875, interpolation="bicubic", mean=(0.1,), std=(0.2,)
        ),
    ):
        assert from_dict(Preprocessing, json.loads(json.dumps(to_dict(wanted))), "preprocessing") == wanted
    assert from_dict(Preprocessing, {"image_size": 32}, "preprocessing").size == (32, 32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop_fraction": 0.0}, "crop_fraction must be at least 0.25 and at most 1, not 0"),
        ({"crop_fraction": 1.1}, "crop_fraction must be at least 0.25 and at most 1, not 1.1"),
        ({"mean": (0.5,)}, "mean and std need one number per channel, and std must be positive"),
        ({"std": (0.5, 0.5, 0.0)}, "mean and std need one number per channel, and std must be positive"),
        (
            {"interpolation": "nearest"},
            "interpolation in preprocessing is 'nearest'; expected one of 'bilinear', 'bicubic'",
        ),
    ],
)
def test_wrong_preprocessing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        from_dict(Preprocessing, settings, "preprocessing")
    assert str(error.value) == message


@dataclass(frozen=True)
class Inner:
    """A section."""

    rate: float = 0.5
    "How fast."
    names: tuple[str, ...] = ()
    "What of."


@dataclass(frozen=True)
class Outer:
    """Sections in a config."""

    inner: Inner
    "The section."
    other: Inner | None = None
    'A section, or "nothing".'
    free: dict[str, Any] = field(default_factory=dict)
    "Any settings."
    bare: int = 0


def test_sections_there_and_back() -> None:
    outer = Outer(Inner(1e-7, ("a", "*.b")), None, {"name": "B/16", "size": [1, 2]})
    plain = to_dict(outer)
    assert plain["inner"] == {"rate": 1e-7, "names": ["a", "*.b"]}
    assert from_dict(Outer, json.loads(json.dumps(plain)), "here") == outer
    assert from_dict(Outer, read_yaml(yaml.safe_dump(plain), "here"), "here") == outer
    assert from_dict(Outer, {"inner": {}, "other": {"rate": 2}}, "here") == Outer(Inner(), Inner(2.0))


def test_a_key_is_given_once_unless_it_is_merged() -> None:
    text = "a: &a {k: 1}\nb: &b {<<: *a, k: 2}\nc: {<<: *b, j: 3}\n"
    assert read_yaml(text, "here")["c"] == {"k": 2, "j": 3}
    with pytest.raises(InputError, match="here, line 2: k is given twice"):
        read_yaml("a: 1\nb: {k: 1, k: 2}", "here")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inner": {"rat": 1}}, "unknown setting 'rat' in inner; did you mean 'rate'?"),
        ({"inner": {"rate": "x"}}, "rate in inner is 'x'; expected a number"),
        ({"inner": 3}, "inner in here is 3; expected a mapping of settings"),
        ({"inner": None}, "inner in here is None; expected a mapping of settings"),
        ({"inner": {}, "other": 3}, "other in here is 3; expected a mapping of settings or null"),
        ({"inner": {}, "free": {1: 2}}, "free in here is {1: 2}; expected a mapping of settings"),
        ({}, "missing setting 'inner' in here"),
    ],
)
def test_wrong_sections_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        from_dict(Outer, settings, "here")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E+5", 1e5),
        ("-2e3", -2000.0),
        ("1.5e-8", 1.5e-8),
        ("0.1", 0.1),
        ("1_000", 1000),
        ("1e", "1e"),
        ("e3", "e3"),
        ("5%", "5%"),
        ("10 epochs", "10 epochs"),
        ("true", True),
        ("null", None),
        ("", ""),
        ("[1e-3, a]", [1e-3, "a"]),
        ("{a: 1}", {"a": 1}),
        ("digits:train[:5%]", "digits:train[:5%]"),
        ("inception_crop(224)|flip|mixup(0.2)", "inception_crop(224)|flip|mixup(0.2)"),
        ("*.bias", "*.bias"),
        ("'1'", "1"),
        ("2026-02-03", "2026-02-03"),
        ("2026-02-30", "2026-02-30"),
        ("0b_", "0b_"),
        (".inf", ".inf"),
        ("1e999", "1e999"),
        ("!!bool x", "!!bool x"),
        ("!!float x", "!!float x"),
        ("9" * 5000, "9" * 5000),
        ("0x" + "f" * 5000, "0x" + "f" * 5000),
        ("[" * 1000, "[" * 1000),
        ("[" * 1000 + "]" * 1000, "[" * 1000 + "]" * 1000),
        ("{a: " * 100 + "}" * 100, "{a: " * 100 + "}" * 100),
        ("\x1b", "\x1b"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_values_of_changes(text: str, value: Any) -> None:
    [read] = merge({}, [f"a={text}"]).values()
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nseed: 0b_", "here, line 2: '0b_' is not a number, or too large"),
        (f"seed: {'9' * 5000}", f"here, line 1: '{'9' * 199}... is not a number, or too large"),
        ("a: " + "[" * 3000 + "]" * 3000, "here: nested more than 50 levels deep"),
        ("a: " + "[" * 60 + "]" * 60, "here: nested more than 50 levels deep"),
        ("a: &a {b: *a}", "here: nested more than 50 levels deep"),
        ("a: .nan", "here, line 1: '.nan' is not a number, or too large"),
        ("a: \x1b", "here: unacceptable character #x001b: special characters are not allowed"),
        (
            "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "".join(
                f"{name}: &{name} [{', '.join([f'*{below}'] * 10)}]\n"
                for name, below in zip("bcdefgh", "abcdefg", strict=True)
            ),
            "here: more than 100,000 values",
        ),
    ],
    ids=["binary", "digits", "brackets", "levels", "circle", "nan", "escape", "aliases"],
)
def test_hostile_yaml_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_yaml(text, "here")
    assert str(error.value) == message


def test_long_values_are_shown_in_part() -> None:
    assert (
        refused({"count": "[" * 3000}) == f"count in sample.yaml is '{'[' * 199}...; expected a whole number"
    )
    assert refused({"rate": 10**400}).startswith("rate in sample.yaml is 1000")
    assert refused({"name": 10**5000}) == "name in sample.yaml is a very large number; expected text"


@dataclass(frozen=True)
class Bounded:
    """Fields with bounds."""

    depth: Count = 1
    drop: Rate | None = None
    size: Annotated[int | tuple[int, int], Bounds(above=0, at_most=9)] = 1
    either: Count | Literal["auto"] = "auto"
    rates: tuple[Rate, ...] = ()
    free: float = 0.0
    flag: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 0}, "depth must be at least 1, not 0"),
        ({"depth": 2**63}, f"depth must be below 2**63, not {2**63}"),
        ({"drop": 1}, "drop must be at least 0 and below 1, not 1"),
        ({"drop": float("nan")}, "drop must be at least 0 and below 1, not nan"),
        ({"size": (9, 10)}, "size must be above 0 and at most 9, not 10"),
        ({"either": -1}, "either must be at least 1, not -1"),
        ({"rates": (0.5, 1.5)}, "rates must be at least 0 and below 1, not 1.5"),
        ({"free": float("inf")}, "free must be finite, not inf"),
    ],
)
def test_bounds_are_declared_with_the_field(settings: dict[str, Any], message: str) -> None:
    for build in (lambda: Bounded(**settings), lambda: from_dict(Bounded, settings, "here")):
        with pytest.raises(InputError) as error:
            build()
        assert str(error.value) == message
    assert Bounded(drop=0.5, size=(1, 9), either=2, rates=(0.0,), flag=True)


def test_changes_reach_into_sections_and_leave_the_rest() -> None:
    before = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    after = merge(before, ["a.c.d=4", "a.b=5", "f.g=6", "a.b=7", "e=8=9"])
    assert after == {"a": {"b": 7, "c": {"d": 4}}, "e": "8=9", "f": {"g": 6}}
    assert before == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert merge(before, ["a={b: 2}"]) == {"a": {"b": 2}, "e": 3}


def test_a_path_of_many_sections_is_refused() -> None:
    with pytest.raises(InputError, match="nested more than 50 levels deep"):
        merge({}, ["a." * 3000 + "a=1"])


@pytest.mark.parametrize(
    "changes",
    [
        ["a.b=1", "a={b: 2}"],
        ["seed=1", "a.b=1", "e=2", " a ={c: 2}"],
        ["a.c.d=1", "a.c={e: 2}"],
        ["a.c.d=1", "a=null"],
    ],
)
def test_a_change_that_a_later_one_would_drop_is_refused(changes: list[str]) -> None:
    first = next(change for change in changes if "." in change)
    with pytest.raises(InputError) as error:
        merge({"a": {"b": 0}}, changes)
    last = as_changes(changes)[-1]
    assert str(error.value) == f"{first} is overwritten by {last}, which comes later: swap them"
    merge({"a": {"b": 0}}, ["ab.c=1", "a={b: 1, c: {}}", "a.b=2", "a.c.d=3", "a.b=4"])


def test_meanings_are_the_texts_beneath_fields() -> None:
    assert meanings(Outer) == {
        "inner": "The section.",
        "other": 'A section, or "nothing".',
        "free": "Any settings.",
    }

    @dataclass(frozen=True)
    class Derived(Inner):
        """More."""

        rate: float = 0.1
        "How fast now."

    assert meanings(Derived) == {"rate": "How fast now.", "names": "What of."}


def test_numbers_of_numpy_are_bounded_and_shown_plainly() -> None:
    with pytest.raises(InputError, match=r"^k must be at least 1, not 0$"):
        Bounds(at_least=1).check("k", np.int64(0))
