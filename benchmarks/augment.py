"""Speed of batched augmentation in images/s: each operation and policy at 32 and 224 px, and timm's RandAugment.

python benchmarks/augment.py [--device cpu|cuda] [--threads 1] [--rounds 10] [--sizes 32x512 224x64]

timm works on one Pillow image at a time on one core. Rounds of both are interleaved; rates are medians.
With one thread, CPU time is measured, so other work on the machine matters little; otherwise wall time.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.data import mixing, operations, policies
from vitkit.data.draws import Draw

RESULT = Path(__file__).parents[1] / "docs" / "results" / "augment.json"
STRING = "rand-m9-mstd0.5-inc1"
OURS, PEER = f"timm_randaugment({STRING})", "timm on one core"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AMOUNTS = {
    "Rotate": 20.0,
    "ShearX": 0.2,
    "ShearY": 0.2,
    "TranslateX": 4.3,
    "TranslateY": 4.3,
    "Posterize": 4.0,
    "Solarize": 100.0,
    "SolarizeAdd": 50.0,
    "Hue": 0.1,
}


def pictures(size: int, batch: int) -> Tensor:
    """Return smooth pictures with a little noise: uint8 (batch, 3, size, size)."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(batch):
        coarse = Image.fromarray(random.integers(0, 256, (7, 7, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC)).astype(int)
        found.append(np.clip(smooth + random.integers(-8, 9, smooth.shape), 0, 255).astype(np.uint8))
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).contiguous()


def steps(images: Tensor) -> dict[str, Callable[[Draw], object]]:
    """Return the functions to measure, by name."""
    batch = len(images)
    rows = np.arange(batch)
    targets = torch.eye(10, device=images.device)[torch.arange(batch, device=images.device) % 10]
    found: dict[str, Callable[[Draw], object]] = {}
    for name in operations.OPERATIONS:
        amounts = np.full(batch, AMOUNTS.get(name, 0.5))
        if name == "Cutout":
            amounts = np.tile([2.0, 3.0, 12.0, 13.0], (batch, 1))
        kinds: tuple[operations.Interpolation, ...] = ("nearest",)
        if name in operations.MATRICES:
            kinds = ("nearest", "bilinear", "bicubic")
        for kind in kinds:
            part = operations.Assignment(name, rows, amounts, kind)
            label = f"{name} {kind}" if len(kinds) > 1 else name
            found[label] = lambda draw, part=part: operations.apply(images, [part])  # type: ignore[misc]

    def cifar(draw: Draw) -> object:
        changed = operations.pad_crop(images, draw.child("crop"))
        changed = operations.flip(changed, draw.child("flip"))
        changed = policies.timm_randaugment(changed, draw.child("randaugment"), STRING)
        changed = operations.erase(changed, draw.child("erase"))
        changed, mixed = mixing.cutmix(changed, targets, draw.child("cutmix"), 1.0, 8)
        return operations.normalize(changed, MEAN, STD), mixed

    return found | {
        "flip": lambda draw: operations.flip(images, draw),
        "pad_crop": lambda draw: operations.pad_crop(images, draw),
        "color_jitter": lambda draw: operations.color_jitter(images, draw, 0.4, 0.4, 0.4, 0.1),
        "erase": lambda draw: operations.erase(images, draw),
        "normalize": lambda draw: operations.normalize(images, MEAN, STD),
        "mixup": lambda draw: mixing.mixup(images, targets, draw, 0.8, 8),
        "cutmix": lambda draw: mixing.cutmix(images, targets, draw, 1.0, 8),
        "randaugment(2,10)": lambda draw: policies.randaugment(images, draw, 2, 10),
        OURS: lambda draw: policies.timm_randaugment(images, draw, STRING),
        "autoaugment(cifar10)": lambda draw: policies.autoaugment(images, draw, "cifar10"),
        "autoaugment(imagenet)": lambda draw: policies.autoaugment(images, draw, "imagenet"),
        "trivialaugment": lambda draw: policies.trivialaugment(images, draw),
        "pad_crop|flip|timm_randaugment|erase|cutmix|normalize": cifar,
    }


def timm_randaugment(images: Tensor) -> Callable[[], object]:
    """Return a function that applies timm's RandAugment to Pillow images, one at a time."""
    from timm.data.auto_augment import rand_augment_transform

    transform = rand_augment_transform(STRING, {"translate_const": 100, "img_mean": (124, 116, 104)})
    singles = [Image.fromarray(image) for image in images.permute(0, 2, 3, 1).contiguous().numpy()]

    def run() -> None:
        for picture in singles:
            try:
                np.asarray(transform(picture))
            except ValueError:  # this string sometimes posterizes to 0 bits, which Pillow refuses
                continue

    return run


def seconds(run: Callable[[], object], device: torch.device) -> float:
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def agreement(step: Callable[[Draw], Any], same: Callable[[Draw], Any], draw: Draw) -> float:
    """Return the share of values on which two devices agree: within one grey level, or 0.02 when normalised."""
    ours, theirs = (run(draw) for run in (step, same))
    ours, theirs = (item[0] if isinstance(item, tuple) else item for item in (ours, theirs))
    limit = 0.02 if ours.is_floating_point() else 1
    return float(((ours.cpu().float() - theirs.float()).abs() <= limit).float().mean())


def measure(size: int, batch: int, device: torch.device, rounds: int) -> dict[str, dict[str, float]]:
    """Return images/s of every function; on a CPU also timm's RandAugment, on a GPU also the agreement with the CPU."""
    images = pictures(size, batch)
    todo, same = steps(images.to(device)), steps(images)
    times: dict[str, list[float]] = {name: [] for name in todo}
    if device.type == "cpu":
        other = timm_randaugment(images)
        times[PEER] = []
    for number in range(rounds + 2):  # the first two warm up
        draw = Draw(0, number, np.arange(batch, dtype=np.int64) + number * batch)
        for name, step in todo.items():
            times[name].append(seconds(functools.partial(step, draw), device))
            if name == OURS and PEER in times:
                times[PEER].append(seconds(other, device))
    result = {
        name: {"median": batch / statistics.median(taken[2:]), "best": batch / min(taken[2:])}
        for name, taken in times.items()
    }
    if device.type != "cpu":
        for name, step in todo.items():
            result[name]["agrees"] = agreement(step, same[name], draw)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", nargs="+", default=["32x512", "224x64"], help="image side x batch size")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    result: dict[str, Any] = {
        "command": "python benchmarks/augment.py " + " ".join(sys.argv[1:]),
        "date": datetime.date.today().isoformat(),
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "images_per_second": {},
    }
    for text in arguments.sizes:
        size, batch = map(int, text.split("x"))
        rates = measure(size, batch, device, arguments.rounds)
        result["images_per_second"][text] = rates
        print(f"\n{size} px, batch {batch}, {arguments.device}, {arguments.threads} threads: images/s")
        for name, rate in rates.items():
            agrees = f"   agrees {rate['agrees']:.5f}" if "agrees" in rate else ""
            print(f"{name:55} {rate['median']:12,.0f}   best {rate['best']:12,.0f}{agrees}")
        if PEER in rates:
            ratio = rates[OURS]["median"] / rates[PEER]["median"]
            print(f"RandAugment, ours over timm's on one core: {ratio:.2f}")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.with_stem(f"augment_{arguments.device}").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
