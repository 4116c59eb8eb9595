"""The quickstart's shape on a few steps; its accuracy is measured by `make quickstart` itself."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import vitkit
from vitkit import quickstart


@pytest.mark.slow
def test_it_compares_and_leaves_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = quickstart.train
    short = ("duration=2", "schedule.warmup=1", "data.workers=0")
    monkeypatch.setattr(
        quickstart,
        "train",
        lambda recipe, changes, **rest: real(recipe, [*changes, *short], **rest),
    )
    result = quickstart.quickstart(tmp_path / "quick")
    assert [row.labels for row in result.accuracy] == list(quickstart.LABELS)
    assert [row.seeds for row in result.accuracy] == [3, 1]
    assert vitkit.load(result.model).class_names == tuple("0123456789")
    document = result.to_json()
    assert set(document["accuracy"][0]) == {"labels", "seeds", "pre-trained", "scratch", "values"}
    for row in result.accuracy:
        assert row.pre_trained == statistics.mean(row.values["pre-trained"])
        assert len(row.values["scratch"]) == row.seeds
    assert result.seconds and result.environment["torch"] == torch.__version__
    assert json.loads((tmp_path / "quick" / "quickstart.json").read_text()) == document
    assert quickstart.quickstart(tmp_path / "quick") == result  # already finished

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(quickstart, "train", stop)
        with pytest.raises(KeyboardInterrupt):
            quickstart.quickstart(tmp_path / "quick", force=True)
    assert not (tmp_path / "quick" / "quickstart.json").exists()  # an interrupted new start is not finished
    for damaged in ("", "{}", "[]", '{"accuracy": 1}'):
        (tmp_path / "quick" / "quickstart.json").write_text(damaged)
        with pytest.raises(vitkit.InputError, match="is damaged"):
            quickstart.quickstart(tmp_path / "quick")
    (tmp_path / "quick" / "quickstart.json").unlink()
    again = quickstart.quickstart(tmp_path / "quick")  # the runs are finished, but not what they came to
    assert again.accuracy == result.accuracy and again.seconds is None


def test_a_stop_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def stopped(recipe: str, *_: object, **__: object) -> SimpleNamespace:
        begun.append(recipe)
        return SimpleNamespace(status="stopped")

    monkeypatch.setattr("vitkit.quickstart.train", stopped)
    with pytest.raises(KeyboardInterrupt):
        quickstart.quickstart("anywhere")
    assert begun == ["shapes"]
