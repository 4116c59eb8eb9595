"""ViTs on one GPU next to timm: speed in bfloat16 and float8, latency, token merging, peak rates and largest batches.

    PYTHONPATH=. python benchmarks/gpu.py --out $OUT --minutes 9 bars latency
    PYTHONPATH=. python benchmarks/gpu.py --out $OUT --minutes 9 merge kernels profile
    PYTHONPATH=. python benchmarks/gpu.py --out $OUT --minutes 9 peaks
    PYTHONPATH=. python benchmarks/gpu.py show

Each measurement is a cell. The results so far are read from docs/results/gpu.json and, with the new ones, written to gpu.json
in `--out` after each cell: copy it to docs/results/, and the same command resumes. No cell begins after `--minutes`. A cell
that fails is kept with its error, and measured again with `--again`. `--tiny` runs the same code on a CPU in a minute.

`bars`: images per second of timm compiled, timm with max-autotune, and ours in bfloat16 and float8, fixed and dynamic scales,
in interleaved rounds on the same weights, with the relative error of the logits next to float32, also with outliers injected.
`latency`: one image, CUDA graphs. `merge`: token merging. `kernels`: products, GELU and attention alone. `profile`: the time of
each kind of kernel. `peaks`: images per second over batch sizes, and the largest batch that fits, for inference and training.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.calibration import measure_scales
from vitkit.costs import merged_macs
from vitkit.figures.scatter import Point, scatter
from vitkit.kernels.float8 import DTYPE, float8_linear
from vitkit.kernels.gelu import gelu_float8, linear_gelu
from vitkit.models import create_model
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.models.names import other_name
from vitkit.models.vit import Block
from vitkit.objectives.supervised import Supervised
from vitkit.training.optimizers import OptimizerConfig, build_optimizer, clip_gradients
from vitkit.world import wait

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "gpu.json"
PICTURE = RESULTS.with_suffix(".png")
BATCHES = {"B/16": 512, "L/16": 256, "H/14": 128}
MERGES = {
    "Ti/16": (4, 8, 13, 16),
    "B/16": (4, 8, 13, 16),
    "L/16": (4, 8),
    "H/14": (3, 7),
}
SIZES = (64, 224, 384, 512)
TPU = {"B/16": 900, "L/16": 300, "H/14": 90}
"Peak images per second and core of a TPUv3 at 224 pixels, as quoted."
PEAK_BATCHES = (64, 256, 1024)
CHECKED, OUTLIER = 32, 100.0
Step = Callable[[], object]
Cell = Callable[[], dict[str, Any]]


class Bench:
    """The device, and how long things take: everything is smaller with `--tiny`."""

    def __init__(self, tiny: bool) -> None:
        self.tiny = tiny
        self.device = torch.device("cpu" if tiny else "cuda")
        self.seconds, self.rounds = (0.0, 2) if tiny else (0.4, 7)
        self.batches = {name: 2 if tiny else size for name, size in BATCHES.items()}
        self.backend: dict[str, Any] = {"backend": "eager"} if tiny else {}

    def model(self, name: str, image_size: int | None = None, **settings: Any) -> Model:
        """Return a model with random weights, the head included, with the GELU and epsilon of timm."""
        torch.manual_seed(0)
        size = {"image_size": 32} if self.tiny else {} if image_size is None else {"image_size": image_size}
        small = {"width": 64, "depth": 2, "heads": 2, "mlp_width": 128} if self.tiny else {}
        model = create_model(
            name, gelu="erf", norm_epsilon=1e-6, num_classes=1000, **size, **small, **settings
        )
        nn.init.normal_(model.get_submodule("head").weight, std=0.02)
        return model.eval().to(self.device)

    def timm(self, name: str, source: Model) -> nn.Module:
        """Return timm's model with the weights of ours."""
        import timm

        config: Any = source.config
        other = other_name(name)
        assert other is not None
        small = {"embed_dim": 64, "depth": 2, "num_heads": 2, "mlp_ratio": 2} if self.tiny else {}
        model = timm.create_model(other, img_size=config.size, num_classes=1000, **small)
        model.load_state_dict(source.state_dict())
        return model.eval().to(self.device)

    def images(self, count: int, model: Model, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        own = torch.Generator(self.device).manual_seed(1)
        shape = (count, 3, *model.config.size)
        return torch.randn(shape, generator=own, device=self.device).to(dtype)

    def compiled(self, module: nn.Module, **options: Any) -> Callable[..., Tensor]:
        return torch.compile(module, dynamic=False, **(self.backend or options))

    def turn(self, step: Step) -> list[float]:
        """Return the seconds of each pass of one turn."""
        seconds, began = list[float](), time.perf_counter()
        while not seconds or time.perf_counter() - began < self.seconds:
            start = time.perf_counter()
            step()
            wait(self.device)
            seconds.append(time.perf_counter() - start)
        return seconds

    def interleaved(self, steps: dict[str, Step]) -> dict[str, list[list[float]]]:
        """Return the seconds of all turns: every candidate once a round, in alternating order."""
        turns: dict[str, list[list[float]]] = {name: [] for name in steps}
        for number in range(self.rounds):
            for name in list(steps) if number % 2 == 0 else list(reversed(steps)):
                turns[name].append(self.turn(steps[name]))
        return turns


def inference(run: Callable[[Tensor], Tensor], images: Tensor) -> Step:
    @torch.inference_mode()
    def step() -> Tensor:
        return run(images)

    return step


# Nothing resets torch.compile within a cell: that would drop the code of the candidates before.
def warm(bench: Bench, step: Step) -> float:
    """Run a step until it is compiled; return how long that took."""
    began = time.perf_counter()
    for _ in range(3):
        step()
    wait(bench.device)
    return time.perf_counter() - began


def rates(turns: dict[str, list[list[float]]], count: int, first: str) -> dict[str, dict[str, float]]:
    """Return each candidate's images per second and its ratio to the first: medians of the rounds."""
    by_round = {name: [count * len(turn) / sum(turn) for turn in found] for name, found in turns.items()}
    return {
        name: {
            "images_per_second": statistics.median(found),
            "ratio": statistics.median(
                own / other for own, other in zip(found, by_round[first], strict=True)
            ),
        }
        for name, found in by_round.items()
    }


@torch.no_grad()
def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found.float() - expected).square().mean().sqrt() / expected.std()).item()


@torch.no_grad()
def inject_outliers(model: Model, channels: int = 4) -> None:
    """Make a few channels of each block 100 times larger, after both norms and among the values; the function stays."""
    draw = np.random.default_rng(0)
    for block in model.modules():
        if isinstance(block, Block):
            width = block.attn.proj.in_features
            some = [torch.from_numpy(draw.choice(width, channels, replace=False)) for _ in range(3)]
            pairs = ((block.norm1, block.attn.qkv, some[0]), (block.norm2, block.mlp.fc1, some[1]))
            for norm, reader, chosen in pairs:
                norm.weight[chosen] *= OUTLIER
                norm.bias[chosen] *= OUTLIER
                reader.weight[:, chosen] /= OUTLIER
            block.attn.qkv.weight[2 * width + some[2]] *= OUTLIER
            block.attn.qkv.bias[2 * width + some[2]] *= OUTLIER
            block.attn.proj.weight[:, some[2]] /= OUTLIER


def ours(model: Model, precision: Any, images: Tensor | None = None, merge: int = 0) -> Model:
    """Return a copy in another precision; float8 has fixed scales if there are images."""
    one = copy.deepcopy(model)
    largest = None if images is None else measure_scales(one, images.float())
    one.set_merge(merge)
    one.set_precision(precision, largest)
    return one


def bars(bench: Bench, name: str) -> dict[str, Any]:
    model = bench.model(name)
    count = bench.batches[name]
    images, few = bench.images(count, model), bench.images(CHECKED, model)
    timm = bench.timm(name, model).bfloat16()
    modules: dict[str, nn.Module] = {
        "timm": timm,
        "timm, max-autotune": copy.deepcopy(timm),
        "bfloat16": ours(model, "bfloat16"),
        "float8": ours(model, "float8", few),
        "float8, dynamic scales": ours(model, "float8"),
    }
    with torch.inference_mode():
        expected = model(few.float())
        errors = {key: relative_error(module(few), expected) for key, module in modules.items()}
        spoiled = copy.deepcopy(model)
        inject_outliers(spoiled)
        for key, precision, calibrated in (
            ("bfloat16", "bfloat16", None), ("float8", "float8", few), ("float8, dynamic scales", "float8", None),
        ):  # fmt: skip
            one = ours(spoiled, precision, calibrated)
            errors[f"{key}, outliers injected"] = relative_error(one(few), expected)
    steps, seconds, failed = dict[str, Step](), dict[str, float](), dict[str, str]()
    for key, module in modules.items():
        options = {"mode": "max-autotune-no-cudagraphs"} if "max-autotune" in key else {}
        step = inference(bench.compiled(module, **options), images)
        try:
            seconds[key] = warm(bench, step)
        except Exception as error:  # one candidate less, not none
            failed[key] = short_error(error)
        else:
            steps[key] = step
    found = rates(bench.interleaved(steps), count, "timm")
    return {
        "batch_size": count,
        "rates": found,
        "errors": errors,
        "compile_seconds": seconds,
        "failed": failed,
        "teraflops_per_second": {
            key: 2 * merged_macs(model.config, 0) * value["images_per_second"] / 1e12
            for key, value in found.items()
        },
    }


def latency(bench: Bench, name: str) -> dict[str, Any]:
    """One image: both compiled, with CUDA graphs."""
    model = bench.model(name)
    image = bench.images(1, model)
    few = bench.images(CHECKED, model)
    modules: dict[str, nn.Module] = {
        "timm": bench.timm(name, model).bfloat16(),
        "bfloat16": ours(model, "bfloat16"),
        "float8": ours(model, "float8", few),
    }
    steps: dict[str, Step] = {}
    for key, module in modules.items():
        steps[key] = inference(bench.compiled(module, mode="reduce-overhead"), image)
        warm(bench, steps[key])
        warm(bench, steps[key])
    turns = bench.interleaved(steps)
    every = {key: [value for turn in found for value in turn] for key, found in turns.items()}
    return {
        key: dict(zip(("p50", "p95", "p99"), np.percentile(values, [50, 95, 99]).tolist(), strict=True))
        for key, values in every.items()
    }


def merge(bench: Bench, name: str) -> dict[str, Any]:
    model = bench.model(name)
    count = bench.batches.get(name, 2 if bench.tiny else 1024)
    images, few = bench.images(count, model), bench.images(CHECKED, model)
    with torch.inference_mode():
        expected = model(few.float())
    steps, errors = dict[str, Step](), dict[str, float]()
    for number in (0, *MERGES[name]):
        one = ours(model, "bfloat16", merge=number)
        with torch.inference_mode():
            errors[str(number)] = relative_error(one(few), expected)
        steps[str(number)] = inference(bench.compiled(one), images)
        warm(bench, steps[str(number)])
    found = rates(bench.interleaved(steps), count, "0")
    macs = {key: merged_macs(model.config, int(key)) for key in steps}
    return {"batch_size": count, "rates": found, "errors_of_random_weights": errors, "macs": macs}


def kernels(bench: Bench, name: str) -> dict[str, Any]:
    """Microseconds of the parts of one layer, alone: products with and without GELU, GELU in 8 bits, attention."""
    config: Any = bench.model(name).config
    rows, width, hidden = bench.batches[name] * config.num_tokens, config.width, config.mlp_width
    device, one = bench.device, torch.ones((), device=bench.device)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    steps: dict[str, Step] = {}
    for key, inputs, outputs in (
        ("qkv", width, 3 * width), ("proj", width, width), ("fc1", width, hidden), ("fc2", hidden, width),
    ):  # fmt: skip
        x, weight, bias = draw(rows, inputs), draw(outputs, inputs) / 30, draw(outputs)
        x8, weight8 = x.to(DTYPE), weight.to(DTYPE)
        steps[f"{key}, bfloat16"] = lambda x=x, w=weight, b=bias: F.linear(x, w, b)
        steps[f"{key}, float8"] = lambda x=x8, w=weight8, b=bias: float8_linear(
            x, w, one, one, b, torch.bfloat16
        )
        if key == "fc1":
            steps["fc1 and GELU, bfloat16"] = lambda x=x, w=weight, b=bias: linear_gelu(x, w, b)
    wide = draw(rows, hidden)
    steps["GELU in 8 bits"] = lambda: gelu_float8(wide, one, is_tanh=False)
    q, k, v = (
        draw(bench.batches[name], config.heads, config.num_tokens, width // config.heads) for _ in range(3)
    )
    sizes = draw(bench.batches[name], 1, 1, config.num_tokens)
    steps["attention"] = lambda: F.scaled_dot_product_attention(q, k, v)
    steps["attention with sizes as a mask"] = lambda: F.scaled_dot_product_attention(q, k, v, sizes)
    # Sizes folded into the product of queries and keys: eight more channels, of which one is used.
    padded = [F.pad(tensor, (0, 8)) for tensor in (q, k, v)]
    scale = (width // config.heads) ** -0.5
    steps["attention with sizes in eight more channels"] = lambda: F.scaled_dot_product_attention(
        *padded, scale=scale
    )
    found = dict[str, Any]()
    for key, step in steps.items():
        try:
            warm(bench, step)
            found[key] = 1e6 * statistics.median(bench.turn(step))
        except Exception as error:
            found[key] = short_error(error)
    return {"rows": rows, "microseconds": found}


KINDS = {
    "matrix products": ("gemm", "nvjet", "cutlass", "sm90", "matmul", "addmm", "cublas", "_mm"),
    "attention": ("flash", "fmha", "attention", "sdpa", "cudnn"),
    "GELU": ("gelu",),
    "LayerNorm": ("norm", "layer_norm", "var_mean", "rsqrt"),
}


def profile(bench: Bench, name: str) -> dict[str, Any]:
    """Milliseconds a batch of each kind of kernel, and of the longest kernels."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    model = bench.model(name)
    images, few = bench.images(bench.batches[name], model), bench.images(CHECKED, model)
    found: dict[str, Any] = {}
    for key, module in (("bfloat16", ours(model, "bfloat16")), ("float8", ours(model, "float8", few))):
        step, passes = inference(bench.compiled(module), images), 3
        warm(bench, step)
        with recording(activities=[ProfilerActivity.CPU if bench.tiny else ProfilerActivity.CUDA]) as record:
            for _ in range(passes):
                step()
            wait(bench.device)
        kinds, longest = dict.fromkeys([*KINDS, "other"], 0.0), dict[str, float]()
        for event in record.key_averages():
            spent = (event.cpu_time_total if bench.tiny else event.device_time_total) / 1e3 / passes
            low = event.key.lower()
            kinds[
                next((kind for kind, words in KINDS.items() if any(word in low for word in words)), "other")
            ] += spent
            longest[event.key[:120]] = spent
        top = sorted(longest.items(), key=lambda item: -item[1])[:20]
        found[key] = {"milliseconds": kinds, "longest": dict(top)}
    return found


def training(bench: Bench, library: str, name: str, model: Model, count: int) -> Step:
    """Return a training step on random images: ours is that of `vit train`, timm's is under autocast."""
    images = torch.randint(0, 256, (count, 3, *model.config.size), dtype=torch.uint8, device=bench.device)
    labels = torch.randint(0, 1000, (count,), device=bench.device)
    if library == "vitkit":
        objective = Supervised(model, Preprocessing(model.config.size), sigmoid=False, label_smoothing=0.0)
        objective.to(bench.device).train()
        objective.dtype = torch.bfloat16
        objective.compile(dynamic=False, **bench.backend)
        optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.1))

        def own_step() -> None:
            loss, _ = objective({"image": images, "label": labels})
            loss.backward()
            clip_gradients(optimizer, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return own_step
    peer = bench.timm(name, model).train()
    adamw = torch.optim.AdamW(peer.parameters(), 1e-3, weight_decay=0.1, fused=not bench.tiny)

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(bench.device.type, torch.bfloat16):
            logits = peer((images.float() - 127.5) / 127.5)
        return F.cross_entropy(logits.float(), labels)

    compute = torch.compile(loss_of, dynamic=False, **bench.backend)

    def step() -> None:
        compute(images, labels).backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0, foreach=True)
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return step


def peaks(bench: Bench, name: str, size: int, kind: str, library: str) -> dict[str, Any]:
    """Images per second at several batch sizes, and the largest batch that fits: twice as many until none is left."""
    found: dict[str, float] = {}
    largest, count = (
        0,
        2 if bench.tiny else max(8, PEAK_BATCHES[0] * 224 // size // (1 if kind == "inference" else 4)),
    )
    most = 4 if bench.tiny else 1 << 17
    while count <= most:
        try:
            found[str(count)] = one_peak(bench, name, size, kind, library, count)
        except torch.OutOfMemoryError:
            break
        finally:
            clean()
        largest, best = count, max(found.values())
        # Past the peak only what fits is of interest, which a step of eager memory shows more quickly.
        count *= 2 if found[str(count)] > 0.97 * best or count < 1024 else 4
    return {
        "images_per_second": found,
        "peak": max(found.values(), default=0.0),
        "largest_batch": largest,
        "fits_not": count if count <= most else None,
    }


def one_peak(bench: Bench, name: str, size: int, kind: str, library: str, count: int) -> float:
    model = bench.model(name, size)
    if kind == "training":
        step = training(bench, library, name, model, count)
    else:
        module = ours(model, "bfloat16") if library == "vitkit" else bench.timm(name, model).bfloat16()
        step = inference(bench.compiled(module), bench.images(count, model))
    warm(bench, step)
    seconds = bench.turn(step)
    return count * len(seconds) / sum(seconds)


def cells(bench: Bench, parts: list[str]) -> Iterator[tuple[str, Cell]]:
    """Yield the name of each measurement and what measures it, the most important first."""
    simple = {"bars": bars, "latency": latency, "kernels": kernels, "profile": profile}
    for part in parts:
        if part in simple:
            for name in BATCHES if part != "profile" else ("B/16", "L/16"):
                yield f"{part} {name}", lambda part=part, name=name: simple[part](bench, name)
        elif part == "merge":
            for name in MERGES:
                yield f"merge {name}", lambda name=name: merge(bench, name)
        else:
            for size in (224, 384, 64, 512):
                for kind in ("inference", "training"):
                    for name in BATCHES:
                        for library in ("vitkit", "timm"):
                            yield (
                                f"peaks {name} {size} {kind} {library}",
                                lambda name=name, size=size, kind=kind, library=library: peaks(
                                    bench, name, size, kind, library
                                ),
                            )


def short_error(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"


def clean() -> None:
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run(arguments: argparse.Namespace) -> int:
    began, bench = time.perf_counter(), Bench(arguments.tiny)
    if not arguments.tiny and not torch.cuda.is_available():
        sys.exit("no GPU here: --tiny runs the same code on a CPU")
    torch.backends.cuda.matmul.allow_tf32 = False  # of the references in float32
    torch._dynamo.config.recompile_limit = 64
    done: dict[str, Any] = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    arguments.out.mkdir(parents=True, exist_ok=True)
    failures = 0
    for name, measure in cells(bench, arguments.parts):
        if name in done and (not arguments.again or "error" not in done[name]):
            continue
        if (time.perf_counter() - began) / 60 > arguments.minutes:
            print(f"no time left for {name} and what follows: run the same command again", flush=True)
            break
        start = time.perf_counter()
        try:
            found = measure()
        except Exception as error:
            traceback.print_exc()
            found, failures = {"error": short_error(error)}, failures + 1
        done[name] = found | {"seconds": round(time.perf_counter() - start, 1), **machine(bench)}
        (arguments.out / "gpu.json").write_text(json.dumps(done, indent=1) + "\n")
        print(f"{name}: {json.dumps(found)[:600]}", flush=True)
        clean()
        if "CUDA error" in str(found.get("error")):
            print("the GPU's context is lost: run the same command again", flush=True)
            break
    return 1 if failures else 0


def machine(bench: Bench) -> dict[str, Any]:
    return {
        "device": "cpu" if bench.tiny else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "timm": metadata.version("timm"),
        "date": datetime.date.today().isoformat(),
    }


def show(arguments: argparse.Namespace) -> int:
    """Print the tables, and draw peak rates against the size of images."""
    done: dict[str, Any] = json.loads(arguments.results.read_text())
    print(
        "| model, batch | candidate | images/s | next to timm | error of logits |\n|---|---|---:|---:|---:|"
    )
    for name, cell in done.items():
        if name.startswith("bars ") and "rates" in cell:
            for key, value in cell["rates"].items():
                error = f"{cell['errors'][key]:.2%}" if key in cell["errors"] else ""
                print(
                    f"| {name[5:]}, {cell['batch_size']} | {key} | {value['images_per_second']:,.0f} | "
                    f"{value['ratio']:.2f} | {error} |"
                )
    print("\n| model | merged | images/s | next to none |\n|---|---:|---:|---:|")
    for name, cell in done.items():
        if name.startswith("merge ") and "rates" in cell:
            for key, value in cell["rates"].items():
                print(f"| {name[6:]} | {key} | {value['images_per_second']:,.0f} | {value['ratio']:.2f} |")
    print("\n| model | pixels | | vitkit | timm | TPUv3 core, quoted | largest batch: vitkit | timm |")
    print("|---|---:|---|---:|---:|---:|---:|---:|")
    points = []
    for name, size, kind in [
        (name, size, kind) for name in BATCHES for size in SIZES for kind in ("inference", "training")
    ]:
        found = [done.get(f"peaks {name} {size} {kind} {library}", {}) for library in ("vitkit", "timm")]
        if not any("peak" in item for item in found):
            continue
        quoted = TPU[name] if (size, kind) == (224, "inference") else ""
        rate = [f"{item['peak']:,.0f}" if "peak" in item else "" for item in found]
        batch = [f"{item['largest_batch']:,}" if "peak" in item else "" for item in found]
        print(f"| {name} | {size} | {kind} | {rate[0]} | {rate[1]} | {quoted} | {batch[0]} | {batch[1]} |")
        if kind == "inference":
            for library, item in zip(("vitkit", "timm"), found, strict=True):
                if item.get("peak"):
                    points.append(Point(item["peak"], size, name, library))
    if points:
        picture = scatter("peak rate of inference on one GPU", points, x="images per second", y="pixels")
        arguments.results.with_suffix(".png").write_bytes(picture)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    everything = ["bars", "latency", "merge", "kernels", "profile", "peaks"]
    # argparse of Python 3.11 refuses an empty list where there are choices.
    parser.add_argument("parts", nargs="*", help=f"{', '.join(everything)} (default: all), or show")
    parser.add_argument("--out", type=Path, default=RESULTS.parent, help="folder that gpu.json is written to")
    parser.add_argument("--results", type=Path, default=RESULTS, help="results so far")
    parser.add_argument("--minutes", type=float, default=9.0, help="no cell begins after so many")
    parser.add_argument("--again", action="store_true", help="measure again what failed")
    parser.add_argument("--tiny", action="store_true", help="small models on a CPU, to try the code")
    arguments = parser.parse_args()
    arguments.parts = arguments.parts or everything
    if unknown := set(arguments.parts) - {*everything, "show"}:
        parser.error(f"no such part: {', '.join(unknown)}")
    sys.exit(show(arguments) if "show" in arguments.parts else run(arguments))


if __name__ == "__main__":
    main()
