"""Where the runs of a study work: places on GPUs and cores, and how many runs a GPU takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.studies.test_run import study
from vitkit import run_study
from vitkit.errors import InputError
from vitkit.studies import sharing, workers
from vitkit.studies.config import read_study
from vitkit.studies.sharing import best_sharing, fastest, measure_rates, most_common

assert study
# Trains at 100 steps per second if alone; the GPU does no more than 300 in all, and has memory for `most` runs.
TRAINER = """
import json, sys, time
job = json.loads(sys.stdin.readline())
most, place = int(sys.argv[1]), int(job["name"].split("-")[1])
if place >= most:
    print(json.dumps({"kind": "failed", "message": "out of memory"}), flush=True)
    time.sleep(60)
step = 0
while True:
    time.sleep(0.02)
    step += 2 if place < 2 else 1
    print(json.dumps({"kind": "step", "step": step, "of": job["config"]["duration"]}), flush=True)
"""


def test_each_gpu_and_the_cores_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(workers, "num_cores", lambda: 16)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = workers.places(torch.device("cuda"), 3)
    assert [place.environment["CUDA_VISIBLE_DEVICES"] for place in found] == ["0", "1"] * 3
    assert {place.environment["OMP_NUM_THREADS"] for place in found} == {"2"}
    assert {place.environment["TORCHINDUCTOR_COMPILE_THREADS"] for place in found} == {"2"}
    assert {place.sharing for place in found} == {3}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5e2a,7")
    found = workers.places(torch.device("cuda"), 1)
    assert [place.environment["CUDA_VISIBLE_DEVICES"] for place in found] == ["GPU-5e2a", "7"]
    found = workers.places(torch.device("cpu"), 5)
    assert [place.environment["OMP_NUM_THREADS"] for place in found] == ["3"] * 5
    assert workers.places(torch.device("cpu"), 1) == [workers.Place({}, 1)]


def test_more_workers_must_be_worth_their_memory() -> None:
    assert fastest({1: 100, 2: 180, 4: 185}) == 2
    assert fastest({1: 100, 2: 104, 4: 130}) == 4
    assert fastest({1: 100, 2: 90}) == 1
    assert fastest({}) == 1


class Gpu:
    """Pretends to be a machine with a GPU."""

    device, device_name, tries = "cuda", "GPU", 1
    calls = 0

    def call(self, function: Any, config: Any, counts: Any, device: str) -> dict[int, float]:
        self.calls += 1
        assert function is measure_rates and counts == [1, 2, 4]
        return {1: 100.0, 2: 190.0, 4: 150.0}


def test_what_was_measured_is_kept(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, gpu, folder = read_study(study).runs, Gpu(), Path("runs/mine")
    assert best_sharing(runs, folder, gpu, True) == 2  # type: ignore[arg-type]
    assert (
        "workers on each GPU: 2; images/s are 100 with 1, 190 with 2, 150 with 4" in capsys.readouterr().err
    )
    assert best_sharing(runs, folder, gpu, False) == 2  # type: ignore[arg-type]
    assert gpu.calls == 1
    kept = json.loads((folder / sharing.FILE).read_text())
    assert kept["device"] == "GPU" and kept["images_per_second"]["2"] == 190.0
    gpu.device_name = "another"
    best_sharing(runs, folder, gpu, False)  # type: ignore[arg-type]
    assert gpu.calls == 2
    assert best_sharing(runs[:1], folder, gpu, False) == 1  # type: ignore[arg-type]
    gpu.device = "cpu"
    assert best_sharing(runs, folder, gpu, False) == 1  # type: ignore[arg-type]
    assert gpu.calls == 2


def test_the_most_common_model_is_measured(study: Path) -> None:
    configs = [run.config for run in read_study(study, ["grid.seed=[0,1,2]"]).runs]
    wide = [config for config in configs if config.model["width"] == 32]
    assert most_common([configs[0], *wide]) is wide[0]


@pytest.mark.parametrize(("most", "found"), [(9, [1, 2, 4, 8]), (3, [1, 2])])
def test_rates_of_workers_at_once(
    study: Path, monkeypatch: pytest.MonkeyPatch, most: int, found: list[int]
) -> None:
    Path("trainer.py").write_text(TRAINER)
    monkeypatch.setattr(workers, "COMMAND", [sys.executable, "-S", "trainer.py", str(most)])
    monkeypatch.setattr(sharing, "SECONDS", 0.5)
    rates = measure_rates(read_study(study).runs[0].config, sharing.COUNTS, "cuda")
    assert list(rates) == found
    assert 1.5 < rates[2] / rates[1] < 2.5


@pytest.mark.slow
def test_a_real_worker_is_timed(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "SECONDS", 1.0)
    rates = measure_rates(read_study(study).runs[0].config, [1], "cpu")
    assert rates[1] > 0


def test_a_wrong_number_of_workers(study: Path, vit: Any) -> None:
    with pytest.raises(InputError, match="^workers must be at least 1, not 0"):
        run_study(study, workers=0)
    answer = vit("study", "run", "mine.yaml", "--workers", "many")
    assert answer.err == "error: --workers is 'many'; expected a number or auto\n"
