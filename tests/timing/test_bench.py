"""`vit bench`: its tables and columns, peers with the same logits, and what it refuses. No time is asserted."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vitkit
from tests.conftest import Answer
from vitkit.errors import InputError
from vitkit.models.model import Model
from vitkit.timing import peers
from vitkit.timing.results import as_csv, as_markdown, fact_cells, speed_cells
from vitkit.timing.ways import choose_precision

QUICK: dict[str, Any] = dict(device="cpu", batch_sizes=(1, 2), image_size=32, rounds=2, progress=False)


@pytest.fixture(autouse=True)
def quick_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.timing.rounds.TURN_SECONDS", 0.0)
    monkeypatch.setattr("vitkit.timing.measure.MATRIX_SECONDS", 0.0)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


def test_rows_have_timms_columns() -> None:
    result = vitkit.bench(["mu/16", "vit_tiny_patch16_224"], **QUICK, memory=False)
    assert [(row.model, row.batch_size) for row in result.rows] == [
        ("mu/16", 1), ("vit_tiny_patch16_224", 1), ("mu/16", 2), ("vit_tiny_patch16_224", 2),
    ]  # fmt: skip
    first = result.to_json()["rows"][0]
    assert list(first)[:6] == ["model", "library", "runs", "device", "precision", "threads"]
    assert {
        *("infer_samples_per_sec", "infer_step_time", "infer_batch_size", "infer_img_size"),
        *("infer_gmacs", "param_count", "infer_step_time_p99", "top1"),
    } <= set(first)
    assert (first["infer_img_size"], first["infer_batch_size"], first["top1"]) == (32, 1, None)
    assert first["param_count"] == round(vitkit.cost("mu/16", image_size=32).parameters / 1e6, 2)
    assert [row.ratio for row in result.rows][::2] == [1, 1]
    assert all(row.p50 <= row.p95 <= row.p99 and row.images_per_second > 0 for row in result.rows)
    assert set(result.matrix_flops_per_second) == {"float32"}
    table = list(csv.DictReader(io.StringIO(as_csv(result.rows))))
    assert list(table[0]) == list(first) and len(table) == 4


def test_accuracy_in_csv_is_in_percent() -> None:
    [row, *_] = vitkit.bench("mu/16", **QUICK, memory=False).rows
    row = dataclasses.replace(row, accuracy=0.8686)
    assert row.to_json()["top1"] == 0.8686
    assert next(csv.DictReader(io.StringIO(as_csv([row]))))["top1"] == "86.86"


@pytest.mark.slow
def test_peers_give_the_same_logits() -> None:
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    model = vitkit.create_model("mu/16", image_size=32, gelu="erf", norm_epsilon=1e-6)
    torch.nn.init.normal_(model.head.weight)
    settings = QUICK | {"image_size": None}
    result = vitkit.bench(model, **settings, peers=True, memory=False)
    found = {row.library: row for row in result.rows}
    assert {"vitkit", "timm", "transformers", "torchvision"} <= set(found)
    for library, row in found.items():
        if library == "vitkit":
            assert row.logits_difference is None
        else:
            assert row.logits_difference is not None and row.logits_difference < 1e-4, library
    assert set(result.versions) >= {"vitkit", "torch", "timm"}


def test_other_weights_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    opened = peers.open_timm

    def spoiled(path: Path, way: Any) -> torch.nn.Module:
        model = opened(path, way)
        with torch.no_grad():
            model.get_parameter("head.bias").add_(1.0)
        return model

    monkeypatch.setitem(peers.PEERS, "timm", dataclasses.replace(peers.PEERS["timm"], open=spoiled))
    for name in ("transformers", "torchvision", "onnxruntime", "openvino"):
        monkeypatch.delitem(peers.PEERS, name)
    rows = vitkit.bench("mu/16", **QUICK, peers=True, memory=False).rows
    assert rows[1].library == "timm" and rows[1].logits_difference == pytest.approx(1, abs=0.01)


def test_what_a_peer_lacks_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        peers.PEERS, "transformers", dataclasses.replace(peers.PEERS["transformers"], module="absent_package")
    )
    for name in ("onnxruntime", "openvino"):
        monkeypatch.delitem(peers.PEERS, name)
    result = vitkit.bench("CCT-2/3x2", **QUICK, peers=True, memory=False)
    assert {row.library for row in result.rows} == {"vitkit"}
    assert sorted(result.notes) == [
        "CCT-2/3x2 in timm: it has no Compact Transformers",
        "CCT-2/3x2 in torchvision: it has plain ViTs only",
        "CCT-2/3x2 in transformers: not installed: pip install absent_package",
    ]


def test_precisions_and_merging_are_candidates() -> None:
    result = vitkit.bench(
        "mu/16",
        **QUICK | {"batch_sizes": (2,), "image_size": 64},
        precision=["float32", "bfloat16"],
        merge=[1, 4],
        memory=False,
    )
    found = [(row.precision, row.merge) for row in result.rows]
    assert found == [(name, merge) for name in ("float32", "bfloat16") for merge in (0, 1, 4)]
    assert speed_cells(result.rows)[1][0] == "mu/16 merging 1"
    plain, one, four = (row.macs for row in result.rows[:3])
    assert len({plain, one, four}) == 3 and plain > four
    assert [row.logits_difference is None for row in result.rows] == [True] + [False] * 5
    assert [row.to_json()["merge"] for row in result.rows[:3]] == [0, 1, 4]
    assert set(result.matrix_flops_per_second) == {"float32", "bfloat16"}


def test_what_can_not_merge_is_a_note() -> None:
    result = vitkit.bench("BiT-R50x1", **QUICK | {"batch_sizes": (1,)}, merge=2, memory=False)
    assert [row.merge for row in result.rows] == [0]
    assert (
        "BiT-R50x1 in vitkit, merging 2: patches can't be merged in this model: it has no tokens"
        in result.notes
    )


@pytest.mark.slow
def test_runtimes_give_the_same_logits() -> None:
    for module in ("onnx", "onnxscript", "onnxruntime", "openvino"):
        pytest.importorskip(module)
    rows = vitkit.bench("mu/16", **QUICK, peers=True, memory=False).rows
    found = {row.library: row for row in rows if row.runs == "graph"}
    assert set(found) == {"onnxruntime", "openvino"}
    assert all(row.logits_difference is not None and row.logits_difference < 1e-4 for row in found.values())


@pytest.mark.slow
def test_memory_is_of_a_process_for_each_candidate() -> None:
    model = vitkit.create_model("mu/16", image_size=32)  # saved for the other process
    settings = QUICK | {"image_size": None}
    rows = vitkit.bench([model, "S/16"], **settings).rows
    small, large = (row.peak_memory_bytes for row in rows if row.batch_size == 2)
    assert small is not None and large is not None
    assert large - small > 0.5 * 4 * 22e6  # the weights of S/16


def test_bfloat16_is_cast_and_the_model_stays() -> None:
    model = vitkit.load("mu/16", image_size=32)
    settings = QUICK | {"image_size": None}
    [row, *_] = vitkit.bench(model, **settings, precision="bfloat16", memory=False).rows
    assert row.precision == "bfloat16" and row.logits_difference is not None
    assert next(model.model.parameters()).dtype == torch.float32


def test_training_steps() -> None:
    pytest.importorskip("timm")
    model = vitkit.create_model("mu/16", image_size=32, num_classes=10)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings = QUICK | {"image_size": None}
    result = vitkit.bench(model, **settings, peers=True, train=True, memory=False)
    assert {row.library for row in result.rows} == {"vitkit", "timm", "transformers", "torchvision"}
    assert "train_samples_per_sec" in result.rows[0].to_json()
    assert "ONNX Runtime: it doesn't train" in " ".join(result.notes)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_accuracy_is_that_of_evaluate() -> None:
    model = vitkit.create_model("mu/16", image_size=32, num_classes=10)
    torch.nn.init.normal_(model.head.weight)
    wrapped = vitkit.wrap(model, class_names=[str(digit) for digit in range(10)], name="digits")
    settings = QUICK | {"image_size": None, "batch_sizes": (2,)}
    data = "digits:test[:40]"
    result = vitkit.bench(wrapped, **settings, precision="bfloat16", data=data, memory=False)
    expected = vitkit.evaluate(wrapped, data, progress=False)
    assert result.rows[0].accuracy == pytest.approx(expected.accuracy, abs=0.1)
    [untrained] = vitkit.bench("mu/16", **settings | {"image_size": 32}, data=data, memory=False).rows
    assert untrained.accuracy is None


def test_exported_folders_run_as_they_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded model without parameters is a graph in a runtime: it isn't cast, compiled or trained."""

    class Graph(Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = [vitkit.create_model("mu/16", image_size=32).eval()]
            self.config = self.inner[0].config
            self.folder = type("Folder", (), {"runtime": "openvino", "precision": "int8"})()

        def forward(self, images: torch.Tensor, record: Any = None) -> torch.Tensor:
            return self.inner[0](images)

    loaded = vitkit.load("mu/16", image_size=32)
    loaded.model = Graph()
    settings = QUICK | {"image_size": None}
    result = vitkit.bench(loaded, **settings, peers=True, compile=True, memory=False)
    [row, _] = result.rows
    assert (row.library, row.runs, row.precision, row.matrix_share) == ("openvino", "graph", "int8", None)
    assert "is an exported graph" in result.notes[0]
    with pytest.raises(InputError, match="nothing can be measured"):
        vitkit.bench(loaded, **settings, train=True)


def test_tables_fit_a_terminal(vit: Callable[..., Answer], tmp_path: Path) -> None:
    flags = ["--batch-size", "1,64", "--image-size", "32", "--rounds", "1", "--no-memory", "--device", "cpu"]
    answer = vit("bench", "mu/16", *flags, "--out", str(tmp_path / "speed"))
    assert answer.status == 0, answer.err
    table = [line for line in answer.out.splitlines() if line.startswith("  ")]
    assert len(table) >= 4 and max(map(len, table)) <= 80
    names = ("bench.csv", "bench.json", "bench.md", "bench.png")
    assert sorted(path.name for path in (tmp_path / "speed").iterdir()) == sorted(names)
    document = json.loads((tmp_path / "speed" / "bench.json").read_text())
    assert len(document["rows"]) == 2 and len(document["files"]) == 4
    assert "| candidate | batch |" in (tmp_path / "speed" / "bench.md").read_text()
    again = vit("bench", "mu/16", *flags, "--out", str(tmp_path / "speed"))
    assert again.status == 2 and "--force overwrites it" in again.err
    document = json.loads(vit("bench", "mu/16", *flags, "--json").out)
    assert document["rows"][1]["infer_batch_size"] == 64
    assert vit("bench", "mu/16", *flags, "--csv").out.startswith("model,library,runs,")


def test_names_are_short_where_they_are_unique() -> None:
    [row, _] = vitkit.bench("mu/16", **QUICK, memory=False).rows
    named = dataclasses.replace
    rows = [named(row, model="mu/16@./far/away.safetensors"), named(row, model="./runs/photos")]
    assert [cells[0] for cells in speed_cells(rows)] == ["mu/16", "photos"]
    rows = [named(row, model="mu/16@./a.npz"), named(row, model="mu/16@./b.npz", threads=row.threads + 1)]
    assert [cells[0] for cells in fact_cells(rows)] == [
        "mu/16@./a.npz", f"mu/16@./b.npz x{row.threads + 1}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-size", "0"], "batch_sizes must be at least 1, not 0"),
        (["--batch-size", "many"], "--batch-size is 'many'; expected whole numbers such as 1,5,10"),
        (["--rounds", "0"], "rounds must be at least 1, not 0"),
        (["--threads", "0"], "threads must be at least 1, not 0"),
        (
            ["--precision", "float16"],
            "precision is 'float16' on cpu; expected one of auto, float32, bfloat16",
        ),
        (
            ["--precision", "int8"],
            "precision 'int8' is for exported folders, on the CPU: run vit export MODEL --to openvino",
        ),
        (["--merge", "0"], "merge must be at least 1, not 0"),
        (["--merge", "2", "--train"], "patches are merged only in inference: leave out merge or train"),
        (["--json", "--csv"], "--json and --csv both print the result: give one of them"),
        (["--train", "--data", "digits"], "accuracy is measured in inference: leave out data or train"),
    ],
)
def test_bad_input(vit: Callable[..., Answer], flags: list[str], message: str) -> None:
    answer = vit("bench", "mu/16", "--device", "cpu", *flags)
    assert answer.status == 2 and answer.err.startswith(f"error: {message}")
    assert len(answer.err.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(vit: Callable[..., Answer]) -> None:
    answer = vit("bench", "mu/16", "--device", "cuda")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == "error: device 'cuda' is not available here; `auto` uses what is available\n"


def test_precisions_of_devices() -> None:
    assert [choose_precision("auto", device) for device in ("cpu", "cuda", "mps")] == [
        "float32", "bfloat16", "float32",
    ]  # fmt: skip
    with pytest.raises(
        InputError, match="precision is 'bfloat16' on mps; expected there one of auto, float32"
    ):
        choose_precision("bfloat16", "mps")


def test_interruption(vit: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> list[float]:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitkit.timing.measure.turn", interrupt)
    threads = torch.get_num_threads()
    flags = ["--device", "cpu", "--image-size", "32", "--threads", "1"]
    assert vit("bench", "mu/16", *flags).status == 130
    assert torch.get_num_threads() == threads


def test_markdown_has_notes_and_versions() -> None:
    result = vitkit.bench("mu/16", **QUICK, memory=False)
    text = as_markdown(dataclasses.replace(result, notes=("one line", "another")))
    assert text.endswith("- one line\n- another\n") and f"torch {torch.__version__.split('+')[0]}" in text


def test_efficientnet_is_counted() -> None:
    result = vitkit.bench("efficientnet_b0", **QUICK | {"batch_sizes": (1,)}, memory=False)
    [row] = result.rows
    assert (row.library, row.parameters, row.image_size) == ("torchvision", 5_288_548, (32, 32))


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    result = vitkit.bench("Ti/16", device="cuda", batch_sizes=(1, 8), rounds=2, compile=True, progress=False)
    assert {row.precision for row in result.rows} == {"bfloat16"}
    assert all((row.peak_memory_bytes or 0) > 5e6 and row.matrix_share for row in result.rows)


def test_a_busy_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (64.0, 0.0, 0.0))
    monkeypatch.setattr("vitkit.machine.num_cores", lambda: 2)
    [line] = vitkit.bench("mu/16", **QUICK, memory=False).notes
    assert line.startswith("this machine is busy (load 64.0 on 2 cores)")


def test_why_a_peer_lacks_a_model_is_said_without_its_name(tmp_path: Path) -> None:
    model = vitkit.load("BiT-R50x1", device="cpu", image_size=32)
    with pytest.raises(InputError, match=r"^it has (no|other|plain|native|only)"):
        peers.written("torchvision", model, tmp_path)
