"""Schedules: the published formulas, value for value."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.scheduler import create_scheduler_v2

from vitkit.config import from_dict, to_dict
from vitkit.errors import InputError
from vitkit.training.schedules import ScheduleConfig, build_schedule, parse_duration

GOLDEN = Path(__file__).parents[1] / "golden" / "lr_schedules.npz"

# Official schedules of base 1e-3 and 1000 steps, as they are written here. big_vision's stair drops at a step,
# BiT's after it.
OFFICIAL: dict[str, ScheduleConfig] = {
    "cosine": ScheduleConfig("cosine", warmup=100),
    "cosine_nowarmup": ScheduleConfig("cosine"),
    "linear": ScheduleConfig("linear", warmup="10%"),
    "linear_end1e-5": ScheduleConfig("linear", warmup=100, end=1e-5),
    "rsqrt": ScheduleConfig("rsqrt", warmup="10 epochs", timescale="20ep", cooldown="10%"),
    "stair": ScheduleConfig("step", warmup=100, drops=(299, 599, 899)),
    "vit_jax_cosine": ScheduleConfig("cosine", warmup=100),
    "vit_jax_linear": ScheduleConfig("linear", warmup=100, end=1e-5),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_schedules(name: str) -> None:
    golden = np.load(GOLDEN)
    settings = json.loads(str(golden["config"]))
    schedule = build_schedule(OFFICIAL[name], settings["base"], settings["total_steps"], steps_per_epoch=10)
    ours = [schedule(int(step)) for step in golden["steps"]]
    np.testing.assert_allclose(ours, golden[name], rtol=0, atol=2e-9)


@pytest.mark.parametrize(
    ("config", "base", "total", "values"),
    [
        (
            ScheduleConfig("cosine", warmup=500),
            0.03,
            10_000,
            {0: 0.0, 250: 0.015, 500: 0.03, 2875: 0.025607, 5250: 0.015, 10_000: 0.0},
        ),
        (
            ScheduleConfig("rsqrt", warmup=10_000, timescale=10_000, cooldown=50_000),
            8e-4,
            1_000_000,
            {
                **{0: 0.0, 5000: 4e-4, 10_000: 8e-4, 40_000: 4e-4, 90_000: 2.66667e-4},
                **{950_000: 8.2078e-5, 975_000: 4.0510e-5, 1_000_000: 0.0},
            },
        ),
        (  # BiT-HyperRule for 50,000 examples
            ScheduleConfig("step", warmup=500),
            0.003,
            10_000,
            {0: 0.0, 250: 0.0015, 500: 0.003, 3000: 0.003, 3001: 3e-4, 6001: 3e-5, 9001: 3e-6},
        ),
        (  # BiT-HyperRule for 1,000 examples
            ScheduleConfig("step", warmup=100, drops=(200, 300, 400)),
            0.003,
            500,
            {50: 0.0015, 100: 0.003, 200: 0.003, 201: 3e-4, 301: 3e-5, 401: 3e-6},
        ),
    ],
    ids=["cosine", "rsqrt", "bit-medium", "bit-small"],
)
def test_reference_values(
    config: ScheduleConfig, base: float, total: int, values: dict[int, float]
) -> None:  # computed by hand
    schedule = build_schedule(config, base, total, steps_per_epoch=100)
    for step, value in values.items():
        assert schedule(step) == pytest.approx(value, rel=2e-5, abs=1e-12), step


def test_compact_transformers_on_cifar10() -> None:
    """Compact-Transformers' configs: 300 epochs and 10 of cool-down, in timm's own numbers, which change once an epoch."""
    config = ScheduleConfig(
        "cosine", warmup="10ep", warmup_from=1e-5, warmup_inside=True, end=1e-5, cooldown="10ep"
    )
    schedule = build_schedule(config, base=5.5e-4, total=310 * 390, steps_per_epoch=390)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=5.5e-4)
    theirs, epochs = create_scheduler_v2(
        optimizer, num_epochs=300, warmup_epochs=10, warmup_lr=1e-5, min_lr=1e-5, cooldown_epochs=10
    )
    assert epochs == 310 and theirs is not None
    for epoch in range(epochs):
        theirs.step(epoch)
        assert schedule(epoch * 390) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9), epoch


def test_linear_cools_down_too() -> None:
    config = ScheduleConfig("linear", end=0.1, cooldown=20)
    schedule = build_schedule(config, 1.0, 100, 10)
    assert [schedule(step) for step in (0, 40, 80, 99)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_constant() -> None:
    schedule = build_schedule(ScheduleConfig("constant", warmup=4), 0.5, 10, 10)
    assert [schedule(step) for step in (0, 1, 4, 9, 10)] == [0.0, 0.125, 0.5, 0.5, 0.5]


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("cosine", {"warmup": 20}),
    ("cosine", {"warmup": 20, "warmup_from": 1e-3}),
    ("cosine", {"warmup": 20, "warmup_inside": True}),
    ("cosine", {"end": 1e-3}),
    ("cosine", {"cooldown": 20}),
    ("linear", {"warmup": 20, "warmup_inside": True}),
    ("linear", {"end": 1e-3}),
    ("linear", {"cooldown": 20}),
    ("rsqrt", {"timescale": 50}),
    ("rsqrt", {"cooldown": 20}),
    ("step", {"drops": (50,)}),
]


def test_every_setting_changes_something() -> None:
    def values(**settings: Any) -> tuple[float, ...]:
        schedule = build_schedule(ScheduleConfig(**settings), 0.1, 100, 10)
        return tuple(schedule(step) for step in range(100))

    different = {values(name=name) for name in ("cosine", "linear", "rsqrt", "step", "constant")}
    different |= {values(name=name, **settings) for name, settings in SETTINGS}
    assert len(different) == 5 + len(SETTINGS)


@given(
    st.sampled_from([ScheduleConfig(name) for name in ("cosine", "linear", "rsqrt", "step", "constant")]),
    st.integers(1, 1000),
    st.integers(0, 100),
    st.floats(1e-6, 10.0),
)
def test_rates_rise_then_never_again(shape: ScheduleConfig, total: int, percent: int, base: float) -> None:
    config = ScheduleConfig(shape.name, warmup=f"{percent}%")
    schedule = build_schedule(config, base, total, 10)
    rates = [schedule(step) for step in range(total + 3)]
    assert all(0.0 <= rate <= base for rate in rates)
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_a_run_of_warmup_alone() -> None:
    schedule = build_schedule(ScheduleConfig(warmup="100%"), 1.0, 4, 4)
    assert [schedule(step) for step in range(5)] == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "poly"}, "schedule is 'poly'; expected one of cosine, linear, rsqrt, step, constant"),
        ({"timescale": 5}, "timescale does not apply to schedule 'cosine': remove it"),
        ({"name": "rsqrt", "end": 1e-5}, "end does not apply to schedule 'rsqrt': remove it"),
        (
            {"name": "constant", "cooldown": 5},
            "cooldown does not apply to schedule 'constant': remove it",
        ),
        ({"drops": (5,)}, "drops does not apply to schedule 'cosine': remove it"),
        ({"warmup_from": -1.0}, "warmup_from must be at least 0, not -1"),
        (
            {"warmup_inside": True},
            "warmup_inside does not apply without a warm-up: set warmup, or remove it",
        ),
        ({"end": float("nan")}, "end must be at least 0, not nan"),
        ({"name": "rsqrt", "timescale": 0}, "timescale must be above 0, not 0"),
        (
            {"warmup": "10 weeks"},
            "warmup is '10 weeks'; expected steps (500), epochs ('10 epochs', '10ep') or a share of the run ('5%')",
        ),
        (
            {"name": "step", "drops": (-1,)},
            "one of drops is -1; expected steps (500), epochs ('10 epochs', '10ep') or a share of the run ('5%')",
        ),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        ScheduleConfig(**settings)
    assert str(error.value) == message


def test_a_warmup_longer_than_the_run() -> None:
    config = ScheduleConfig(warmup="10 epochs", cooldown=5)
    expected = "^warmup and cooldown take 100 and 5 steps; the whole run has 100: shorten them, as in schedule.warmup=5%$"
    with pytest.raises(InputError, match=expected):
        build_schedule(config, 1.0, total=100, steps_per_epoch=10)


def test_configs_go_through_text() -> None:
    config = ScheduleConfig("step", warmup="10ep", drops=("30%", 600, "9 epochs"))
    assert from_dict(ScheduleConfig, json.loads(json.dumps(to_dict(config))), "schedule") == config


counts = st.integers(0, 10**7)
epochs = st.integers(1, 10**5)
totals = st.integers(1, 10**7)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (0, 0),
        (500, 500),
        ("500", 500),
        ("1 epoch", 97),
        ("10 epochs", 970),
        ("10epochs", 970),
        ("10ep", 970),
        ("10 ep", 970),
        ("0.5 epochs", 49),  # 48.5: halves up
        ("2.25ep", 218),
        ("5%", 50),
        ("7%", 70),  # 0.07 * 1000 is not 70 in floating point
        ("12.5 %", 125),
        ("100%", 1000),
        ("0%", 0),
        ("0 epochs", 0),
        ("0.01%", 1),  # what is there lasts at least one step
    ],
)
def test_a_duration_in_steps(text: int | str, steps: int) -> None:
    assert parse_duration(text, steps_per_epoch=97, total_steps=1000) == steps


def test_epochs_need_not_be_whole_steps() -> None:
    assert parse_duration("300 epochs", 1_281_167 / 4096) == 93_835  # AugReg and ViT: 93.8k steps


@pytest.mark.parametrize(
    "text",
    [
        -1,
        "-1",
        1.5,
        True,
        None,
        "",
        " 5",
        "5 ",
        "1e3",
        "5 steps",
        "ten epochs",
        "10 epoch s",
        "10EP",
        "nan%",
        "9" * 18,
    ],
)
def test_anything_else_is_refused(text: Any) -> None:
    with pytest.raises(InputError) as error:
        parse_duration(text, 97, 1000, "warmup")
    assert str(error.value) == (
        f"warmup is {text!r}; expected steps (500), epochs ('10 epochs', '10ep') or a share of the run ('5%')"
    )


def test_a_share_is_of_the_run() -> None:
    with pytest.raises(InputError, match=r"^warmup is '101%'; a share of the run is at most 100%$"):
        parse_duration("101%", 97, 1000, "warmup")
    expected = r"^a duration is '5%'; the length of a run must be in steps or epochs$"
    with pytest.raises(InputError, match=expected):
        parse_duration("5%", 97)


@given(counts, epochs, totals)
def test_whole_amounts_are_exact(count: int, per_epoch: int, total: int) -> None:
    assert parse_duration(count, per_epoch, total) == parse_duration(str(count), per_epoch, total) == count
    assert parse_duration(f"{count}ep", per_epoch, total) == count * per_epoch
    assert parse_duration(f"{count} epochs", per_epoch, total) == count * per_epoch


@given(st.decimals(0, 100, places=3), epochs, totals)
def test_parts_are_the_nearest_step(amount: Any, per_epoch: int, total: int) -> None:
    for text, exact in (
        (f"{amount}%", Fraction(amount) * total / 100),
        (f"{amount} epochs", Fraction(amount) * per_epoch),
    ):
        steps = parse_duration(text, per_epoch, total)
        assert (steps == 0) == (exact == 0)
        assert -Fraction(1, 2) < steps - exact <= Fraction(1, 2) or (steps == 1 and exact < 1)


@given(st.text(alphabet="0123456789.% epochs-+", max_size=12))
def test_no_text_is_taken_half(text: str) -> None:
    try:
        steps = parse_duration(text, 10, 1000)
    except InputError:
        return
    assert steps >= 0
    assert text[0].isdigit()
    assert text.rstrip("epochs% ").replace(".", "", 1).isdigit()
