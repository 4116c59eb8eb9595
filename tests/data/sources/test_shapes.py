"""Scenes of shapes are the same everywhere, fast to make, and hard in the way they promise."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from vitkit.data.draws import Draw
from vitkit.data.sources.shapes import LABELS, SHAPES, SPAN, SPLITS, Shapes, _many_things
from vitkit.errors import InputError

# SHA-256 of images 0, 1 and a distant one, 40 pixels wide: whoever changes a scene changes everyone's data set.
DIGESTS = {
    "class": "01afa787cba362a1",
    "count": "f43253e1adf3ead8",
    "x": "0ffff34932058638",
    "orientation": "95c2401ed5b95403",
    "distance": "84a7d11fae13098e",
}
DIGEST = """
import hashlib, numpy, vitkit.data.sources.shapes as shapes
for label in shapes.LABELS:
    images = shapes.Shapes("val", label, size=40, count=1).render(numpy.array([0, 1, 10**12]))
    print(label, hashlib.sha256(images.tobytes()).hexdigest()[:16])
"""


@pytest.mark.parametrize("label", LABELS)
@settings(max_examples=8)
@given(
    indices=st.lists(st.integers(0, SPAN - 1) | st.integers(0, 99), min_size=1, max_size=90),
    size=st.integers(8, 50),
)
def test_an_image_is_the_same_in_any_batch(label: str, indices: list[int], size: int) -> None:
    shapes = Shapes("train", label, size, count=1)
    images = shapes.render(np.array(indices))
    assert images.dtype == np.uint8 and images.shape == (len(indices), size, size, 3)
    for place in {0, len(indices) // 2, len(indices) - 1}:
        assert np.array_equal(images[place], shapes.read(indices[place]))


def test_images_are_the_same_in_any_process_and_release() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True
    ).stdout
    assert dict(line.split() for line in printed.splitlines()) == DIGESTS


@pytest.mark.parametrize("label", LABELS)
def test_a_scene_is_the_same_at_any_size(label: str) -> None:
    indices = np.arange(40)
    small = Shapes("test", label, 32).render(indices) / 255
    large = Shapes("test", label, 128).render(indices).reshape(-1, 32, 4, 32, 4, 3).mean(axis=(2, 4)) / 255
    noise = 0.1 / 12**0.5
    assert np.sqrt(((small - large) ** 2).mean()) < 2 * noise
    others = np.sqrt(((small - large[::-1]) ** 2).mean())
    assert others > 5 * noise


def test_splits_share_no_image_and_have_no_end() -> None:
    seen: set[str] = set()
    for split, length in SPLITS.items():
        shapes = Shapes(split)
        assert len(shapes) == len(shapes.labels) == length and shapes.images is None
        images = shapes.render(np.r_[0:50, length : length + 50, SPAN - 50 : SPAN])
        seen |= {hashlib.sha256(image.tobytes()).hexdigest() for image in images}
    assert len(seen) == 3 * 150
    with pytest.raises(IndexError):
        shapes.read(-1)
    with pytest.raises(IndexError):
        shapes.render(np.array([SPAN]))


def test_all_is_every_split() -> None:
    whole = Shapes("all", "count")
    parts = [Shapes(split, "count") for split in SPLITS]
    assert np.array_equal(whole.labels, np.concatenate([part.labels for part in parts]))
    images = whole.render(np.array([49_999, 50_000, 54_999, 55_000, 64_999]))
    expected = [
        parts[0].read(49_999),
        parts[1].read(0),
        parts[1].read(4_999),
        parts[2].read(0),
        parts[2].read(9_999),
    ]
    assert np.array_equal(images, np.stack(expected))


def test_the_number_of_images_changes_none() -> None:
    short, long = Shapes("train", "x", count=10), Shapes("train", "x")
    assert len(short) == 10 and np.array_equal(short.labels, long.labels[:10])
    assert np.array_equal(short.render(np.arange(20)), long.render(np.arange(20)))
    assert np.array_equal(short.labels_of(np.arange(30, 40)), long.labels[30:40])
    assert short.render(np.arange(0)).shape == (0, 32, 32, 3)


@pytest.mark.parametrize(
    ("label", "classes"), [("class", 10), ("count", 8), ("x", 16), ("orientation", 16), ("distance", 6)]
)
def test_classes_are_balanced(label: str, classes: int) -> None:
    shapes = Shapes("train", label)
    counts = np.bincount(shapes.labels, minlength=classes)
    assert shapes.num_classes == len(set(shapes.class_names)) == len(counts) == classes
    assert shapes.labels.dtype == np.int64
    assert counts.min() > 0.93 * counts.mean() and counts.max() < 1.07 * counts.mean()


def test_class_names_say_what_they_hold() -> None:
    assert Shapes("val", "class").class_names[:3] == ("disc", "ring", "square")
    assert Shapes("val", "count").class_names == ("1", "2", "3", "4", "5", "6", "7", "8")
    assert Shapes("val", "x").class_names[-1] == "0.828-0.875"
    assert Shapes("val", "orientation").class_names[1] == "22.5 degrees"
    assert Shapes("val", "distance").class_names[::5] == ("1.00-1.14", "2.67-4.00")


def test_things_to_count_neither_touch_nor_leave_the_image() -> None:
    number = np.arange(2000)
    *_, things = _many_things(Draw(0, 0, number), np.full((2000, 1), 7), np.full((2000, 1), 0.5))
    assert (things.shown.sum(axis=1) == 8).all()
    apart = np.hypot(*(place[:, :, None] - place[:, None] for place in (things.x, things.y)))
    reach = things.radius[:, :, None] + things.radius[:, None]
    assert (apart + 9 * np.eye(8) > reach).all()
    assert things.radius.min() > 0.04 and np.quantile(things.radius, 0.01) > 0.07
    for place in (things.x, things.y):
        assert (place - things.radius > -0.01).all() and (place + things.radius < 1.01).all()


def inside(name: str, turn: float = 0.0) -> np.ndarray:
    """Which points of a square of side 2.4 a shape holds after a turn."""
    v, u = np.mgrid[1.2:-1.2:241j, -1.2:1.2:241j]
    cos, sin = np.cos(2 * np.pi * turn), np.sin(2 * np.pi * turn)
    return SHAPES[name](u * cos - v * sin, u * sin + v * cos) < 0


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    return (one & other).sum() / (one | other).sum()


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_fill_the_unit_circle(name: str) -> None:
    v, u = np.mgrid[1.2:-1.2:241j, -1.2:1.2:241j]
    shape = inside(name)
    assert not shape[u * u + v * v > 1.02].any()
    assert 0.3 < shape.sum() / (u * u + v * v < 1).sum() < 0.75


@pytest.mark.slow
def test_shapes_differ() -> None:
    for one, other in itertools.combinations(SHAPES, 2):
        assert max(overlap(inside(one), inside(other, turn / 48)) for turn in range(48)) < 0.93


@pytest.mark.parametrize(
    ("name", "fold"),
    [
        ("square", 4),
        ("cross", 4),
        ("triangle", 3),
        ("hexagon", 6),
        ("star", 5),
        ("heart", 1),
        ("crescent", 1),
        ("arrow", 1),
    ],
)
def test_orientation_is_defined_up_to_a_shapes_symmetry(name: str, fold: int) -> None:
    for turn in range(1, 16 * fold):
        same = overlap(inside(name), inside(name, turn / 16 / fold))
        assert (same > 0.97) == (turn % 16 == 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            dict(split="tset"),
            "shapes has no split 'tset'; did you mean 'test'? expected train, val, test, all",
        ),
        (
            dict(label="orientaton"),
            "shapes has no label 'orientaton'; did you mean 'orientation'? expected class, count, x, orientation, distance",
        ),
        (dict(label="hue"), "shapes has no label 'hue'; expected class, count, x, orientation, distance"),
        (dict(size=4), "shapes can't be 4 pixels wide; expected size=8 to size=4096"),
        (dict(count=0), "shapes can't have 0 images; expected count=1 or more"),
    ],
)
def test_errors(arguments: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        Shapes(**arguments)
    assert str(error.value) == message


def score_of_logistic_regression(label: str, num_train: int, num_test: int) -> float:
    train, test = Shapes("train", label, count=num_train), Shapes("test", label, count=num_test)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1e-4, tol=1e-3, max_iter=500))
    model.fit(train.render(np.arange(num_train)).reshape(num_train, -1).astype(np.float32), train.labels)
    return model.score(test.render(np.arange(num_test)).reshape(num_test, -1).astype(np.float32), test.labels)


def test_pixels_alone_do_not_tell_the_class() -> None:
    assert score_of_logistic_regression("class", 2000, 1000) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_pixels_alone_do_not_tell_the_label(label: str) -> None:
    assert score_of_logistic_regression(label, 8000, 2000) < 0.5


def score_of_network(label: str, num_train: int, epochs: int, width: int) -> float:
    """Train four convolutions for a minute or so and return the share of test images they get right."""
    torch.manual_seed(0)
    train, test = Shapes("train", label, count=num_train), Shapes("test", label, count=2000)

    def images(source: Shapes) -> torch.Tensor:
        pixels = torch.from_numpy(source.render(np.arange(len(source)))).permute(0, 3, 1, 2)
        return (pixels / 255 - 0.5) / 0.25

    layers: list[nn.Module] = []
    for source, target in itertools.pairwise([3, width, 2 * width, 4 * width]):
        layers += [
            nn.Conv2d(source, target, 3, padding=1),
            nn.BatchNorm2d(target),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    layers += [nn.Conv2d(4 * width, 4 * width, 3, padding=1), nn.BatchNorm2d(4 * width), nn.ReLU()]
    layers += [nn.Flatten(), nn.Linear(4 * width * 16, train.num_classes)]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    inputs, labels = images(train), torch.from_numpy(train.labels)
    steps = epochs * (num_train // 128)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for order in (torch.randperm(num_train) for _ in range(epochs)):
        for batch in order[: num_train // 128 * 128].split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        answers = torch.cat([model(part).argmax(dim=1) for part in images(test).split(500)])
    return (answers == torch.from_numpy(test.labels)).float().mean().item()


@pytest.mark.slow
def test_a_small_network_tells_the_class() -> None:
    assert score_of_network("class", 16_000, epochs=6, width=24) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "least"), [("count", 0.4), ("x", 0.6), ("orientation", 0.5), ("distance", 0.7)]
)
def test_a_small_network_tells_the_label(label: str, least: float) -> None:
    assert score_of_network(label, 8000, epochs=4, width=16) > least


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_a_core_makes_5000_images_a_second(label: str) -> None:
    shapes = Shapes("train", label, 32, count=1)
    seconds = []
    for start in range(0, 40 * 256, 256):
        before = time.process_time()
        shapes.render(np.arange(start, start + 256))
        seconds.append(time.process_time() - before)
    assert 256 / min(seconds) > 5000
