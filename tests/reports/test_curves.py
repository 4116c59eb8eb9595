"""Curves: what is drawn of a run, and how it looks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.reports.run_folders import evaluation_line, training_line, write_run
from vitkit.figures.curves import MOST_POINTS, Panel, png, svg
from vitkit.reports.curves import kind_of_loss, legend, legend_list, panels, remark
from vitkit.runs.reading import Run, read_run


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return [read_run(write_run(tmp_path / name)) for name in ("one", "two", "three")]


def measures(runs: list[Run]) -> list[str]:
    return [panel.measure for panel in panels(runs)]


def titles(runs: list[Run]) -> list[str]:
    return [panel.title for panel in panels(runs)]


def of(runs: list[Run], measure: str) -> Panel:
    return next(panel for panel in panels(runs) if panel.measure == measure)


def picture(runs: list[Run]) -> bytes:
    return png(panels(runs), legend(runs))


def test_each_measure_is_a_panel(runs: list[Run]) -> None:
    expected = ["loss", "accuracy", "learning_rate", "gradient_norm", "images_per_second"]
    assert measures(runs) == expected


def test_panels_without_numbers_are_left_out(tmp_path: Path) -> None:
    lines = [{"step": 10, "loss": 1.0}, {"step": 10, "val/recall_at_5": 0.5}]
    run = read_run(write_run(tmp_path / "a", lines))
    assert measures([run]) == ["loss", "recall_at_5"]
    assert "Recall at 5" in svg(of([run], "recall_at_5"))


def test_every_accuracy_of_training_is_drawn_in_percent(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 1.0, "color_accuracy": step / 100} for step in (10, 20, 30)]
    run = read_run(write_run(tmp_path / "run", lines))
    assert titles([run]) == ["Loss", "Color accuracy"]
    assert "20%" in svg(of([run], "color_accuracy"))


def test_a_long_climb_has_a_close_up(tmp_path: Path) -> None:
    lines = [training_line(step) for step in range(10, 1001, 10)]
    lines += [evaluation_line(step) for step in range(100, 1001, 100)]
    run = read_run(write_run(tmp_path / "a", lines))
    assert titles([run])[:3] == ["Loss", "Accuracy", "Accuracy, second half"]
    close = panels([run])[2]
    assert [curve.steps.tolist() for curve in close.curves] == [[500, 600, 700, 800, 900, 1000]] * 2


def test_runs_differ_by_colour_splits_by_marker_averages_by_dashes(runs: list[Run]) -> None:
    looks = [curve.look for curve in of(runs, "accuracy").curves]
    assert [look.color for look in looks] == ["run-0"] * 3 + ["run-1"] * 3 + ["run-2"] * 3
    assert [(look.marker, look.is_average, look.is_faint) for look in looks[:3]] == [
        ("", False, True),
        ("o", False, False),
        ("o", True, False),
    ]


def test_splits_of_a_single_run_differ_by_colour(tmp_path: Path) -> None:
    lines = [training_line(1), evaluation_line(1, **{"test/accuracy": 0.5, "test_ema/accuracy": 0.6})]
    run = read_run(write_run(tmp_path / "a", lines))
    looks = [curve.look for curve in of([run], "accuracy").curves]
    train, val, val_ema, test, test_ema = (look.color for look in looks)
    assert val == val_ema and test == test_ema and len({train, val, test}) == 3
    assert len({look.marker for look in looks}) == 3
    assert re.findall(r"</svg>([\w ]+)</li>", legend_list([run])) == [
        "train",
        "val",
        "val ema",
        "test",
        "test ema",
    ]


def test_the_legend_names_runs_and_kinds(runs: list[Run]) -> None:
    names = re.findall(r"</svg>([\w ]+)</li>", legend_list(runs))
    assert names == ["one", "two", "three", "train", "val", "val ema"]


def test_svg_follows_the_page(runs: list[Run]) -> None:
    drawn = [svg(panel) for panel in panels(runs)]
    for text in drawn:
        assert text.startswith('<svg viewBox="0 0 ')
        assert "var(--run-0)" in text and "var(--run-2)" in text and "var(--muted)" in text
        assert not re.findall("#[0-9a-f]{6}", text.replace("#ffffff", ""))
        assert "http" not in text
    names = [name for text in drawn for name in re.findall(r'id="([^"]+)"', text)]
    assert len(names) == len(set(names))


def test_svg_is_the_same_each_time(runs: list[Run]) -> None:
    assert svg(of(runs, "loss")) == svg(of(runs, "loss"))


def test_epochs_stand_above_where_runs_agree(tmp_path: Path) -> None:
    one = read_run(write_run(tmp_path / "one"))
    lines = [training_line(step, epoch=step / 7) for step in (10, 20, 30)]
    two = read_run(write_run(tmp_path / "two", lines))
    assert "epoch above" in svg(of([one], "loss"))
    assert "epoch above" in svg(of([two], "loss"))
    assert "epoch above" not in svg(of([one, two], "loss"))


def test_long_curves_are_thinned_and_it_is_said(tmp_path: Path) -> None:
    lines = [training_line(step, loss=float(step % 3)) for step in range(1, 3 * MOST_POINTS + 1)]
    long = read_run(write_run(tmp_path / "long", lines))
    short = read_run(write_run(tmp_path / "short"))
    assert remark([short]) == ""
    assert "mean of up to 3 logged values; the pale band" in remark([long])
    assert "band" not in remark([long, *[short] * 3])
    assert len(svg(of([long], "loss"))) < 40_000


@pytest.mark.parametrize("loss", [0.0, 1.0, -1.0, 1e-30, 1e30])
def test_a_single_line_is_drawn(tmp_path: Path, loss: float) -> None:
    run = read_run(write_run(tmp_path / "a", [{"step": 1, "loss": loss}]))
    assert measures([run]) == ["loss"]
    assert "<use" in svg(of([run], "loss"))
    assert picture([run]).startswith(b"\x89PNG")


def test_odd_names_are_drawn(tmp_path: Path) -> None:
    names = ["$x_{$", "日本", "a\nb", "x" * 300, "_hidden", "\udcff", "", "<b>"]
    found = [read_run(write_run(tmp_path / str(place), name=name)) for place, name in enumerate(names)]
    assert picture(found).startswith(b"\x89PNG")


def test_odd_measures_are_drawn(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", [{"step": 1, "val/$x_{$ <b> --> 日本": 0.5}]))
    (panel,) = panels([run])
    assert "$x {$ &lt;b&gt; --&gt; 日本" in svg(panel)
    assert picture([run]).startswith(b"\x89PNG")


OBJECTIVES: dict[str, dict[str, object]] = {
    "labels": {"name": "supervised", "loss": "auto"},
    "softmax": {"name": "supervised", "loss": "softmax"},
    "sigmoid": {"name": "supervised", "loss": "sigmoid"},
    "colours": {"name": "masked_patches", "target": "mean_color"},
    "pixels": {"name": "masked_patches", "target": "pixels"},
    "mae": {"name": "mae", "patch_norm": True},
    "plain": {"name": "mae", "patch_norm": False},
}


def test_losses_of_different_kinds_have_panels_of_their_own(tmp_path: Path) -> None:
    lines = [training_line(1), {"step": 1, "val/loss": 2.0}]
    runs = [
        read_run(write_run(tmp_path / name, lines, {"objective": objective}))
        for name, objective in OBJECTIVES.items()
    ]
    losses = [panel for panel in panels(runs) if panel.measure == "loss"]
    drawn = [{curve.look.color for curve in panel.curves} for panel in losses]
    assert drawn == [{"run-0", "run-1"}, *({f"run-{place}"} for place in range(2, 7))]
    found = [re.findall("<title>(.*?) over steps", svg(panel))[0] for panel in losses]
    assert found == [
        "Loss: cross-entropy",
        "Loss: cross-entropy of each class",
        "Loss: masked patches, mean color",
        "Loss: masked patches, pixels",
        "Loss: mae, normalised patches",
        "Loss: mae, pixels",
    ]
    assert [panel.measure for panel in panels(runs)].count("learning_rate") == 1
    assert titles(runs[:2])[0] == titles(runs[5:6])[0] == "Loss"
    lines = [training_line(1), {"step": 1, "val/loss": 2.0, "val/mean_average_precision": 0.5}]
    several = read_run(write_run(tmp_path / "several", lines, {"objective": OBJECTIVES["labels"]}))
    assert kind_of_loss(several) == kind_of_loss(runs[2])
    assert "50%" in svg(of([several], "mean_average_precision"))  # as in the tables


def test_values_are_those_of_the_lines(runs: list[Run]) -> None:
    curve = of(runs, "loss").curves[0]
    np.testing.assert_allclose(curve.values, 2.0 / (1 + curve.steps / 50))
