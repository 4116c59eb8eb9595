"""Training input: images per second of our loader, timm's and torchvision's, interleaved on the same data.

    python benchmarks/data.py photos [--randaugment] [--device cuda] [--photos DIR] [--workers 2]
    python benchmarks/data.py cifar [--device cuda] [--workers 2]

`photos` reads JPEG files of about 500x375 (made from scikit-learn's photos, or those in --photos), takes a random
224x224 crop (bilinear and antialiased in all libraries), flips and normalises. --randaugment adds timm's RandAugment.
`cifar` applies pad-crop, flip, RandAugment, erasing and cutmix to 32x32 images in memory.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

from vitkit.data.decode import decode
from vitkit.data.loader import Loader
from vitkit.data.open import open_data
from vitkit.data.operations import normalize
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.sources.source import Source
from vitkit.doctor import cpu_name

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MEAN = STD = (0.5, 0.5, 0.5)
RAND = "rand-m9-mstd0.5-inc1"
AREA = (0.08, 1.0)
# Yields float batches on the device forever.
Stream = Iterator[torch.Tensor]


def make_photos(folder: Path, count: int) -> Path:
    """Write photo-like JPEGs of about 500x375: random crops of scikit-learn's two photos."""
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(image) for image in load_sample_images().images]
    random = np.random.default_rng(0)
    for number in range(count):
        photo = photos[number % len(photos)]
        width = int(random.integers(300, photo.width))
        height = min(photo.height, int(width * random.uniform(0.65, 0.85)))
        left, top = (
            int(random.integers(0, photo.width - width + 1)),
            int(random.integers(0, photo.height - height + 1)),
        )
        size = (500, 375) if number % 4 else (375, 500)
        cut = photo.crop((left, top, left + width, top + height)).resize(size, Image.Resampling.BICUBIC)
        place = folder / "train" / f"class-{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        cut.save(place / f"{number:05}.jpg", quality=90)
    return folder


def repeat_photos(folder: Path, photos: Path, count: int) -> Path:
    """Make a data set of links to the photos of a folder, repeated."""
    files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    for number in range(count):
        place = folder / "train" / f"class-{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:05}.jpg").symlink_to(files[number % len(files)].resolve())
    return folder


def forever(batches: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    while True:
        yield from batches()


def ours(source: Source, pipeline: str, batch_size: int, workers: int, device: str) -> Stream:
    loader = Loader(source, parse_pipeline(pipeline), batch_size=batch_size, workers=workers, device=device)
    values = None  # each batch reuses the memory of the last, as in a training step
    for batch in loader.steps(0, 10**9):
        values = normalize(batch["image"], MEAN, STD, out=values)
        yield values


def timm_photos(folder: Path, randaugment: bool, batch_size: int, workers: int, device: str) -> Stream:
    from timm.data import create_loader
    from timm.data.dataset import ImageDataset

    loader = create_loader(
        ImageDataset(str(folder / "train")),
        input_size=(3, 224, 224),
        batch_size=batch_size,
        is_training=True,
        use_prefetcher=device == "cuda",
        scale=AREA,
        hflip=0.5,
        color_jitter=None,
        auto_augment=RAND if randaugment else None,
        interpolation="bilinear",
        mean=MEAN,
        std=STD,
        num_workers=workers,
        persistent_workers=True,
        device=torch.device(device),
    )
    for batch in forever(lambda: iter(loader)):
        yield batch[0].to(device, non_blocking=True)


def torchvision_photos(folder: Path, randaugment: bool, batch_size: int, workers: int, device: str) -> Stream:
    """torchvision's reference: its Pillow back end, as in references/classification."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import InterpolationMode

    steps: list[Callable[..., Any]] = [
        transforms.RandomResizedCrop(224, scale=AREA, interpolation=InterpolationMode.BILINEAR),
        transforms.RandomHorizontalFlip(),
        *([transforms.RandAugment()] if randaugment else []),
        transforms.PILToTensor(),
        transforms.ConvertImageDtype(torch.float),
        transforms.Normalize(MEAN, STD),
    ]
    loader = DataLoader(
        ImageFolder(str(folder / "train"), transforms.Compose(steps)),
        batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        drop_last=True,
        pin_memory=device == "cuda",
    )
    for batch in forever(lambda: iter(loader)):
        yield batch[0].to(device, non_blocking=True)


class Pixels(Source):
    """Images in memory, of CIFAR's size."""

    name, split, class_names = "pixels", "train", tuple(map(str, range(10)))

    def __init__(self, count: int = 50_000) -> None:
        small = np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), np.uint8)
        self.images = small.repeat(4, axis=1).repeat(4, axis=2)
        self.labels = np.arange(count) % 10


class PixelsForTimm(Dataset[Any]):
    def __init__(self, source: Pixels) -> None:
        self.source, self.transform = source, None

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        image = Image.fromarray(self.source.images[index])
        return self.transform(image), int(self.source.labels[index])  # type: ignore[misc]


def timm_cifar(source: Pixels, batch_size: int, workers: int, device: str) -> Stream:
    """timm's loader with the same augmentations; its pad-crop is the train crop of create_transform."""
    from timm.data import FastCollateMixup, Mixup, create_loader

    mixing = dict(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=10)
    prefetch = device == "cuda"
    loader = create_loader(
        PixelsForTimm(source),
        input_size=(3, 32, 32),
        batch_size=batch_size,
        is_training=True,
        use_prefetcher=prefetch,
        train_crop_mode="rkrc",
        hflip=0.5,
        color_jitter=None,
        auto_augment=RAND,
        re_prob=0.25,
        re_mode="pixel",
        interpolation="bilinear",
        mean=MEAN,
        std=STD,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=FastCollateMixup(**mixing) if prefetch else None,
        device=torch.device(device),
    )
    mix = None if prefetch else Mixup(**mixing)
    for images, labels in forever(lambda: iter(loader)):
        yield images if mix is None else mix(images, labels)[0]


def allow_no_bits() -> None:
    """Let timm's RandAugment posterize to 0 bits, as it sometimes does, although Pillow 13 refuses."""
    posterize = ImageOps.posterize
    ImageOps.posterize = lambda image, bits: posterize(image, max(1, bits))  # type: ignore[assignment]


def measure(stream: Stream, images: int, device: str) -> float:
    """Return images per second over the next `images`."""
    began, done = time.perf_counter(), 0
    while done < images:
        done += len(next(stream))
    if device == "cuda":
        torch.cuda.synchronize()
    return done / (time.perf_counter() - began)


def decode_limit(folder: Path, images: int = 200) -> float:
    """Return the decodes per second on one core."""
    files = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))[:images]]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    began = time.perf_counter()
    for data in files:
        decode(data)
    rate = len(files) / (time.perf_counter() - began)
    torch.set_num_threads(threads)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("photos", "cifar"))
    parser.add_argument("--randaugment", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    allow_no_bits()
    cores = torch.get_num_threads()
    torch.set_num_threads(max(1, cores - arguments.workers))  # leave cores to the workers, for every library
    device, workers = arguments.device, arguments.workers
    result: dict[str, Any] = {
        "command": "python benchmarks/data.py " + " ".join(sys.argv[1:]),
        "date": datetime.date.today().isoformat(),
        "machine": torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        "workers": workers,
        "torch": torch.__version__,
    }
    streams: dict[str, Stream]
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.what == "photos":
            name = f"photos{'-randaugment' if arguments.randaugment else ''}"
            make = make_photos if arguments.photos is None else repeat_photos
            given = () if arguments.photos is None else (arguments.photos,)
            folder = make(Path(temporary), *given, arguments.count)  # type: ignore[operator]
            source = open_data(f"{folder}:train", default="train")
            policy = f"|timm_randaugment({RAND})" if arguments.randaugment else ""
            batch_size = 64 if device == "cpu" else 256
            settings = (arguments.randaugment, batch_size, workers, device)
            streams = {
                "vitkit": ours(
                    source,
                    f"inception_crop(224,{AREA[0]},{AREA[1]})|flip{policy}",
                    batch_size,
                    workers,
                    device,
                ),
                "timm": timm_photos(folder, *settings),
                "torchvision": torchvision_photos(folder, *settings),
            }
            result["decode_images_per_second_per_core"] = decode_limit(folder)
            images = 1500 if device == "cpu" else 4000
        else:
            name, pixels = "cifar", Pixels()
            pipeline = f"pad_crop(4)|flip|timm_randaugment({RAND})|erase(0.25)|cutmix(1.0)"
            batch_size = 512
            streams = {
                "vitkit": ours(pixels, pipeline, batch_size, workers, device),
                "timm": timm_cifar(pixels, batch_size, workers, device),
            }
            images = 5000 if device == "cpu" else 50_000
        rates: dict[str, list[float]] = {peer: [] for peer in streams}
        for stream in streams.values():  # workers start and fill their queues
            measure(stream, 4 * batch_size, device)
        for number in range(arguments.rounds):
            for peer in sorted(streams, reverse=number % 2 == 1):
                time.sleep(2)  # until the other workers have filled their queues
                measure(streams[peer], 4 * batch_size if arguments.what == "photos" else batch_size, device)
                rates[peer].append(measure(streams[peer], images, device))
            print(
                f"round {number + 1}: " + ", ".join(f"{p} {r[-1]:,.0f}/s" for p, r in rates.items()),
                file=sys.stderr,
            )
    result["images_per_second"] = {peer: statistics.median(values) for peer, values in rates.items()}
    # A machine that is slow for a while slows down all libraries in a round. So ratios are taken within rounds: their
    # median is steadier than the ratio of the medians, and may differ from it.
    for peer in list(streams)[1:]:
        pairs = zip(rates["vitkit"], rates[peer], strict=True)
        result[f"ratio_to_{peer}"] = statistics.median(own / other for own, other in pairs)
    result["rounds"] = rates
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"data-{name}-{device}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
