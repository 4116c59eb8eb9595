"""Lines of progress: how much is done, and how long the rest will take."""

from __future__ import annotations

import pytest

from vitkit.cli import progress


def test_lines_say_what_is_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0, 5, 20, 100, 101, 121])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    tell = progress.progress_lines("features")
    for done, total in ((50, 1000), (200, 1000), (1000, 1000), (10, 100), (60, 100)):
        tell(done, total)
    assert capsys.readouterr().err.splitlines() == [
        "features: 200 of 1,000, 1:20 left",
        "features: 1,000 of 1,000",
        "features: 60 of 100, 0:13 left",
    ]
