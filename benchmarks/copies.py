"""How similar changed copies of photos are to them, and how similar different photos are.

    python benchmarks/copies.py Ti/16@weights.safetensors ./photos

Writes docs/results/copies.json and prints the table of docs/embed.md.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance

import vitkit
from vitkit.data.images import find_images, read_image

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "copies.json"
LIMITS = (0.95, 0.9, 0.8)


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


def middle(image: Image.Image, share: float) -> Image.Image:
    low, high = (1 - share) / 2, (1 + share) / 2
    width, height = image.size
    return image.crop((int(width * low), int(height * low), int(width * high), int(height * high)))


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "1.3 times as bright": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "JPEG of quality 30": lambda image: jpeg(image, 30),
    "half the size": lambda image: image.resize((image.width // 2, image.height // 2)),
    "the middle 90% of each side": lambda image: middle(image, 0.9),
    "rotated by 5 degrees": lambda image: image.rotate(5),
    "the middle 70% of each side": lambda image: middle(image, 0.7),
    "JPEG of quality 10": lambda image: jpeg(image, 10),
    "a quarter of the size": lambda image: image.resize((image.width // 4, image.height // 4)),
    "grey": lambda image: image.convert("L").convert("RGB"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("photos")
    arguments = parser.parse_args()
    model = vitkit.load(arguments.model)
    photos = [read_image(path) for path in find_images(arguments.photos)]

    def unit(images: list[Image.Image]) -> np.ndarray:
        rows = model.embed(images)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    own = unit(photos)
    others = own @ own.T - 2 * np.eye(len(own))
    document = {
        "model": Path(arguments.model).name,
        "photos": len(photos),
        "most_similar_different_photos": round(float(others.max()), 3),
        "copies": {},
        "versions": {"vitkit": vitkit.__version__, "torch": torch.__version__},
        "date": datetime.date.today().isoformat(),
    }
    print(
        f"| copy | similarity, median | {' | '.join(f'at {limit:g}' for limit in LIMITS)} |\n|---|---|---|---|---|"
    )
    for name, change in COPIES.items():
        similarities = (own * unit([change(photo) for photo in photos])).sum(1)
        shares = {f"{limit:g}": float(np.mean(similarities >= limit)) for limit in LIMITS}
        document["copies"][name] = {"median": round(float(np.median(similarities)), 3), "found": shares}
        cells = [f"{np.median(similarities):.3f}", *(f"{share:.0%}" for share in shares.values())]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"the most similar different photos: {others.max():.3f}")
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
