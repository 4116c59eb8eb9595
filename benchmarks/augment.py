"""Batched augmentation in images/s: each operation and policy at 32 and 224 px, and timm's RandAugment beside ours.

python benchmarks/augment.py [--device cpu|cuda] [--threads 1] [--rounds 10] [--sizes 32x512 224x64]

timm works on one Pillow image at a time on one core. Rounds of both are interleaved; rates are medians.
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
from sklearn.datasets import load_sample_images
from torch import Tensor

from vitkit.data import mixing, operations, policies
from vitkit.data.draws import Draw

RESULT = Path(__file__).parents[1] / "docs" / "results" / "augment.json"
STRING = "rand-m9-mstd0.5-inc1"
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


def photos(size: int, batch: int) -> Tensor:
    """Return crops of two photos: uint8 (batch, 3, size, size)."""
    random, found = np.random.default_rng(0), load_sample_images().images
    crops = []
    for number in range(batch):
        photo, side = found[number % len(found)], int(random.integers(size, 420))
        top, left = (int(random.integers(length - side)) for length in photo.shape[:2])
        crop = Image.fromarray(photo[top : top + side, left : left + side])
        crops.append(np.asarray(crop.resize((size, size), Image.Resampling.BILINEAR)))
    return torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).contiguous()


def steps(images: Tensor) -> dict[str, Callable[[Draw], object]]:
    """Return what is measured, by name."""
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
            part = operations.Part(name, rows, amounts, kind)
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
        f"timm_randaugment({STRING})": lambda draw: policies.timm_randaugment(images, draw, STRING),
        "autoaugment(cifar10)": lambda draw: policies.autoaugment(images, draw, "cifar10"),
        "autoaugment(imagenet)": lambda draw: policies.autoaugment(images, draw, "imagenet"),
        "trivialaugment": lambda draw: policies.trivialaugment(images, draw),
        "pad_crop|flip|timm_randaugment|erase|cutmix|normalize": cifar,
    }


def timm_randaugment(images: Tensor) -> Callable[[], object]:
    """Return timm's RandAugment over Pillow images, one after the other."""
    from timm.data.auto_augment import rand_augment_transform

    transform = rand_augment_transform(STRING, {"translate_const": 100, "img_mean": (124, 116, 104)})
    pictures = [Image.fromarray(image) for image in images.permute(0, 2, 3, 1).cpu().numpy()]

    def run() -> None:
        for picture in pictures:
            try:
                np.asarray(transform(picture))
            except (
                ValueError
            ):  # Pillow refuses to posterize to 0 bits, which this string asks for now and then
                continue

    return run


def seconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(size: int, batch: int, device: torch.device, rounds: int) -> dict[str, dict[str, float]]:
    """Return median and best images/s of everything, timm's RandAugment among it."""
    images = photos(size, batch).to(device)
    todo = steps(images)
    other = timm_randaugment(images)
    times: dict[str, list[float]] = {name: [] for name in [*todo, "timm on one core"]}
    for number in range(-2, rounds):  # the first two rounds warm up
        draw = Draw(0, number + 2, np.arange(batch, dtype=np.int64) + (number + 2) * batch)
        for name, step in todo.items():
            taken = seconds(functools.partial(step, draw), device)
            if name.startswith("timm_randaugment"):
                times["timm on one core"].append(seconds(other, torch.device("cpu")))
            times[name].append(taken)
    return {
        name: {"median": batch / statistics.median(taken[2:]), "best": batch / min(taken[2:])}
        for name, taken in times.items()
    }


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
            print(f"{name:55} {rate['median']:12,.0f}   best {rate['best']:12,.0f}")
        ours = rates[f"timm_randaugment({STRING})"]["median"]
        print(f"timm's string, ours over timm on one core: {ours / rates['timm on one core']['median']:.2f}")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.with_stem(f"augment_{arguments.device}").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
