"""Curves from plain numbers: what a panel says, and how a look is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from vitkit.figures.curves import MOST_POINTS, Curve, Look, Panel, png, svg, svg_key


def panel(measure: str, *values: float, steps_per_epoch: float | None = None) -> Panel:
    curve = Curve(Look("run-0"), np.arange(1.0, len(values) + 1), np.array(values))
    return Panel(measure.capitalize(), measure, [curve], steps_per_epoch)


def test_keys_show_the_look() -> None:
    assert "dasharray" in svg_key(Look("run-0", "o", is_average=True))
    assert "dasharray" not in svg_key(Look("run-0", "o"))
    assert "var(--run-3)" in svg_key(Look("run-3"))


def test_a_wide_range_of_loss_is_logarithmic() -> None:
    assert panel("loss", 5.0, 0.01).title == "Loss, log scale"
    assert "Loss, log scale" in svg(panel("loss", 5.0, 0.01))
    for narrow in (panel("loss", 5.0, 4.0), panel("loss", 5.0, -0.1), panel("accuracy", 0.9, 0.001)):
        assert "log scale" not in svg(narrow)


def test_titles_are_escaped() -> None:
    assert "<title>&lt;b&gt; over steps</title>" in svg(panel("<b>", 1.0, 2.0))


def test_epochs_stand_above_where_they_are_known() -> None:
    assert "step, epoch above" in svg(panel("loss", 3.0, 2.0, steps_per_epoch=1.5))
    assert "epoch" not in svg(panel("loss", 3.0, 2.0))
    assert "epoch" not in svg(panel("loss", 3.0, steps_per_epoch=1.5))  # one step has no span


@pytest.mark.parametrize("has_bands", [True, False])
def test_thinned_curves_have_a_band_if_asked(has_bands: bool) -> None:
    values = np.arange(3.0 * MOST_POINTS) % 3
    curve = Curve(Look("run-0"), np.arange(1.0, len(values) + 1), values)
    assert ("opacity: 0.13" in svg(Panel("Loss", "loss", [curve], None, has_bands))) == has_bands


def test_png_holds_all_panels() -> None:
    one, three = (png([panel("loss", 3.0, 2.0)] * count, [("train", Look("run-0"))]) for count in (1, 3))
    sizes = [[int.from_bytes(data[start : start + 4]) for start in (16, 20)] for data in (one, three)]
    assert sizes[1][0] == 2 * sizes[0][0] and sizes[1][1] > sizes[0][1]
