"""Each policy chooses as published: operations, strengths and directions, image by image."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from timm.data import auto_augment
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import autoaugment as torchvision_policies

from vitkit.data import policies
from vitkit.data.draws import Draw
from vitkit.data.operations import Assignment
from vitkit.errors import InputError

PHOTOS = load_sample_images().images
SIZE = 40
STRING = "rand-m9-mstd0.5-inc1"


def photos(count: int) -> Tensor:
    """Different crops of two photos: uint8 (count, 3, 40, 40)."""
    places = np.random.default_rng(0)
    found = []
    for number in range(count):
        photo = PHOTOS[number % 2]
        top, left = places.integers(300), places.integers(500)
        found.append(
            np.asarray(Image.fromarray(photo[top : top + 100, left : left + 100]).resize((SIZE, SIZE)))
        )
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).contiguous()


def to_picture(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def levels_apart(ours: Tensor, reference: Image.Image) -> np.ndarray:
    return (ours.int() - torch.from_numpy(np.array(reference)).permute(2, 0, 1).int()).abs().numpy()


def a_draw(count: int, first: int = 0, seed: int = 0) -> Draw:
    return Draw(seed, 0, np.arange(first, first + count, dtype=np.int64))


def recorded(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> list[list[Assignment]]:
    """Return the parts that a policy asks for, layer by layer."""
    calls: list[list[Assignment]] = []

    def record(images: Tensor, parts: list[Assignment], fill: object) -> Tensor:
        calls.append([part for part in parts if len(part.rows)])
        return images

    with monkeypatch.context() as patch:
        patch.setattr(policies, "apply", record)
        run()
    return calls


POLICIES: dict[str, Callable[[Tensor, Draw], Tensor]] = {
    "randaugment": policies.randaugment,
    "randaugment(3,20)": lambda images, draw: policies.randaugment(images, draw, 3, 20),
    "timm": policies.timm_randaugment,
    "timm nearest": lambda images, draw: policies.timm_randaugment(
        images, draw, "rand-m15-mmax20-n3", "nearest"
    ),
    "autoaugment cifar10": lambda images, draw: policies.autoaugment(images, draw, "cifar10"),
    "autoaugment imagenet": lambda images, draw: policies.autoaugment(images, draw, "imagenet"),
    "trivialaugment": policies.trivialaugment,
}


@pytest.mark.parametrize("name", POLICIES)
def test_image_depends_on_its_position_alone(name: str) -> None:
    images, policy = photos(64), POLICIES[name]
    before = images.clone()
    whole = policy(images, a_draw(64))
    assert torch.equal(images, before)
    assert torch.equal(
        whole, torch.cat([policy(images[:21], a_draw(21)), policy(images[21:], a_draw(43, 21))])
    )
    assert torch.equal(whole, policy(images, a_draw(64)))
    alone = [policy(images[i : i + 1], a_draw(1, i)) for i in range(0, 64, 7)]
    assert torch.equal(whole[::7], torch.cat(alone))
    backwards = Draw(0, 0, np.arange(64)[::-1].copy())
    assert torch.equal(whole.flip(0), policy(images.flip(0), backwards))
    assert not torch.equal(whole, policy(images, a_draw(64, seed=1)))
    assert not torch.equal(whole, policy(images, a_draw(64, 64)))
    assert whole.shape == images.shape and whole.dtype == torch.uint8


@pytest.mark.parametrize("name", POLICIES)
def test_grey_images_pass(name: str) -> None:
    images = photos(32)[:, :1]
    assert POLICIES[name](images, a_draw(32)).shape == images.shape


@pytest.mark.gpu
@pytest.mark.parametrize("name", POLICIES)
def test_gpu_agrees(name: str) -> None:
    images = photos(256)
    ours, theirs = POLICIES[name](images, a_draw(256)), POLICIES[name](images.cuda(), a_draw(256)).cpu()
    # A second operation may magnify one level of the first: AutoContrast, Equalize.
    assert ((ours.int() - theirs.int()).abs() <= 1).float().mean() >= 0.995


# RandAugment's amounts at magnitudes 0, 10, 15 and 20 (big_vision's autoaugment.py); what has no entry here has none there.
AMOUNTS: dict[str, tuple[float, float, float, float]] = {
    "Rotate": (0, 30, 45, 60),
    "Posterize": (1, 4, 6, 8),
    "Solarize": (0, 256, 384, 512),
    "SolarizeAdd": (0, 110, 165, 220),
    "Color": (0.1, 1.9, 2.8, 3.7),
    "Contrast": (0.1, 1.9, 2.8, 3.7),
    "Brightness": (0.1, 1.9, 2.8, 3.7),
    "Sharpness": (0.1, 1.9, 2.8, 3.7),
    "ShearX": (0, 0.3, 0.45, 0.6),
    "ShearY": (0, 0.3, 0.45, 0.6),
    "TranslateX": (0, 100, 150, 200),
    "TranslateY": (0, 100, 150, 200),
    "Cutout": (0, 40, 60, 80),
    "AutoContrast": (0, 0, 0, 0),
    "Equalize": (0, 0, 0, 0),
    "Invert": (0, 0, 0, 0),
}


@pytest.mark.parametrize(("place", "magnitude"), [(0, 0), (1, 10), (2, 15), (3, 20)])
def test_randaugment_is_the_papers(monkeypatch: pytest.MonkeyPatch, place: int, magnitude: int) -> None:
    images, count = torch.zeros(8000, 3, 9, 7, dtype=torch.uint8), 8000
    layers = recorded(monkeypatch, lambda: policies.randaugment(images, a_draw(count), 2, magnitude))
    assert len(layers) == 2
    for parts in layers:
        assert sorted(np.concatenate([part.rows for part in parts])) == list(range(count))  # one each, always
        assert {part.name for part in parts} == set(AMOUNTS)
        for part in parts:
            assert 400 < len(part.rows) < 600  # 500 are expected, with a deviation of 22
            expected = AMOUNTS[part.name][place]
            if part.name == "Cutout":
                top, left, bottom, right = part.amounts.T
                assert np.array_equal(bottom - top, np.full(len(part.rows), 2 * expected))
                assert np.array_equal(right - left, bottom - top)
                assert set((top + bottom) / 2) == set(range(9)) and set((left + right) / 2) == set(range(7))
                continue
            assert np.allclose(abs(part.amounts), expected)
            signs = (part.amounts > 0).mean()
            assert not expected or (0.4 < signs < 0.6 if part.name in policies.SIGNED else signs == 1)
    first, second = (np.concatenate([[part.name] * len(part.rows) for part in parts]) for parts in layers)
    order = [np.argsort(np.concatenate([part.rows for part in parts])) for parts in layers]
    assert 400 < (first[order[0]] == second[order[1]]).sum() < 600  # layers are independent


def test_randaugment_fills_with_grey() -> None:
    images = torch.zeros(600, 3, 16, 16, dtype=torch.uint8)
    changed = policies.randaugment(images, a_draw(600), 1, 10)  # translations by 100 pixels leave nothing
    grey = (changed == 128).flatten(1).all(dim=1).sum()
    assert 50 < grey < 160  # two translations and a cutout that covers all, of 16


@pytest.mark.parametrize(
    ("size", "layers", "magnitude", "operations"),
    [
        ((32, 32), 2, 10, 3),
        ((32, 32), 1, 3, 0),
        ((41, 41), 1, 10, 2 + (40 / 41) ** 2),  # a box about the first row or column leaves the last
        ((48, 56), 2, 10, 2 + 33 / 48 * 25 / 56),
        ((64, 120), 2, 10, 1),
        ((80, 80), 2, 10, 2 + 1 / 80**2),
        ((224, 224), 2, 10, 0),
    ],
)
def test_what_randaugment_erases(
    size: tuple[int, int], layers: int, magnitude: float, operations: float
) -> None:
    share = policies.erased_share(size, layers, magnitude)
    assert share == pytest.approx(1 - (1 - operations / 16) ** layers)
    count = 100 if share == 0 else 2000
    images = torch.randint(256, (count, 3, *size), dtype=torch.uint8, generator=torch.manual_seed(0))
    changed = policies.randaugment(images, a_draw(count), layers, magnitude).flatten(2)
    erased = (changed.amax(dim=2) == changed.amin(dim=2)).all(dim=1).float().mean()
    assert abs(erased - share) <= 4 * (share * (1 - share) / count) ** 0.5


OPERATION_NAMES = {"TranslateXRel": "TranslateX", "TranslateYRel": "TranslateY"}


@pytest.mark.parametrize("increasing", [False, True])
def test_timms_levels(monkeypatch: pytest.MonkeyPatch, increasing: bool) -> None:
    names = auto_augment._RAND_INCREASING_TRANSFORMS if increasing else auto_augment._RAND_TRANSFORMS
    ours = policies.TIMM_INCREASING if increasing else policies.TIMM_LEVELS
    plain = [OPERATION_NAMES.get(name, name.removesuffix("Increasing")) for name in names]
    assert list(ours) == plain
    magnitudes = np.concatenate([np.arange(0, 10.5, 0.5), [3.3, 8.97, 12.0, 17.0]])
    for sign in (-1.0, 1.0):
        monkeypatch.setattr(auto_augment, "_randomly_negate", lambda value, sign=sign: sign * value)
        for name, mine in zip(names, plain, strict=True):
            level = auto_augment.LEVEL_TO_ARG[name]
            found = ours[mine](magnitudes / 10, np.full(len(magnitudes), sign))
            if level is None:
                assert not found.any()
                continue
            expected = [level(magnitude, {})[0] for magnitude in magnitudes]
            assert np.allclose(found, expected), name


@pytest.mark.parametrize("string", [STRING, "rand-m6-n3-p0.8", "rand-m14-mmax16-mstd2-inc1"])
def test_timm_randaugment_is_timms(monkeypatch: pytest.MonkeyPatch, string: str) -> None:
    """What ours chose, done by timm to the Pillow image, is ours."""
    images, fill = photos(150), (124, 116, 104)
    layers = recorded(monkeypatch, lambda: policies.timm_randaugment(images, a_draw(150), string, fill=fill))
    results = policies.timm_randaugment(images, a_draw(150), string, fill=fill)
    functions = {OPERATION_NAMES.get(name, name): run for name, run in auto_augment.NAME_TO_OP.items()}
    functions |= {"TranslateX": auto_augment.translate_x_abs, "TranslateY": auto_augment.translate_y_abs}
    resample = {"nearest": 0, "bilinear": 2, "bicubic": 3}
    pictures = [to_picture(image) for image in images]
    fragile = set()
    for parts in layers:
        for part in parts:
            for row, amount in zip(part.rows, part.amounts.tolist(), strict=True):
                if part.name == "Posterize" and amount < 1:
                    pictures[row] = Image.new("RGB", (SIZE, SIZE))  # Pillow refuses, and means this
                    continue
                amounts = () if part.name in ("AutoContrast", "Equalize", "Invert") else (amount,)
                if part.name in ("Posterize", "Solarize", "SolarizeAdd"):
                    amounts = (int(amount),)
                options = {"fillcolor": fill, "resample": resample[part.interpolation]}
                pictures[row] = functions[part.name](pictures[row], *amounts, **options)
                if part.name in policies.SIGNED:
                    fragile.add(row)  # these may be a level away, which a later operation magnifies
    apart = [levels_apart(result, picture) for result, picture in zip(results, pictures, strict=True)]
    assert max(levels.max() for row, levels in enumerate(apart) if row not in fragile) == 0
    assert np.mean([apart[row] <= 1 for row in fragile]) > 0.995
    kinds = Counter(part.interpolation for parts in layers for part in parts if part.name in policies.SIGNED)
    assert kinds["bilinear"] > 5 and kinds["bicubic"] > 5 and not kinds["nearest"]


def test_timm_randaugment_draws_as_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 15000
    images = torch.zeros(count, 1, 2, 2, dtype=torch.uint8)
    layers = recorded(
        monkeypatch, lambda: policies.timm_randaugment(images, a_draw(count), STRING, "bilinear")
    )
    for parts in layers:
        assert {part.interpolation for part in parts if part.name in policies.SIGNED} == {"bilinear"}
        chosen = Counter({part.name: 0 for part in parts})
        for part in parts:
            chosen[part.name] += len(part.rows)
        assert len(chosen) == 15 and all(400 < number < 600 for number in chosen.values())  # 1000 halved
        rotations = np.concatenate([part.amounts for part in parts if part.name == "Rotate"]) / 3
        assert abs(rotations).max() <= 10 and 0.4 < (rotations > 0).mean() < 0.6
        magnitudes = abs(rotations)
        assert magnitudes.mean() == pytest.approx(9, abs=0.1) and magnitudes.std() == pytest.approx(
            0.5, abs=0.06
        )
        assert 0 < (magnitudes == 10).mean() < 0.06  # 2.3% lie two deviations above


@pytest.mark.parametrize(
    ("string", "low", "high", "mean"),
    [
        ("rand-m9", 9, 9, 9),
        ("rand-m8-mstd101", 0, 8, 4),
        ("rand-m20-mstd1-mmax30", 15, 25, 20),
        ("rand-m20", 10, 10, 10),
    ],
)
def test_timm_magnitudes(
    monkeypatch: pytest.MonkeyPatch, string: str, low: float, high: float, mean: float
) -> None:
    images = torch.zeros(6000, 1, 2, 2, dtype=torch.uint8)
    layers = recorded(monkeypatch, lambda: policies.timm_randaugment(images, a_draw(6000), string))
    found = (
        np.concatenate([abs(part.amounts) for parts in layers for part in parts if part.name == "Rotate"]) / 3
    )
    assert low - 1e-9 <= found.min() and found.max() <= high + 1e-9
    assert found.mean() == pytest.approx(mean, abs=0.3)


def test_timm_magnitude_matches_timms_own_numbers() -> None:
    random.seed(0)
    operation = auto_augment.AugmentOp("Rotate", 1.0, 9, {"magnitude_std": 0.5})
    theirs: list[float] = []
    operation.level_fn = lambda magnitude, _: theirs.append(magnitude) or (0.0,)
    operation.aug_fn = lambda image, *_, **__: image
    for _ in range(5000):
        operation(None)
    ours = policies._magnitudes(a_draw(5000), policies.parse_timm("rand-m9-mstd0.5-n1"))[:, 0]
    shares = np.linspace(0.01, 0.99, 25)
    assert np.allclose(np.quantile(ours, shares), np.quantile(theirs, shares), atol=0.08)


def test_timm_strings() -> None:
    parse = policies.parse_timm
    assert parse(STRING) == policies.TimmRandAugment(9, 2, 0.5, 0.5, 10, True)
    assert parse("rand") == policies.TimmRandAugment()
    assert parse("rand-inc0-n3-p0.3-mmax20-m12-mstd1.5") == policies.TimmRandAugment(
        12, 3, 0.3, 1.5, 20, False
    )
    assert parse("rand-mstd101").deviation == float("inf")


EXPECTED = "expected rand-SECTION-... with sections m, n, p, mstd, mmax, inc, such as rand-m9-mstd0.5-inc1"


@pytest.mark.parametrize(
    ("string", "message"),
    [
        ("", f"RandAugment string '' starts with ''; {EXPECTED}"),
        ("original", f"RandAugment string 'original' starts with 'original'; {EXPECTED}"),
        ("rand-x9", f"RandAugment string 'rand-x9': unknown section 'x9'; {EXPECTED}"),
        ("rand-tweights", f"RandAugment string 'rand-tweights': unknown section 'tweights'; {EXPECTED}"),
        ("rand-m", f"RandAugment string 'rand-m': unknown section 'm'; {EXPECTED}"),
        (
            "rand-msdt0.5",
            f"RandAugment string 'rand-msdt0.5': unknown section 'msdt0.5'; did you mean 'mstd'?; {EXPECTED}",
        ),
        ("rand-m9.5", "RandAugment string 'rand-m9.5': m takes a whole number, not '9.5'"),
        ("rand-mstd0.5x", "RandAugment string 'rand-mstd0.5x': mstd takes a number, not '0.5x'"),
        ("rand-m9-m8", "RandAugment string 'rand-m9-m8' says m twice"),
        ("rand-p1.5", "RandAugment string 'rand-p1.5': p is a probability, 1.5 is more than 1"),
    ],
)
def test_bad_timm_string(string: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        policies.timm_randaugment(photos(1), a_draw(1), string)
    assert str(error.value) == message


def torchvision_steps(name: str) -> list[Any]:
    policy = torchvision_policies.AutoAugment(torchvision_policies.AutoAugmentPolicy(name)).policies
    return [tuple((operation, p, bin or 0) for operation, p, bin in pair) for pair in policy]


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_autoaugment_tables_are_torchvisions(name: str) -> None:
    assert list(policies.POLICIES[name]) == torchvision_steps(name)


def same_as_torchvision(
    images: Tensor, results: Tensor, layers: list[list[Assignment]], wanted: dict[int, list[Any]]
) -> None:
    """Compare with torchvision's operations on Pillow images: `wanted` holds (name, magnitude) by image."""
    done: dict[int, list[str]] = {row: [] for row in range(len(images))}
    for parts in layers:
        for part in parts:
            for row in part.rows:
                done[row].append(part.name)
    for row, steps in wanted.items():
        assert done[row] == [name for name, _ in steps if name != "Identity"]
        picture = to_picture(images[row])
        for name, magnitude in steps:
            picture = torchvision_policies._apply_op(
                picture, name, magnitude, InterpolationMode.NEAREST, None
            )  # type: ignore[arg-type]
        assert levels_apart(results[row], picture).max() == 0, steps


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_autoaugment_is_torchvisions(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    images, draw = photos(300), a_draw(300)
    layers = recorded(monkeypatch, lambda: policies.autoaugment(images, draw, name))  # type: ignore[arg-type]
    results = policies.autoaugment(images, draw, name)  # type: ignore[arg-type]
    space = torchvision_policies.AutoAugment()._augmentation_space(10, (SIZE, SIZE))
    pairs, whether = draw.uniform("pair")[:, 0], draw.uniform("whether", 2)
    signs = draw.uniform("sign", 2)
    wanted: dict[int, list[Any]] = {}
    for row in range(300):
        wanted[row] = []
        for turn, (operation, probability, place) in enumerate(torchvision_steps(name)[int(pairs[row] * 25)]):
            if whether[row, turn] < probability:
                magnitudes, signed = space[operation]
                magnitude = float(magnitudes[place]) if magnitudes.ndim else 0.0
                wanted[row].append(
                    (operation, -magnitude if signed and signs[row, turn] < 0.5 else magnitude)
                )
    same_as_torchvision(images, results, layers, wanted)
    with pytest.raises(InputError, match="unknown AutoAugment policy 'svhm'; there are cifar10, imagenet"):
        policies.autoaugment(images, draw, "svhm")  # type: ignore[arg-type]


def test_trivialaugment_is_torchvisions(monkeypatch: pytest.MonkeyPatch) -> None:
    images, draw = photos(900), a_draw(900)
    layers = recorded(monkeypatch, lambda: policies.trivialaugment(images, draw))
    results = policies.trivialaugment(images, draw)
    space = torchvision_policies.TrivialAugmentWide()._augmentation_space(31)
    names = list(space)
    operations, strengths = draw.uniform("operation")[:, 0], draw.uniform("strength")[:, 0]
    signs = draw.uniform("sign")[:, 0]
    wanted: dict[int, list[Any]] = {}
    for row in range(900):
        name = names[int(operations[row] * len(names))]
        magnitudes, signed = space[name]
        magnitude = float(magnitudes[int(strengths[row] * 31)]) if magnitudes.ndim else 0.0
        wanted[row] = [(name, -magnitude if signed and signs[row] < 0.5 else magnitude)]
    same_as_torchvision(images, results, layers, wanted)
    chosen = Counter(name for steps in wanted.values() for name, _ in steps)
    assert len(chosen) == 14 and min(chosen.values()) > 35


@pytest.mark.parametrize("bins", [10, 31])
def test_every_strength_is_torchvisions(bins: int) -> None:
    steps, signs = np.arange(bins), np.ones(bins)
    for size in (32, 224):
        if bins == 10:
            space = torchvision_policies.AutoAugment()._augmentation_space(10, (size, 2 * size))
            share = 150 / 331
            ranges = policies.Ranges(10, 0.3, (share * size, share * 2 * size), 30, 0.9, 4)
        else:
            space = torchvision_policies.TrivialAugmentWide()._augmentation_space(31)
            ranges = policies.Ranges(31, 0.99, (32, 32), 135, 0.99, 6)
        for name, (magnitudes, _) in space.items():
            if not magnitudes.ndim:
                continue
            expected = magnitudes.double().numpy()
            if name in ("Brightness", "Color", "Contrast", "Sharpness"):
                expected = 1 + expected
            elif name.startswith("Translate"):
                expected = -np.trunc(expected)
            assert np.array_equal(ranges.amounts(name, steps, signs), expected), name
