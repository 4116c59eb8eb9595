"""Batches by step: the same bits whatever the workers and ranks, every image where it belongs."""

from __future__ import annotations

import inspect
import io
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitkit import InputError
from vitkit.data.loader import CHUNK, Batch, EvaluationLoader, Loader
from vitkit.data.open import open_data
from vitkit.data.pipeline import IMAGE_STEPS, batch_steps, mix_steps, parse_pipeline
from vitkit.data.sources.source import Picture, Source

TRAIN = "inception_crop(24)|flip|randaugment(2,10)|erase(0.5)|mix(0.8,1.0)"


class Files(Source):
    """Small photos as JPEG bytes; some may be broken, and reading one may kill the process or fail as a disk does."""

    name, split, class_names = "photos", "train", ("a", "b", "c")

    def __init__(
        self,
        count: int = 90,
        broken: Iterable[int] = (),
        deadly: int = -1,
        failing: int = -1,
        one_size: bool = False,
    ) -> None:
        self.labels = np.arange(count) % 3
        self.broken, self.deadly, self.failing = frozenset(broken), deadly, failing
        random = np.random.default_rng(0)
        self.files = []
        for number in range(count):
            pixels = random.integers(0, 256, (4, 5, 3), np.uint8)
            size = (40, 36) if one_size else (40 + number % 7, 36 + number % 5)
            image = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=90)
            self.files.append(buffer.getvalue())

    def read(self, index: int) -> Picture:
        if index == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == self.failing:
            raise OSError(5, "Input/output error")
        return b"no image" if index in self.broken else self.files[index]

    def where(self, index: int) -> str:
        return f"photo-{index}.jpg"


class Pixels(Source):
    """Images in memory."""

    name, split, class_names = "pixels", "train", tuple("abcdefghij")

    def __init__(self, count: int = 200, side: int = 16) -> None:
        self.labels = np.arange(count) % 10
        self.images = np.random.default_rng(1).integers(0, 256, (count, side, side, 3), np.uint8)


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


@pytest.mark.slow
def test_workers_may_be_spawned(tmp_path: Path) -> None:
    source = photo_folder(tmp_path, 40)
    expected = [loader(source, workers=0, batch_size=16)[0]]
    assert_same(expected, loader(source, workers=1, batch_size=16, start_method="spawn").steps(0, 1))


@pytest.mark.parametrize(("source", "workers"), [(Files(), 0), (Files(), 1), (Pixels(), 0)])
def test_ranks_put_together_are_one_process(source: Source, workers: int) -> None:
    pipeline = TRAIN if isinstance(source, Files) else "pad_crop(2)|flip|randaugment(2,10)|cutmix(1.0)"
    whole = loader(source, pipeline, workers=0)
    halves = [loader(source, pipeline, workers=workers, rank=rank, ranks=2).steps(6, 8) for rank in (0, 1)]
    for step, parts in zip((6, 7), zip(*halves, strict=True), strict=True):
        for name in ("image", "label"):
            assert torch.equal(whole[step][name], torch.cat([part[name] for part in parts]))


def test_a_thread_that_prepares_ahead_changes_nothing() -> None:
    source = Pixels()
    alone, beside = loader(source), loader(source)
    beside.prepares_ahead = True
    together = alone._together()
    assert_same(alone.steps(1, 2 * together + 3), beside.steps(1, 2 * together + 3))
    assert list(beside.steps(4, 4)) == []


def test_an_error_in_the_thread_that_prepares_ahead_arrives() -> None:
    beside = loader(Pixels(), "random_crop(17)", batch_size=8)
    beside.prepares_ahead = True
    with pytest.raises(InputError, match="random_crop"):
        next(beside.steps(0, 100))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_global_generator_stays_as_it_is(workers: int) -> None:
    before = torch.get_rng_state()
    list(loader(Files(), workers=workers).steps(0, 1))
    list(EvaluationLoader(Files(5), parse_pipeline("resize(8)"), batch_size=5, workers=workers))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("side", "pipeline", "together"),
    [
        (32, "pad_crop(4)|flip", 4096),
        (8, "flip", 4096),
        (64, "flip", 1024),
        (32, "resize(128)", 256),
        (64, "random_crop(32)", 1024),
    ],
)
def test_fewer_large_images_are_augmented_at_once(
    side: int, pipeline: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, counts = loader(Pixels(8, side), pipeline, batch_size=16), []

    def prepare(steps: range) -> list[Batch]:
        counts.append(16 * len(steps))
        return [{}] * len(steps)

    monkeypatch.setattr(run, "_prepare", prepare)
    assert len(list(run.steps(0, 300))) == 300
    assert counts[0] == together


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


def test_multi_label_come_as_numbers_for_each_class() -> None:
    source = Pixels(20)
    source.labels = np.random.default_rng(0).random((20, 10)) < 0.3
    batch = loader(source, "flip", batch_size=10)[0]
    assert batch["label"].dtype == torch.float32 and batch["label"].shape == (10, 10)


def test_a_bad_image_can_be_an_error_that_names_it() -> None:
    message = "cannot read photo-5.jpg: it is not an image in a known format"
    for workers in (0, 2):
        with pytest.raises(InputError) as error:
            list(loader(Files(broken=[5]), workers=workers, bad_images="error").steps(0, 2))
        assert str(error.value).startswith(message)
        assert str(error.value).endswith("; bad_images='skip' skips unreadable images")


def test_bad_images_are_skipped_in_silence() -> None:
    source = Files(broken=[5, 17])
    settings = ({"workers": 0}, {"workers": 2}, {"workers": 0, "cache": "ram"})
    runs = [loader(source, "inception_crop(24)|flip", **one) for one in settings]
    with warnings.catch_warnings(action="error"):
        batches = [list(run.steps(0, 2)) for run in runs]
    assert_same(batches[0], batches[1])
    assert_same(batches[0], batches[2])
    assert all(len(batch["image"]) == 48 for batch in batches[0])
    for run in runs:
        assert {index: entry.image for index, entry in run.bad.items()} == {
            5: "photo-5.jpg",
            17: "photo-17.jpg",
        }


def test_bad_images_on_the_device_give_way_to_the_same_others() -> None:
    source = Files(broken=[5, 17], one_size=True)
    kept, read = (loader(source, "resize(8)", cache=cache, workers=0) for cache in ("device", "none"))
    for ours, theirs in zip(kept.steps(0, 4), read.steps(0, 4), strict=True):
        assert ours["label"].tolist() == theirs["label"].tolist()
        assert (ours["image"].float() - theirs["image"].float()).abs().max() <= 1
    assert kept.bad == read.bad and {*kept.bad} == {5, 17}
    measured = EvaluationLoader(kept.source, "resize(8)", batch_size=40)
    assert [index for batch in measured for index in batch["index"].tolist()] == [
        index for index in range(90) if index not in (5, 17)
    ]
    assert measured.bad == read.bad


def test_too_many_bad_images_end_training_and_any_number_may_be_allowed() -> None:
    source = Files(broken=range(10))
    with pytest.raises(InputError) as error:
        list(loader(source, "resize(8)", workers=0).steps(0, 4))
    assert str(error.value) == (
        "10 of 90 images of photos:train can't be read, so results would mislead: photo-0.jpg (it is not an image in a "
        "known format), photo-1.jpg (it is not an image in a known format), photo-2.jpg (it is not an image in a known "
        "format) and 7 more; repair these files, or continue without them: bad_images='any'"
    )
    accepted = loader(source, "resize(8)", workers=0, bad_images="any")
    assert len(list(accepted.steps(0, 4))) == 4 and len(accepted.bad) == 10


def test_a_class_without_a_readable_image_ends_training_and_balanced_sampling_can_do_without_it() -> None:
    source = Files(9, broken=[])
    source.labels = np.array([0] * 4 + [1] * 4 + [2])
    source.broken = frozenset([8])
    settings: dict[str, Any] = {"workers": 0, "batch_size": 9, "sampling": "balanced"}
    with pytest.raises(InputError, match="^no image of class 'c' of photos:train can be read, so results"):
        list(loader(source, "resize(8)", **settings).steps(0, 2))
    for batch in loader(source, "resize(8)", bad_images="any", **settings).steps(0, 2):
        assert {*batch["label"].tolist()} == {0, 1}
    source.may_lack_classes = True
    assert len(list(loader(source, "resize(8)", **settings).steps(0, 2))) == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_disk_that_fails_is_an_error_that_names_the_image(workers: int) -> None:
    source = Files(failing=5)
    message = (
        "cannot read photo-5.jpg: [Errno 5] Input/output error; bad_images='skip' skips unreadable images"
    )
    with pytest.raises(InputError) as error:
        list(loader(source, "resize(8)", workers=workers, bad_images="error").steps(0, 2))
    assert str(error.value) == message
    assert len(list(loader(source, "resize(8)", workers=workers).steps(0, 2))) == 2
    batches = EvaluationLoader(
        source, parse_pipeline("resize(8)"), batch_size=50, workers=workers, bad_images="error"
    )
    with pytest.raises(InputError) as error:
        list(batches)
    assert str(error.value) == message


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_skipped_where_they_are_measured(workers: int) -> None:
    """A part, and a whole batch, may have none that can be read."""
    bad = [5, *range(32, 64), *range(80, 120)]
    batches = EvaluationLoader(Files(130, broken=bad), "resize(8)", batch_size=40, workers=workers)
    found = [batch["index"].tolist() for batch in batches]
    assert found == [[*range(5), *range(6, 32)], [*range(64, 80)], [*range(120, 130)]]
    assert [*batches.bad] == bad
    with pytest.raises(InputError, match="^73 of 130 images of photos:train can't be read, so results"):
        batches.judge(batches.bad)
    with pytest.raises(InputError, match="bad_images is 'skp'; did you mean 'skip'?"):
        EvaluationLoader(Files(2), "resize(8)", batch_size=2, bad_images="skp")  # type: ignore[arg-type]


def test_a_crop_that_is_too_large_is_no_bad_image() -> None:
    with pytest.raises(InputError) as error:
        loader(Files(), "central_crop(64)", workers=0, bad_images="skip")[0]
    assert re.fullmatch(
        r"photo-\d+.jpg: central_crop\(64x64\) needs larger images than \d+x\d+: put resize_small before it",
        str(error.value),
    )


def test_nothing_but_bad_images_ends() -> None:
    with pytest.raises(InputError, match="100 images in a row can't be read"):
        loader(Files(8, broken=range(8)), "resize(8)", batch_size=8, bad_images="skip")[0]


def test_a_worker_that_dies_is_reported_with_its_image() -> None:
    with pytest.raises(InputError) as error:
        list(loader(Files(deadly=7), "resize(8)", workers=1).steps(0, 2))
    assert str(error.value) == "a data worker died; the workers were on: photo-7.jpg"


class Deadly(Files):
    """Photos that kill the process that renders them."""

    def render(self, indices: np.ndarray) -> np.ndarray | None:
        os.kill(os.getpid(), signal.SIGKILL)
        return None


def test_a_worker_that_dies_while_it_renders_is_reported() -> None:
    batches = EvaluationLoader(Deadly(), parse_pipeline("resize(8)"), batch_size=8, workers=1)
    with pytest.raises(InputError) as error:
        next(iter(batches))
    assert str(error.value) == "a data worker died; the workers were on: photo-0.jpg"


def test_workers_end_with_an_error_even_while_its_traceback_is_kept() -> None:
    with pytest.raises(InputError) as error:
        list(loader(Files(broken=[5]), workers=2, bad_images="error").steps(0, 9))
    assert error.value and not multiprocessing.active_children()


@pytest.mark.slow
def test_a_program_that_takes_some_batches_ends() -> None:
    code = (
        "from tests.data.test_loader import Files, loader; batches = loader(Files(), 'resize(8)', workers=2)"
    )
    code += ".steps(0, 99); print(next(batches)['image'].shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "8, 8])" in done.stdout


def test_images_of_different_sizes_need_a_crop() -> None:
    with pytest.raises(InputError, match="images of different sizes, .* can't form a batch"):
        loader(Files(), "flip", workers=0)[0]


class TwoSizes(Pixels):
    """Images of one size up to some place, and of another from there on."""

    def __init__(self, count: int, change: int) -> None:
        super().__init__(count)
        self.pictures, self.images = list(self.images), None  # type: ignore[assignment]
        self.pictures[change:] = [picture[:8] for picture in self.pictures[change:]]

    def read(self, index: int) -> Picture:
        return self.pictures[index]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("change", [CHUNK, 2 * CHUNK])
def test_batches_of_different_sizes_need_a_crop(change: int, workers: int) -> None:
    batches = EvaluationLoader(
        TwoSizes(4 * CHUNK, change), parse_pipeline(""), batch_size=2 * CHUNK, workers=workers
    )
    with pytest.raises(InputError, match="images of different sizes, 16x16 and 8x16, .* resize\\(SIZE\\)"):
        list(batches)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"sampling": "balance"},
            "sampling is 'balance'; did you mean 'balanced'? expected one of shuffle, balanced",
        ),
        ({"cache": "disk"}, "cache is 'disk'; expected one of none, ram, device"),
        (
            {"bad_images": "skipp"},
            "bad_images is 'skipp'; did you mean 'skip'? expected one of skip, error, any",
        ),
        ({"rank": 2, "ranks": 2}, "rank is 2 of 2 ranks; expected 0 to 1"),
        ({"rank": -1}, "rank is -1 of 1 ranks; expected 0 to 0"),
        ({"workers": -1}, "workers must be at least 0, not -1"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"device": "gpu"}, "device is 'gpu'; expected cpu, cuda or mps"),
        ({"group": 0}, "group is 0; images are mixed in groups of 2 or more"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        loader(Pixels(), "cutmix(1.0)", **settings)
    assert str(error.value) == message
    if not settings.keys() & {"sampling", "cache", "bad_images", "group", "seed"}:
        with pytest.raises(InputError) as error:
            EvaluationLoader(Pixels(), parse_pipeline(""), **({"batch_size": 4} | settings))
        assert str(error.value) == message


def test_a_batch_is_shared_in_whole_groups() -> None:
    with pytest.raises(InputError) as error:
        loader(Pixels(), "cutmix(1.0)", batch_size=40, ranks=2)
    words = (
        "into whole groups of 8, which mix among themselves: change batch_size or group (data.group in a run)"
    )
    assert str(error.value) == f"a batch of 40 can't be cut for each of 2 ranks {words}"
    with pytest.raises(InputError) as error:
        loader(Pixels(), "mixup(0.2)", batch_size=12)
    assert str(error.value) == f"a batch of 12 can't be cut {words}"
    with pytest.raises(InputError) as error:
        loader(Pixels(), "flip", batch_size=3, ranks=2)
    assert str(error.value) == "a batch of 3 can't be cut for each of 2 ranks into whole images"


def test_a_loader_is_gone_through_by_steps() -> None:
    one = loader(Pixels(200), "flip", batch_size=48)
    assert one.steps_per_epoch == 5
    with pytest.raises(InputError) as error:
        list(one)
    assert str(error.value) == (
        "a loader has no last batch: use loader.steps(start, stop), one epoch is "
        "loader.steps(0, loader.steps_per_epoch), here 5 steps"
    )
    for wrong in (lambda: one[-1], lambda: list(one.steps(-2, 1)), lambda: list(one.steps(3, 1))):
        with pytest.raises(InputError, match="steps count up from 0"):
            wrong()
    assert list(one.steps(3, 3)) == []


def test_a_pipeline_may_be_a_string() -> None:
    text = "resize(8)|flip"
    given = Loader(Pixels(), text, batch_size=4)[0]["image"]
    assert torch.equal(given, Loader(Pixels(), parse_pipeline(text), batch_size=4)[0]["image"])
    assert len(list(EvaluationLoader(Pixels(10), "resize(8)", batch_size=4))) == 3


@pytest.mark.parametrize("one_size", [False, True])
def test_decoded_images_are_kept_in_memory(one_size: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Files(24, one_size=one_size)
    kept = loader(source, "inception_crop(24)|flip", batch_size=24, cache="ram", workers=0)
    expected = loader(source, "inception_crop(24)|flip", batch_size=24, workers=0)[1]
    monkeypatch.setattr(source, "read", None)
    assert_same([kept[1]], [expected])


def test_waiting_is_measured() -> None:
    """Time in which a batch is prepared counts, and time in which the caller is at work doesn't."""
    run = loader(Pixels(), "flip", batch_size=4096)
    prepare = run._prepare

    def slowly(steps: range) -> list[Batch]:
        time.sleep(0.05)
        return prepare(steps)

    run._prepare = slowly  # type: ignore[method-assign]
    began, worked = time.perf_counter(), 0.0
    for _ in run.steps(0, 3):
        start = time.perf_counter()
        time.sleep(0.05)
        worked += time.perf_counter() - start
    total = time.perf_counter() - began
    assert 0.15 <= run.waited_seconds <= total - worked


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


@pytest.mark.parametrize("step", ["flip", "inception_crop(8)", "random_crop(8)", "mixup(0.2)"])
def test_evaluation_refuses_what_is_random(step: str) -> None:
    with pytest.raises(InputError) as error:
        EvaluationLoader(Pixels(), step, batch_size=4)
    name = step.partition("(")[0]
    assert str(error.value).startswith(
        f"evaluation only takes the steps resize, resize_small, central_crop, not {name}; the pipeline is"
    )


def test_a_folder_of_photos(tmp_path: Path) -> None:
    """The whole way: files in a folder, opened by their spec."""
    source = photo_folder(tmp_path, 20)
    batch = loader(source, "inception_crop(24)|flip", batch_size=20, workers=0)[0]
    assert batch["image"].shape == (20, 3, 24, 24)
    assert sorted(batch["label"].tolist()) == sorted(source.labels.tolist())


def test_the_page_on_loading_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "loader.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/loader.md", "exec"), names)
    assert names["labels"].shape == (128, 10) and torch.equal(
        names["again"]["image"], names["loader"][7]["image"]
    )
    assert capsys.readouterr().out.count("torch.Size([100, 3, 32, 32])") == 3


def test_the_page_on_loading_names_every_step_and_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "loader.md").read_text(encoding="utf-8")
    steps = IMAGE_STEPS | batch_steps() | mix_steps()
    settings = list(inspect.signature(Loader).parameters)[2:]
    for name in (*steps, *(name for name in settings if name != "device")):
        assert re.search(rf"`{name}[`(]", page), name
