"""How fast a ViT is on a CPU: the table and the figure of docs/results/cpu.md.

    python benchmarks/cpu.py bars --images ./photos
    python benchmarks/cpu.py export --images ./photos --exports exports/
    python benchmarks/cpu.py table --exports exports/
    python benchmarks/cpu.py show

`bars` times one model in all libraries, in rounds that interleave them, with OpenVINO's own conversion and 8-bit
quantisation (NNCF) of timm's model next to our exports. `export` writes models of all families as folders of OpenVINO, in
float32 and int8; EfficientNets, which aren't ours, are converted by OpenVINO and quantised by NNCF. `table` times these next to
PyTorch. Both skip what is there already, and take `--models`, so that they can be run in pieces. `show` prints the tables and
draws the figure. Weights are random; `--images` is any DATA from which int8 takes its ranges.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitkit
from vitkit.calibration import for_calibration
from vitkit.data.open import open_data
from vitkit.doctor import cpu_name
from vitkit.figures.scatter import Point, scatter
from vitkit.machine import busy_note
from vitkit.models.configs import OwnConfig
from vitkit.predictor import Predictor
from vitkit.runtimes.openvino import import_openvino
from vitkit.timing.candidates import Candidate, Network, own_candidate, peer_candidate
from vitkit.timing.measure import measure
from vitkit.timing.peers import PEERS, TORCHVISION
from vitkit.timing.results import in_rows, short
from vitkit.timing.run import open_filled, using_threads
from vitkit.timing.ways import LIBRARIES, Way

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "cpu.json"
PICTURE = RESULTS.with_suffix(".png")
MODELS = (
    "Ti/16", "S/16", "B/16", "L/16", "H/14", "R50+B/16", "BiT-R50x1", "CCT-7/3x1", "efficientnet_b0", "efficientnet_b7",
)  # fmt: skip
RATES = {"latency": 1, "throughput": 8}
"Batch sizes."
PRECISIONS = ("float32", "int8")


def bars(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch, using_threads(arguments.threads) as threads:
        folder = Path(scratch)
        source = open_filled(arguments.model, "cpu", None)
        way = Way("vitkit", "cpu", "float32", threads)
        candidates, names = list[Candidate](), list[str]()

        def add(name: str, candidate: Candidate) -> None:
            names.append(name)
            candidates.append(candidate)

        for library in ("timm", "transformers", "torchvision", "onnxruntime"):
            path, peer = PEERS[library].write(source, folder), replace(way, library=library)
            add(
                LIBRARIES[library], peer_candidate(source, peer, path)
            )  # timm's eager mode is first: ratios are to it
            if library == "timm":
                add("timm, compiled", peer_candidate(source, replace(peer, is_compiled=True), path))
        for precision, graph in converted(candidates[0].network.module, source, arguments.images).items():
            run = opened(graph, precision, threads)
            network = Network(source.model.config, run, replace(way, library="openvino"))
            add(f"OpenVINO's conversion of timm's, {precision}", Candidate(source, network, precision, None))
        add("vitkit", own_candidate(source, way, None))
        add("vitkit, compiled", own_candidate(source, replace(way, is_compiled=True), None))
        for precision in ("float32", "int8"):
            graph = exported(source, folder / precision, precision, arguments.images)
            add(f"vit export --to openvino, {precision}", own_candidate(graph, way, None))
        found = measure(candidates, [arguments.batch_size], arguments.rounds, False, tell)
        rows = [{"name": name, **vars(timed.speed)} for name, timed in zip(names, found.timed, strict=True)]
    key = f"{arguments.model}, batch {arguments.batch_size}"
    store("bars", key, {"rows": rows, "rounds": arguments.rounds, **machine(threads)})
    for row in rows:
        print(f"{row['name']:40} {row['images_per_second']:8.2f} images/s  {row['ratio']:.3f}")


def exported(source: Predictor, out: Path, precision: Any, images: str) -> Predictor:
    """Return a model as an exported folder of OpenVINO."""
    calibrate = images if precision == "int8" else None
    # The head is random, so images lie near its borders: only the speed matters here.
    vitkit.export(source, out, "openvino", precision, calibrate=calibrate, accept="loss")
    return vitkit.load(out)


def converted(module: nn.Module | None, source: Predictor, images: str) -> dict[str, Any]:
    """Return a model as OpenVINO converts it by itself, and as NNCF quantises that, both with default settings."""
    openvino = import_openvino()
    import nncf

    prepared = for_calibration(open_data(images, default="train", labelled=False), source.preprocessing)
    graph = openvino.convert_model(module, example_input=prepared[:1])
    graph.reshape({graph.inputs[0]: [-1, *prepared.shape[1:]]})
    data = nncf.Dataset([image[None].numpy() for image in prepared])
    kind = None if isinstance(source.model.config, OwnConfig) else nncf.ModelType.TRANSFORMER
    small = nncf.quantize(graph, data, model_type=kind, subset_size=len(prepared))
    return {"float32": graph, "int8": small}


def opened(model: Any, precision: str, threads: int) -> Callable[[Tensor], Tensor]:
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    if precision == "float32":  # has to be asked for: OpenVINO's default is bfloat16 where there is one
        options["INFERENCE_PRECISION_HINT"] = "f32"
    request = import_openvino().Core().compile_model(model, "CPU", options).create_infer_request()
    return lambda batch: torch.from_numpy(request.infer([batch.numpy()], share_inputs=True)[0])


def place(name: str, precision: str, exports: Path) -> Path:
    """Return where a model is exported to."""
    return exports / f"{name.replace('/', '-')}-{precision}"


def export(arguments: argparse.Namespace) -> None:
    arguments.exports.mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        wanted = [item for item in PRECISIONS if not place(name, item, arguments.exports).exists()]
        if not wanted:
            continue
        torch.manual_seed(0)
        source = open_filled(name, "cpu", None)
        if name in TORCHVISION:
            graphs = converted(source.model, source, arguments.images)
            for precision, graph in graphs.items():
                import_openvino().save_model(
                    graph, place(name, precision, arguments.exports) / "model.xml", compress_to_fp16=False
                )
        else:
            for precision in wanted:
                exported(source, place(name, precision, arguments.exports), precision, arguments.images)
        print(f"{name}: {' and '.join(wanted)}", flush=True)


def candidate(name: str, precision: str, exports: Path, source: Predictor, way: Way) -> Candidate:
    """Return what `export` wrote."""
    folder = place(name, precision, exports)
    if name not in TORCHVISION:
        return own_candidate(vitkit.load(folder), way, None)
    run = opened(import_openvino().Core().read_model(folder / "model.xml"), precision, way.threads)
    network = Network(source.model.config, run, replace(way, library="openvino"))
    return Candidate(source, network, precision, None)


def table(arguments: argparse.Namespace) -> None:
    done = read().get("table", {})
    for name in arguments.models:
        if name in done and not arguments.again:
            continue
        with using_threads(arguments.threads) as threads:
            source = open_filled(name, "cpu", None)
            way = Way("vitkit", "cpu", "float32", threads)
            exports = [candidate(name, item, arguments.exports, source, way) for item in PRECISIONS]
            candidates = [own_candidate(source, way, name), *exports]
            found = measure(candidates, sorted(RATES.values()), arguments.rounds, False, tell)
            rows = [row.to_json() for row in in_rows(candidates, found)]
        store("table", name, {"rows": rows, "rounds": arguments.rounds, **machine(threads)})
        for row in rows:
            print(
                f"{name:16} {row['library']:12} {row['precision']:8} {row['infer_batch_size']:3} "
                f"{row['infer_samples_per_sec']:9.2f} images/s",
                flush=True,
            )


def show(_: argparse.Namespace) -> None:
    found = read()
    for key, part in found.get("bars", {}).items():
        print(f"\n{key}, {part['rounds']} rounds, {part['threads']} threads\n")
        print("| runs in | images/s | next to timm |\n|---|---:|---:|")
        for row in part["rows"]:
            print(f"| {row['name']} | {row['images_per_second']:.2f} | {row['ratio']:.2f} |")
    print(
        "\n| model | pixels | params | GFLOPs | PyTorch: ms | images/s | OpenVINO: ms | images/s | int8: ms | images/s |"
    )
    print("|---|" + "---:|" * 9)
    points = []
    for name in [name for name in MODELS if name in found.get("table", {})]:
        rows = found["table"][name]["rows"]
        ways = [
            lambda row: row["library"] in ("vitkit", "torchvision"),
            lambda row: row["library"] == "openvino" and row["precision"] == "float32",
            lambda row: row["precision"] == "int8",
        ]
        cells = []
        for way, group in zip(ways, ("PyTorch", "OpenVINO, float32", "OpenVINO, int8"), strict=True):
            by_batch = {row["infer_batch_size"]: row for row in rows if way(row)}
            if not by_batch:
                cells += ["", ""]
                continue
            cells += [
                short(by_batch[RATES["latency"]]["infer_step_time_p50"]),
                short(by_batch[RATES["throughput"]]["infer_samples_per_sec"]),
            ]
            points.append(
                Point(
                    max(row["infer_samples_per_sec"] for row in by_batch.values()),
                    2 * rows[0]["infer_gmacs"],
                    name,
                    group,
                )
            )
        print(
            f"| {name} | {rows[0]['infer_img_size']} | {rows[0]['param_count']:.1f}M | {2 * rows[0]['infer_gmacs']:.1f} | "
            + " | ".join(cells)
            + " |"
        )
    if points:
        PICTURE.write_bytes(
            scatter(f"inference on {cpu_name()}", points, x="images per second", y="GFLOPs per image")
        )


def machine(threads: int) -> dict[str, Any]:
    packages = ("vitkit", "torch", "torchvision", "timm", "transformers", "onnxruntime", "openvino")
    return {
        "cpu": cpu_name(),
        "threads": threads,
        "busy": busy_note(),
        "date": datetime.date.today().isoformat(),
        "versions": {name: metadata.version(name) for name in packages},
    }


def read() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def store(part: str, key: str, result: dict[str, Any]) -> None:
    found = read()
    found.setdefault(part, {})[key] = result
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def tell(done: int, total: int) -> None:
    print(f"\r{done} of {total} turns", end="\n" if done == total else "", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("what", choices=["bars", "export", "table", "show"])
    parser.add_argument("--images", default="photos", help="DATA that int8 takes its ranges from")
    parser.add_argument("--exports", type=Path, default=Path("exports"), help="folder of exported models")
    parser.add_argument("--model", default="B/16", help="of the bars")
    parser.add_argument("--models", nargs="*", default=list(MODELS), help="of the table")
    parser.add_argument("--batch-size", type=int, default=8, help="of the bars")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--again", action="store_true", help="also time what the file of results has")
    arguments = parser.parse_args()
    {"bars": bars, "export": export, "table": table, "show": show}[arguments.what](arguments)


if __name__ == "__main__":
    main()
