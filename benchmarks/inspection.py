"""Whether inspection shows what a model uses: attention distance by depth, and the effect of masking highly ranked patches.

python benchmarks/inspection.py WEIGHTS PHOTOS [--seeds 3] [--share 0.3]

WEIGHTS is a ViT-Ti/16 trained on ImageNet. PHOTOS is a folder of photos whose names begin with their WordNet id; next to
that folder is synsets.txt, ImageNet's order of classes. A masked patch has the model's mean colour. A separate process
measures the memory that attention distance needs for an untrained L/16 at 512 pixels.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitkit
from vitkit.data.images import find_images, prepare
from vitkit.inspection import (
    attention_distance,
    attention_maps,
    gradient_rollout,
    rollout,
    uniform_distance,
)
from vitkit.predictor import Predictor

RESULT = Path(__file__).parents[1] / "docs" / "results" / "inspection" / "inspection.json"
LARGE, LARGE_SIZE, LARGE_IMAGES = "L/16", 512, 3


def true_classes(photos: list[Path]) -> np.ndarray:
    """Return the index of each photo's WordNet id in ImageNet's order."""
    lines = (photos[0].parent.parent / "synsets.txt").read_text().split("\n")
    ids = [line.split()[0] for line in lines if line]
    return np.array([ids.index(photo.name.partition("_")[0]) for photo in photos])


def probabilities(predictor: Predictor, images: Tensor, classes: np.ndarray) -> np.ndarray:
    """Return the predicted probability of each image's true class."""
    logits = torch.cat([predictor.logits(batch) for batch in images.split(33)])
    return logits.softmax(1)[range(len(images)), classes].double().numpy()


def without_highest(images: Tensor, ranking: np.ndarray, share: float) -> Tensor:
    """Return images (images, channels, height, width) with the highest-ranked patches set to zero, the mean colour."""
    num_images, rows, columns = ranking.shape
    patches = ranking.reshape(num_images, -1)
    kept = np.ones_like(patches)
    highest = np.argsort(-patches, axis=1, kind="stable")[:, : round(share * rows * columns)]
    np.put_along_axis(kept, highest, 0, axis=1)
    mask = torch.from_numpy(kept.reshape(ranking.shape)).float()[:, None]
    height, width = images.shape[2] // rows, images.shape[3] // columns
    return images * mask.repeat_interleave(height, 2).repeat_interleave(width, 3)


def measure_masking(
    predictor: Predictor, images: Tensor, classes: np.ndarray, share: float, seeds: int
) -> dict[str, Any]:
    """Return the true class's probability after masking by each ranking, compared with random masking."""
    flow = rollout(predictor, images)
    rankings = {
        "rollout": flow,
        "rollout, max of heads, 0.9 discarded": rollout(predictor, images, "max", discard=0.9),
        "gradient rollout of the true class": gradient_rollout(predictor, images, classes),
        "last layer's attention": attention_maps(predictor, images, [-1])[:, 0].mean(1),
        "lowest in rollout": -flow,
    }
    whole = probabilities(predictor, images, classes)
    random = np.stack(
        [
            probabilities(
                predictor,
                without_highest(images, np.random.default_rng(seed).random(flow.shape), share),
                classes,
            )
            for seed in range(seeds)
        ]
    )
    result: dict[str, Any] = {
        "nothing": {"probability": whole.mean()},
        "at random": {
            "probability": random.mean(),
            "by_seed": random.mean(1).tolist(),
        },
    }
    for name, ranking in rankings.items():
        found = probabilities(predictor, without_highest(images, ranking, share), classes)
        more = random.mean(0) - found  # the loss beyond random masking, per photo
        result[name] = {
            "probability": found.mean(),
            "lost_beyond_random": more.mean(),
            "standard_error": more.std(ddof=1) / np.sqrt(len(more)),
            "below_every_seed": bool(found.mean() < random.mean(1).min()),
        }
    return result


def measure_large() -> None:
    """Print the seconds of attention distance, and its peak memory beyond the model and images, as JSON."""
    predictor = vitkit.create_model(LARGE, image_size=LARGE_SIZE)
    images = torch.rand(LARGE_IMAGES, 3, LARGE_SIZE, LARGE_SIZE)
    before, start = memory("VmRSS"), time.perf_counter()
    attention_distance(predictor, images)
    config: Any = predictor.config
    layer_bytes = 4 * config.heads * config.num_tokens**2
    print(
        json.dumps(
            {
                "model": LARGE,
                "image_size": LARGE_SIZE,
                "images": LARGE_IMAGES,
                "seconds": time.perf_counter() - start,
                "bytes": memory("VmHWM") - before,
                "bytes_of_all_attention": LARGE_IMAGES * config.depth * layer_bytes,
            }
        )
    )


def memory(field: str) -> int:
    """Return a field of this process's status on Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path, nargs="?")
    parser.add_argument("photos", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--large", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.large:
        measure_large()
        return
    if arguments.photos is None:
        parser.error("give WEIGHTS and PHOTOS")
    predictor = vitkit.load(f"Ti/16@{arguments.weights}", device="cpu")
    photos = find_images(arguments.photos)
    classes = true_classes(photos)
    images = torch.stack([prepare(photo, predictor.preprocessing) for photo in photos])

    distances = attention_distance(predictor, images)
    config: Any = predictor.model.config
    third = len(distances) // 3
    uniform = uniform_distance(config.grid, config.patch)
    distance = {
        "first_third": distances[:third].mean(),
        "last_third": distances[-third:].mean(),
        "uniform": uniform,
        "by_layer": distances.mean(1).tolist(),
    }
    print(f"mean attention distance, {len(photos)} photos, px (uniform attention: {uniform:.1f})")
    print(f"  first third of layers {distance['first_third']:7.1f}")
    print(f"  last third of layers  {distance['last_third']:7.1f}")

    masking = measure_masking(predictor, images, classes, arguments.share, arguments.seeds)
    print(f"\n{arguments.share:.0%} of patches masked: probability of the true class")
    for name, row in masking.items():
        beyond = ""
        if "lost_beyond_random" in row:
            beyond = f"   {row['lost_beyond_random']:+.3f} ± {row['standard_error']:.3f} lost beyond random"
        print(f"  {name:38} {row['probability']:.3f}{beyond}")

    answer = subprocess.run([sys.executable, __file__, "--large"], capture_output=True, text=True, check=True)
    large = json.loads(answer.stdout)
    print(
        f"\nattention distance of {LARGE} at {LARGE_SIZE} px, {LARGE_IMAGES} images: {large['seconds']:.0f} s, "
        f"{large['bytes'] / 2**20:,.0f} MiB over the model; all its attention is "
        f"{large['bytes_of_all_attention'] / 2**20:,.0f} MiB"
    )
    result = {
        "command": f"python benchmarks/inspection.py WEIGHTS PHOTOS --seeds {arguments.seeds} --share {arguments.share}",
        "date": datetime.date.today().isoformat(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "model": "Ti/16",
        "photos": len(photos),
        "attention_distance": distance,
        "masking": masking,
        "memory": large,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
