"""The report: a page that holds everything itself, a picture beside it, nothing overwritten."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.reports import run_folders
from tests.reports.pages import read
from vitkit.config import to_dict, write_yaml
from vitkit.errors import InputError
from vitkit.reports.outcomes import Accuracy
from vitkit.reports.runs import compare, report
from vitkit.training.recipes import resolve

write_run = run_folders.write_run

# One panel, for tests that look at something else: a panel takes a tenth of a second.
FEW: list[dict[str, Any]] = [{"step": 200, "loss": 1.0}, {"step": 400, "loss": 0.5, "seconds": 100.0}]


def colours(path: str) -> int:
    with Image.open(io.BytesIO(Path(path).read_bytes())) as image:
        image.load()
        assert image.format == "PNG"
        return len(image.convert("RGB").getcolors(1 << 24) or [])


def test_one_run(tmp_path: Path) -> None:
    result = report([write_run(tmp_path / "digits")])
    assert result.html == str(tmp_path / "digits" / "report" / "index.html")
    assert sorted(path.name for path in (tmp_path / "digits" / "report").iterdir()) == [
        "curves.png",
        "index.html",
    ]
    assert colours(result.png) > 10
    text = read(result.html).text
    for words in (
        "91.90% val ema accuracy at step 400",
        "1 h 5 min",
        "5.72 M",
        "NVIDIA H200",
        "Ti/16",
        "digits:train",
        "vit train digits --run digits",
        "learning_rate: 0.001",
        "started 2026-03-01 12:00",
    ):
        assert words in text
    assert "What differs" not in text


def test_the_result_is_json(tmp_path: Path) -> None:
    result = report([write_run(tmp_path / "digits", cost={"parameters": float("nan")}, steps=500)])
    written = json.loads(json.dumps(result.to_json(), allow_nan=False))["runs"][0]
    (run,) = result.runs
    assert run.best == Accuracy("val_ema/accuracy", 0.919, step=400)
    assert run.final["val/accuracy"] == pytest.approx(10 / 11)
    picked = {name: written[name] for name in ("name", "status", "model", "data", "step", "steps", "device")}
    assert picked == {
        "name": "digits",
        "status": "done",
        "model": "Ti/16",
        "data": "digits:train",
        "step": 400,
        "steps": 500,
        "device": "NVIDIA H200",
    }
    assert (run.seconds, run.images_per_second, run.parameters) == (3905.0, 900.0, None)


def test_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = write_run(Path("runs/first"))
    config = {"model": "Ti/16", "data": {"train": "digits:train"}, "optimizer": {"learning_rate": 0.003}}
    second = write_run(Path("runs/second"), config=config, status="failed", message="loss is nan at step 401")
    result = report([first, second])
    assert (result.html, result.png) == ("report/index.html", "report/curves.png")
    assert [run.name for run in result.runs] == ["first", "second"]
    text = read(result.html).text
    assert "2 runs" in text
    assert "second: loss is nan at step 401" in text
    differing, same = text.split("What differs")[1].split("Summary")[0].split("2 settings that are the same")
    best = "91.90% val ema accuracy at step 400"
    assert differing == f"firstsecondBest{best}{best}optimizer.learning_rate0.0010.003"
    assert same == "SettingValuedata.traindigits:trainmodelTi/16"
    assert text.index("What differs") < text.index("Curves")  # on top
    assert colours(result.png) > 10


def test_a_run_without_metrics_is_left_out(tmp_path: Path) -> None:
    whole, empty = write_run(tmp_path / "whole", FEW), write_run(tmp_path / "empty", [])
    result = report([whole, empty], out=tmp_path / "out")
    assert [run.name for run in result.runs] == ["whole"]
    assert result.left_out == [f"{empty} has no metrics: wait for its first line"]
    with pytest.raises(InputError, match="empty has no metrics"):
        report([empty], out=tmp_path / "other")


def test_settings_are_shown_as_the_run_has_them(tmp_path: Path) -> None:
    """In the words of config.yaml, save that letters beyond ASCII, which it escapes, can be read."""
    written = write_yaml(to_dict(resolve("cifar10_cct7")))
    for place, train in enumerate(("digits:train", "./Vögel:train")):
        run = write_run(tmp_path / f"{place}", FEW)
        (run / "config.yaml").write_text(written + write_yaml({"last": train}), encoding="utf-8")
        assert f"{written}last: {train}\n" in read(report([run]).html).text


def test_equal_configs_are_told(tmp_path: Path) -> None:
    result = report([write_run(tmp_path / "a", FEW), write_run(tmp_path / "b", FEW)], out=tmp_path / "out")
    assert "All runs have the same settings." in read(result.html).text


def test_many_differences_are_folded(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"{value}", FEW, config={f"setting-{place}": value for place in range(14)})
        for value in (1, 2)
    ]
    text = Path(report(runs, out=tmp_path / "out").html).read_text(encoding="utf-8")
    before, after = text.split("<summary>2 more settings that differ</summary>")
    assert before.count("setting-") == 12 and after.count("setting-") == 2


def test_metrics_that_some_runs_have_stand_together(tmp_path: Path) -> None:
    lines = [[{"step": 1, "loss": 1.0, f"{split}/accuracy": 0.5}] for split in ("test", "val")]
    runs = [write_run(tmp_path / f"{place}", line) for place, line in enumerate(lines)]
    text = read(report(runs, out=tmp_path / "out").html).text.split("Summary")[1]
    assert "Final test accuracy50.00%–" in text and "Final val accuracy–50.00%Status" in text


def test_ten_runs_are_the_most(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"run{number}", FEW) for number in range(11)]
    result = report(runs[:10], out=tmp_path / "out")
    assert len(result.runs) == 10
    with pytest.raises(InputError, match="11 runs were given; a report shows at most 10: give fewer"):
        report(runs, out=tmp_path / "out2")


def test_everything_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    lines = [{"step": 1, "loss": 1.0, f"{evil}/{evil}": 0.5}]
    settings: dict[str, Any] = dict(
        lines=lines,
        name=evil,
        status=evil,
        command=evil,
        started=evil,
        environment={evil: evil, "device": evil},
    )
    best = {"metric": evil, "value": 1, "step": 1}
    one = write_run(tmp_path / "a", config={"model": evil, evil: evil}, best=best, **settings)
    two = write_run(
        tmp_path / "b", config={"data": evil}, **{**settings, "status": "failed", "message": evil}
    )
    for runs in ([one], [one, two]):
        text = read(report(runs, out=tmp_path / "out", force=True).html).text
        assert evil in text
        assert text.count("&lt;") == 0


def test_a_torn_last_line_does_no_harm(tmp_path: Path) -> None:
    result = report([write_run(tmp_path / "a", FEW, tail='{"step": 420, "lo')])
    assert result.runs[0].step == 400


def test_the_least_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    result = report([folder])
    assert result.runs[0].final == {"train/loss": 2.5}
    assert "Final train loss2.5000" in read(result.html).text
    assert colours(result.png) > 1


def test_a_run_without_curves_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a has no curve to draw"):
        report([write_run(tmp_path / "a", [{"step": 1, "loss": float("nan")}])])
    assert not (tmp_path / "a" / "report").exists()


def test_odd_types_in_the_state_do_no_harm(tmp_path: Path) -> None:
    odd: dict[str, Any] = dict(
        status=7,
        command=["vit", "train", "a b"],
        seconds="x",
        environment=[],
        best=[],
        cost=3,
        message={},
        steps=None,
    )
    result = report([write_run(tmp_path / "a", FEW, {"model": {"name": "B/16"}, "data": [1]}, **odd)])
    assert "vit train 'a b'" in read(result.html).text
    run = result.runs[0]
    assert (run.model, run.data, run.status, run.best, run.seconds) == (
        "B/16",
        None,
        None,
        None,
        100.0,
    )


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / folder / "digits", FEW) for folder in "ab"]
    result = report(runs, out=tmp_path / "out")
    assert [run.name for run in result.runs] == [str(run) for run in runs]


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", FEW)
    result = report([run])
    Path(result.html).write_text("mine")
    with pytest.raises(InputError, match=r"index.html exists; --force overwrites it"):
        report([run])
    assert Path(result.html).read_text() == "mine"
    Path(result.html).unlink()
    with pytest.raises(InputError, match=r"curves.png exists; --force overwrites it"):
        report([run])
    (tmp_path / "a" / "report" / "notes.txt").write_text("kept")
    report([run], force=True)
    read(result.html)
    assert (tmp_path / "a" / "report" / "notes.txt").read_text() == "kept"


def test_bad_arguments(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", FEW)
    with pytest.raises(InputError, match="no run was given"):
        report([])
    with pytest.raises(InputError, match="was given twice"):
        report([run, tmp_path / "a" / ".." / "a"])
    with pytest.raises(InputError, match="names a file; expected a folder to write"):
        report([run], out=tmp_path / "page.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a folder"):
        report([run], out=tmp_path / "file")
    with pytest.raises(InputError, match="index.html can't be written: Not a directory"):
        report([run], out=tmp_path / "file" / "below")


def test_long_tables_are_folded_and_thinned(tmp_path: Path) -> None:
    lines = [{"step": step, "val/accuracy": step / 2000} for step in range(1, 1001)]
    best = {"metric": "val/accuracy", "value": 0.5, "step": 778}
    text = Path(report([write_run(tmp_path / "a", lines, best=best)]).html).read_text(encoding="utf-8")
    rows = re.findall(r'<tr(?: class="(best)")?><th scope="row" class="right">([\d,]+)</th>', text)
    assert 200 <= len(rows) <= 201
    assert rows[0][1] == "1" and rows[-1][1] == "1,000"
    assert [step for mark, step in rows if mark] == ["778"]
    assert "<summary>1,000 evaluations</summary>" in text
    short = Path(report([write_run(tmp_path / "b", lines[:12])]).html).read_text(encoding="utf-8")
    assert "evaluations</summary>" not in short


def test_differences() -> None:
    one = {"a": {"b": 1, "c": [1, 2]}, "same": "x", "number": 1}
    two = {"a": {"b": 2, "c": [1, 2]}, "same": "x", "number": 1.0, "new": None}
    assert compare([one, one]) == ({}, {"a.b": 1, "a.c": [1, 2], "same": "x", "number": 1})
    different, same = compare([one, two])
    assert different == {"a.b": [1, 2], "number": [1, 1.0], "new": ["", None]}
    assert same == {"a.c": [1, 2], "same": "x"}


def test_settings_that_an_objective_does_not_read_are_no_differences(tmp_path: Path) -> None:
    changes = {
        "masked": ["objective.name=masked_patches"],
        "mae": ["objective.name=mae", "objective.mask_share=0.6"],
    }
    configs = {}
    for name, settings in changes.items():
        plain = to_dict(resolve("digits", [*settings, "data.pipeline=flip"]))
        configs[name] = {"objective": plain["objective"]}
    found, _ = compare([configs["masked"], configs["mae"]])
    assert found == {
        "objective.name": ["masked_patches", "mae"],
        "objective.corrupt_share": [0.5, ""],
        "objective.target": ["mean_color", ""],
        "objective.mask_share": ["", 0.6],
        "objective.decoder_width": ["", 512],
        "objective.decoder_depth": ["", 8],
        "objective.patch_norm": ["", True],
    }
    unknown = {"objective": {"name": "new", "mask_share": 0.6, "own": 1}}
    assert compare([configs["mae"], unknown])[0]["objective.own"] == ["", 1]
    assert compare([{"objective": "mae"}, {"objective": {}}])[0] == {"objective": ["mae", {}]}
    runs = [write_run(tmp_path / name, FEW, config=configs[name]) for name in ("masked", "mae")]
    text = read(report(runs, out=tmp_path / "out").html).text.split("What differs")[1]
    assert "objective.mask_share–0.6" in text and "objective.corrupt_share0.5–" in text


def test_runs_without_a_model_need_no_torch(tmp_path: Path) -> None:
    config = {"model": {"name": "Ti/16", "patch": 4}, "objective": {"name": "mae"}}
    runs = [str(write_run(tmp_path / name, FEW, config=config)) for name in "ab"]
    code = (
        f"import sys; from vitkit.reports.runs import report; report({runs}, out={str(tmp_path / 'out')!r}); "
    )
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("Ti/16", "Ti/16"),
        ({"name": "Ti/16", "width": 192, "image_size": 32, "pool": "mean"}, "Ti/16"),
        ({"name": "Ti/16", "heads": 4, "patch": 4, "width": 64}, "Ti/16 changed: patch 4, width 64, heads 4"),
        ({"name": "vit_tiny_patch16_224", "patch": 16, "depth": 6}, "vit_tiny_patch16_224 changed: depth 6"),
        ({"name": "B/16@in21k", "patch": 16, "mlp_width": 8}, "B/16@in21k changed: mlp_width 8"),
        ({"name": "CCT-7/3x1", "width": 256, "depth": 2}, "CCT-7/3x1 changed: depth 2"),
        ({"name": "runs/start", "patch": 8}, "runs/start changed: patch 8"),
    ],
)
def test_a_model_of_another_shape_than_its_names_is_told(tmp_path: Path, model: Any, words: str) -> None:
    result = report([write_run(tmp_path / "a", FEW, config={"model": model, "data": "digits:train"})])
    assert f"Model{words}Datadigits:train" in read(result.html).text
    assert result.runs[0].model == (model if isinstance(model, str) else model["name"])
