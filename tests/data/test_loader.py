"""Batches by step: the same bits whatever the workers and ranks, every image where it belongs."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitkit import InputError
from vitkit.data.loader import CHUNK, Batch, EvaluationLoader, Loader
from vitkit.data.open import open_data
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.sources.source import Picture, Source

TRAIN = "inception_crop(24)|flip|randaugment(2,10)|erase(0.5)|mix(0.8,1.0)"


class Files(Source):
    """Small photos as JPEG bytes; some may be broken, and reading one may kill the process."""

    name, split, class_names = "photos", "train", ("a", "b", "c")

    def __init__(self, count: int = 90, broken: Iterable[int] = (), deadly: int = -1) -> None:
        self.labels = np.arange(count) % 3
        self.broken, self.deadly = frozenset(broken), deadly
        random = np.random.default_rng(0)
        self.files = []
        for number in range(count):
            pixels = random.integers(0, 256, (4, 5, 3), np.uint8)
            image = Image.fromarray(pixels).resize(
                (40 + number % 7, 36 + number % 5), Image.Resampling.BICUBIC
            )
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=90)
            self.files.append(buffer.getvalue())

    def read(self, index: int) -> Picture:
        if index == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return b"no image" if index in self.broken else self.files[index]

    def where(self, index: int) -> str:
        return f"photo-{index}.jpg"


class Pixels(Source):
    """Images in memory."""

    name, split, class_names = "pixels", "train", tuple("abcdefghij")

    def __init__(self, count: int = 200) -> None:
        self.labels = np.arange(count) % 10
        self.images = np.random.default_rng(1).integers(0, 256, (count, 16, 16, 3), np.uint8)


def loader(source: Source, pipeline: str = TRAIN, batch_size: int = 48, **settings: object) -> Loader:
    return Loader(source, parse_pipeline(pipeline), batch_size=batch_size, **settings)  # type: ignore[arg-type]


def photo_folder(folder: Path, count: int) -> Source:
    photos = Files(count)
    for number, data in enumerate(photos.files):
        place = folder / "train" / photos.class_names[number % 3]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.jpg").write_bytes(data)
    return open_data(f"{folder}:train", default="train")


def assert_same(left: Iterable[Batch], right: Iterable[Batch]) -> None:
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one["image"], other["image"]) and torch.equal(one["label"], other["label"])


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("workers", [1, 4])
def test_workers_change_nothing(workers: int) -> None:
    source = Files()
    alone = [loader(source, workers=0)[step] for step in (3, 4, 5)]
    assert_same(alone, loader(source, workers=workers).steps(3, 6))
    assert alone[0]["image"].shape == (48, 3, 24, 24) and alone[0]["image"].dtype == torch.uint8
    assert alone[0]["label"].shape == (48, 3)


def test_workers_may_be_spawned(tmp_path: Path) -> None:
    source = photo_folder(tmp_path, 40)
    expected = [loader(source, workers=0, batch_size=16)[0]]
    assert_same(expected, loader(source, workers=1, batch_size=16, start_method="spawn").steps(0, 1))


@pytest.mark.parametrize("source", [Files(), Pixels()])
def test_ranks_put_together_are_one_process(source: Source) -> None:
    pipeline = TRAIN if isinstance(source, Files) else "pad_crop(2)|flip|randaugment(2,10)|cutmix(1.0)"
    whole = loader(source, pipeline, workers=0)
    halves = [loader(source, pipeline, workers=0, rank=rank, ranks=2) for rank in (0, 1)]
    for step in (0, 7):
        for name in ("image", "label"):
            assert torch.equal(whole[step][name], torch.cat([half[step][name] for half in halves]))


def test_a_batch_needs_no_replay() -> None:
    straight = list(loader(Pixels(), "pad_crop(2)|flip|mixup(0.2)").steps(0, 6))
    assert_same(straight[4:], loader(Pixels(), "pad_crop(2)|flip|mixup(0.2)").steps(4, 6))
    assert not torch.equal(straight[0]["image"], straight[1]["image"])
    other = loader(Pixels(), "pad_crop(2)|flip|mixup(0.2)", seed=1)[0]
    assert not torch.equal(straight[0]["image"], other["image"])


def test_an_epoch_holds_every_image_once_with_its_label() -> None:
    source = Pixels(96)
    batches = list(loader(source, "").steps(0, 2))
    seen = torch.cat([batch["image"] for batch in batches]).permute(0, 2, 3, 1).numpy()
    labels = torch.cat([batch["label"] for batch in batches]).numpy()
    keys = {image.tobytes(): label for image, label in zip(source.images, source.labels, strict=True)}
    assert len({image.tobytes() for image in seen}) == 96
    assert [keys[image.tobytes()] for image in seen] == labels.tolist()


def test_several_labels_come_as_numbers_for_each_class() -> None:
    source = Pixels(20)
    source.labels = np.random.default_rng(0).random((20, 10)) < 0.3
    batch = loader(source, "flip", batch_size=10)[0]
    assert batch["label"].dtype == torch.float32 and batch["label"].shape == (10, 10)


def test_a_bad_image_is_an_error_that_names_it() -> None:
    message = "photo-5.jpg: cannot read the image's bytes: it is not an image in a known format"
    for workers in (0, 2):
        with pytest.raises(InputError) as error:
            list(loader(Files(broken=[5]), workers=workers).steps(0, 2))
        assert str(error.value).startswith(message)
        assert str(error.value).endswith("; bad_images=skip leaves such images out")


def test_bad_images_can_be_left_out() -> None:
    source = Files(broken=[5, 17])
    runs = [loader(source, "inception_crop(24)|flip", workers=n, bad_images="skip") for n in (0, 2)]
    batches = [list(run.steps(0, 2)) for run in runs]
    assert_same(*batches)
    assert all(len(batch["image"]) == 48 for batch in batches[0])
    assert set(runs[0].bad) == set(runs[1].bad) == {"photo-5.jpg", "photo-17.jpg"}


def test_nothing_but_bad_images_ends() -> None:
    with pytest.raises(InputError, match="100 images in a row can't be read"):
        loader(Files(8, broken=range(8)), "resize(8)", batch_size=8, bad_images="skip")[0]


def test_a_worker_that_dies_is_reported_with_its_image() -> None:
    with pytest.raises(InputError) as error:
        list(loader(Files(deadly=7), "resize(8)", workers=1).steps(0, 2))
    assert str(error.value) == "a data worker died; the workers were on: photo-7.jpg"


def test_images_of_different_sizes_need_a_crop() -> None:
    with pytest.raises(InputError, match="images of different sizes, .* can't form a batch"):
        loader(Files(), "flip", workers=0)[0]


def test_a_batch_is_shared_in_whole_groups() -> None:
    with pytest.raises(InputError) as error:
        loader(Pixels(), "cutmix(1.0)", batch_size=40, ranks=2)
    assert str(error.value) == "a batch of 40 can't be shared by 2 ranks in whole groups of 8"


def test_decoded_images_are_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Files(24)
    kept = loader(source, "inception_crop(24)|flip", batch_size=24, cache="ram", workers=0)
    expected = loader(source, "inception_crop(24)|flip", batch_size=24, workers=0)[1]
    monkeypatch.setattr(source, "read", None)
    assert_same([kept[1]], [expected])


def test_waiting_is_measured() -> None:
    run = loader(Pixels(), "flip")
    list(run.steps(0, 2))
    assert 0 < run.waited_seconds < 10


@settings(deadline=None, max_examples=20)
@given(
    count=st.integers(1, 130), batch_size=st.integers(1, 70), ranks=st.integers(1, 4), memory=st.booleans()
)
def test_evaluation_sees_every_image_once(count: int, batch_size: int, ranks: int, memory: bool) -> None:
    source: Source = Pixels(count) if memory else Files(count)
    seen = []
    for rank in range(ranks):
        batches = EvaluationLoader(
            source, parse_pipeline("resize(8)"), batch_size=batch_size, rank=rank, ranks=ranks, workers=0
        )
        shares = [batch["index"].tolist() for batch in batches]
        assert len(shares) == len(batches) and all(len(share) <= batch_size for share in shares)
        seen += [index for share in shares for index in share]
    assert seen == list(range(count))


def test_evaluation_gives_images_with_their_labels() -> None:
    source = Files(CHUNK * 2 + 5)
    pipeline = parse_pipeline("resize_small(32)|central_crop(24)")
    alone, workers = (
        list(EvaluationLoader(source, pipeline, batch_size=50, workers=count)) for count in (0, 2)
    )
    assert_same(alone, workers)
    labels = torch.cat([batch["label"] for batch in alone])
    assert labels.tolist() == source.labels.tolist()


def test_evaluation_refuses_augmentation() -> None:
    with pytest.raises(InputError, match="evaluation takes crops and resizes only"):
        EvaluationLoader(Pixels(), parse_pipeline("flip"), batch_size=4)


def test_a_folder_of_photos(tmp_path: Path) -> None:
    """The whole way: files in a folder, opened by their spec."""
    source = photo_folder(tmp_path, 20)
    batch = loader(source, "inception_crop(24)|flip", batch_size=20, workers=0)[0]
    assert batch["image"].shape == (20, 3, 24, 24)
    assert sorted(batch["label"].tolist()) == sorted(source.labels.tolist())
