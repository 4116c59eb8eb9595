"""Each batched operation gives what Pillow, torchvision or timm gives for one image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_images
from timm.data import auto_augment
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from vitkit.data import operations
from vitkit.data.draws import Draw
from vitkit.data.operations import OPERATIONS, Assignment, apply
from vitkit.errors import InputError

FILL = (10, 128, 200)
RESAMPLE = {"nearest": 0, "bilinear": 2, "bicubic": 3}


PHOTOS = [Image.fromarray(image) for image in load_sample_images().images]


def photo(number: int, height: int, width: int) -> Image.Image:
    return PHOTOS[number].resize((width, height))


def noise(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


PICTURES = {
    "china": photo(0, 96, 96),
    "flower": photo(1, 57, 41),
    "small": photo(1, 32, 32),
    "noise": noise(33, 45),
    "flat": Image.new("RGB", (20, 12), (7, 120, 250)),
    "black": Image.new("RGB", (9, 9)),
    "dim": Image.fromarray((np.asarray(photo(0, 40, 40)) // 5 + 60).astype(np.uint8)),
}


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def difference(ours: Tensor, reference: Image.Image | Tensor) -> np.ndarray:
    """How many grey levels each value is away from the reference."""
    expected = reference if isinstance(reference, Tensor) else to_tensor(reference)
    assert ours.dtype == torch.uint8 and ours.shape == expected.shape
    return (ours.int() - expected.int()).abs().flatten().numpy()


def differences(
    name: str,
    amounts: Sequence[float],
    reference: Callable[[Image.Image, float], Image.Image],
    **options: object,
) -> np.ndarray:
    """Run all amounts on copies of each picture as one batch; return all differences."""
    found = []
    for picture in PICTURES.values():
        images = to_tensor(picture).expand(len(amounts), -1, -1, -1)
        results = OPERATIONS[name](images, np.array(amounts, float), **options)
        found += [difference(results[i], reference(picture, amount)) for i, amount in enumerate(amounts)]
    return np.concatenate(found)


def posterized(image: Image.Image, bits: float) -> Image.Image:
    return ImageOps.posterize(image, int(bits)) if bits else Image.new("RGB", image.size)


FACTORS = (0.0, 0.1, 0.37, 0.5, 0.99, 1.0, 1.4, 1.9, 3.7)
# Operation: amounts with their extremes, Pillow's result, and the least share of values that are equal.
PILLOW: dict[str, tuple[Sequence[float], Callable[[Image.Image, float], Image.Image], float]] = {
    "AutoContrast": ((0,), lambda image, amount: ImageOps.autocontrast(image), 1),
    "Equalize": ((0,), lambda image, amount: ImageOps.equalize(image), 1),
    "Invert": ((0,), lambda image, amount: ImageOps.invert(image), 1),
    "Posterize": (range(9), posterized, 1),
    "Solarize": ((0, 1, 5.5, 128, 255, 256), lambda image, amount: ImageOps.solarize(image, amount), 1),  # type: ignore[arg-type]
    "SolarizeAdd": ((0, 1, 30, 110, 128, 220), auto_augment.solarize_add, 1),
    "Color": (FACTORS, lambda image, amount: ImageEnhance.Color(image).enhance(amount), 1),
    "Contrast": (FACTORS, lambda image, amount: ImageEnhance.Contrast(image).enhance(amount), 1),
    "Brightness": (FACTORS, lambda image, amount: ImageEnhance.Brightness(image).enhance(amount), 1),
    "Sharpness": (FACTORS, lambda image, amount: ImageEnhance.Sharpness(image).enhance(amount), 1),
    "Mirror": ((0,), lambda image, amount: ImageOps.mirror(image), 1),
}
SHEARS, MOVES = (-0.99, -0.3, -0.123, 0, 0.05, 0.3, 0.99), (-100, -14.4, -3, -0.5, 0, 0.3, 1, 17.77, 500)
MOVING: dict[str, tuple[Sequence[float], Callable[..., Image.Image]]] = {
    "Rotate": ((-135, -90, -30, -7.3, 0, 1e-3, 13, 30, 45, 90, 180), auto_augment.rotate),
    "ShearX": (SHEARS, auto_augment.shear_x),
    "ShearY": (SHEARS, auto_augment.shear_y),
    "TranslateX": (MOVES, auto_augment.translate_x_abs),
    "TranslateY": (MOVES, auto_augment.translate_y_abs),
}


@pytest.mark.parametrize("name", PILLOW)
def test_operation_is_pillows(name: str) -> None:
    amounts, reference, equal = PILLOW[name]
    found = differences(name, amounts, reference)
    assert found.max() <= 1
    assert (found == 0).mean() >= equal


@pytest.mark.parametrize("interpolation", RESAMPLE)
@pytest.mark.parametrize("name", MOVING)
def test_moving_is_pillows(name: str, interpolation: str) -> None:
    amounts, move = MOVING[name]

    def reference(image: Image.Image, amount: float) -> Image.Image:
        return move(image, amount, fillcolor=FILL, resample=RESAMPLE[interpolation])

    found = differences(name, amounts, reference, fill=FILL, interpolation=interpolation)
    assert found.max() <= 1
    assert (found == 0).mean() >= (1 if interpolation == "nearest" else 0.98)


def test_one_amount_is_for_all_images() -> None:
    images = torch.arange(4 * 3 * 8 * 8).reshape(4, 3, 8, 8).to(torch.uint8)
    assert torch.equal(operations.rotate(images, 30), operations.rotate(images, [30] * 4))
    with pytest.raises(InputError, match="Rotate: 2 amounts for 4 images; give one, or one for each"):
        operations.rotate(images, [30, 40])


NEAREST, LINEAR = InterpolationMode.NEAREST, InterpolationMode.BILINEAR


def sheared(image: Tensor, x: float, y: float) -> Tensor:
    angles = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    return functional.affine(image, 0, [0, 0], 1, angles, NEAREST, list(FILL), [0, 0])


def moved(image: Tensor, x: float, y: float) -> Tensor:
    return functional.affine(image, 0, [-x, -y], 1, [0, 0], NEAREST, list(FILL))


# torchvision's grey is cut off where Pillow's is rounded, which a strong factor makes visible.
TORCHVISION: dict[str, tuple[Sequence[float], Callable[[Tensor, float], Tensor], float]] = {
    "AutoContrast": ((0,), lambda image, amount: functional.autocontrast(image), 1),
    "Equalize": ((0,), lambda image, amount: functional.equalize(image), 1),
    "Invert": ((0,), lambda image, amount: functional.invert(image), 1),
    "Posterize": (range(9), lambda image, amount: functional.posterize(image, int(amount)), 1),
    "Solarize": ((0, 1, 5.5, 128, 255), functional.solarize, 1),
    "Color": (FACTORS[:-1], functional.adjust_saturation, 0.999),
    "Contrast": (FACTORS[:-1], functional.adjust_contrast, 0.999),
    "Brightness": (FACTORS, functional.adjust_brightness, 1),
    "Sharpness": (FACTORS, functional.adjust_sharpness, 0.999),
    "Hue": ((-0.5, -0.3, -0.1, -0.01, 0, 0.05, 0.2, 0.37, 0.5), functional.adjust_hue, 1),
    "Mirror": ((0,), lambda image, amount: functional.horizontal_flip(image), 1),
    "Rotate": (
        (-30, -7.3, 0, 13, 30, 45),
        lambda i, a: functional.rotate(i, a, NEAREST, fill=list(FILL)),
        0.995,
    ),
    "ShearX": (SHEARS, lambda image, amount: sheared(image, amount, 0), 0.999),
    "ShearY": (SHEARS, lambda image, amount: sheared(image, 0, amount), 0.999),
    "TranslateX": ((-20, -3, 0, 5), lambda image, amount: moved(image, amount, 0), 1),
    "TranslateY": ((-20, -3, 0, 5), lambda image, amount: moved(image, 0, amount), 1),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_operation_is_torchvisions(name: str) -> None:
    amounts, reference, share = TORCHVISION[name]
    options = {"fill": FILL} if name in operations.MATRICES else {}
    found = []
    for picture in PICTURES.values():
        images = to_tensor(picture).repeat(len(amounts), 1, 1, 1)
        results = OPERATIONS[name](images, np.array(amounts, float), **options)
        found += [difference(results[i], reference(images[i], float(a))) for i, a in enumerate(amounts)]
    assert (np.concatenate(found) <= 1).mean() >= share


def test_documentation_has_every_operation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "augment.md").read_text()
    assert [name for name in OPERATIONS if f"| `{name}` |" not in text] == []


IDENTITIES = {
    "Posterize": 8,
    "Solarize": 256,
    "SolarizeAdd": 0,
    "Color": 1,
    "Contrast": 1,
    "Brightness": 1,
    "Sharpness": 1,
    "Hue": 0,
}


@pytest.mark.parametrize("interpolation", RESAMPLE)
@pytest.mark.parametrize("picture", PICTURES)
def test_identity(picture: str, interpolation: str) -> None:
    images = to_tensor(PICTURES[picture])[None]
    for name, amount in IDENTITIES.items():
        assert torch.equal(OPERATIONS[name](images, [amount]), images), name
    for name in operations.MATRICES:
        assert torch.equal(OPERATIONS[name](images, [0.0], fill=9, interpolation=interpolation), images), name


def test_grey_images_are_pillows_too() -> None:
    picture = PICTURES["flower"].convert("L")
    images = torch.from_numpy(np.array(picture))[None, None]
    for name, (amounts, reference, _) in PILLOW.items():
        if name in ("Posterize", "Color"):
            continue
        for amount in amounts:
            expected = torch.from_numpy(np.array(reference(picture, amount)))[None]
            assert difference(OPERATIONS[name](images, [amount])[0], expected).max() <= 1
    assert torch.equal(OPERATIONS["Color"](images, [0.3]), images)
    assert torch.equal(OPERATIONS["Hue"](images, [0.3]), images)
    filled = OPERATIONS["TranslateX"](images, [5.0], fill=FILL)
    assert filled[0, 0, 0, -1] == sum(FILL) // 3


def test_any_layout() -> None:
    images = many(3)
    for name in ("AutoContrast", "Equalize", "Sharpness", "Hue", "Rotate", "Contrast"):
        results = [
            OPERATIONS[name](item, [0.2] * 3)
            for item in (images, images.contiguous(memory_format=torch.channels_last))
        ]
        assert torch.equal(*results), name


def test_other_channels() -> None:
    images = torch.randint(0, 256, (2, 5, 8, 8), dtype=torch.uint8)
    assert torch.equal(OPERATIONS["Invert"](images), 255 - images)
    assert OPERATIONS["Rotate"](images, [10.0, 20.0]).shape == images.shape
    for name in ("Color", "Contrast", "Hue"):
        with pytest.raises(InputError, match="colour operations take 1 or 3 channels, not 5"):
            OPERATIONS[name](images, [0.1, 0.2])
    with pytest.raises(InputError, match="has 3 values, the images have 5 channels"):
        OPERATIONS["ShearX"](images, [0.1, 0.2], fill=FILL)


def test_only_bytes() -> None:
    with pytest.raises(InputError, match=r"takes uint8 images .* not float32 \(2, 3, 4, 4\)"):
        operations.flip(torch.zeros(2, 3, 4, 4), Draw(0, 0, np.arange(2)))


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (2, 5), (3, 3)])
def test_tiny_images(size: tuple[int, int]) -> None:
    image = noise(*size)
    for name, (amounts, reference, _) in PILLOW.items():
        for amount in amounts:
            ours = OPERATIONS[name](to_tensor(image)[None], [amount])[0]
            assert difference(ours, reference(image, amount)).max() <= 1
    for name in operations.MATRICES:
        for interpolation in RESAMPLE:
            moved = OPERATIONS[name](to_tensor(image)[None], [0.4], interpolation=interpolation)
            assert moved.shape == (1, 3, *size)


def test_cutout_fills_its_box() -> None:
    images = torch.zeros(3, 3, 8, 10, dtype=torch.uint8)
    boxes = np.array([[1, 2, 4, 7], [-5, -5, 2, 3], [6, 6, 99, 99]])
    result = OPERATIONS["Cutout"](images, boxes, fill=FILL)
    for image, (top, left, bottom, right) in zip(result, np.clip(boxes, 0, 99), strict=True):
        expected = torch.zeros(3, 8, 10, dtype=torch.uint8)
        expected[:, top:bottom, left:right] = torch.tensor(FILL)[:, None, None]
        assert torch.equal(image, expected)


def some_parts(images: Tensor) -> list[Assignment]:
    """Every operation, for three images each, and in every interpolation; three images stay."""
    amounts = {
        "Rotate": 25,
        "Posterize": 3,
        "Solarize": 90,
        "SolarizeAdd": 40,
        "TranslateX": 3.3,
        "TranslateY": -2.5,
    }
    parts: list[Assignment] = []
    row = 0
    for name in OPERATIONS:
        for interpolation in RESAMPLE if name in operations.MATRICES else ("nearest",):
            rows = np.array([row, row + 2, row + 1])
            values = np.array([0.3, 0.2, -0.1]) * amounts.get(name, 1)
            if name == "Cutout":
                values = np.array([[1, 2, 5, 9], [0, 0, 3, 3], [4, 4, 30, 8]])
            parts.append(Assignment(name, rows, values, interpolation))  # type: ignore[arg-type]
            row += 3
    assert row + 3 == len(images)
    return parts


def many(count: int = 87) -> Tensor:
    random = np.random.default_rng(1)
    return torch.from_numpy(random.integers(0, 256, (count, 3, 12, 14), dtype=np.uint8))


def test_apply_does_each_part_to_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    images = many()
    parts = some_parts(images)
    before = images.clone()
    result = apply(images, parts, FILL)
    assert torch.equal(images, before)
    assert torch.equal(result[-3:], images[-3:])
    for part in parts:
        for row, amount in zip(part.rows, part.amounts, strict=True):
            alone = apply(
                images[row : row + 1], [part._replace(rows=np.array([0]), amounts=amount[None])], FILL
            )
            assert torch.equal(result[row], alone[0]), part.name
    monkeypatch.setattr(operations, "CHUNK", 1500)  # pieces of two or three images
    assert torch.equal(apply(images, parts, FILL), result)
    assert torch.equal(apply(images.to(memory_format=torch.channels_last), parts, FILL), result)
    assert apply(images, [], FILL) is images


def a_draw(count: int, first: int = 0, seed: int = 0) -> Draw:
    return Draw(seed, 0, np.arange(first, first + count, dtype=np.int64))


STEPS: dict[str, Callable[[Tensor, Draw], Tensor]] = {
    "flip": operations.flip,
    "pad_crop": operations.pad_crop,
    "pad_crop reflect": lambda images, draw: operations.pad_crop(images, draw, 3, "reflect"),
    "color_jitter": lambda images, draw: operations.color_jitter(images, draw, 0.4, 0.4, 0.4, 0.1),
    "erase": lambda images, draw: operations.erase(images, draw, 0.7),
    "erase const": lambda images, draw: operations.erase(images, draw, 0.7, "const"),
}


@pytest.mark.parametrize("name", STEPS)
def test_step_depends_on_position_alone(name: str) -> None:
    images, step = many(40), STEPS[name]
    whole = step(images, a_draw(40))
    halves = [step(images[:13], a_draw(13)), step(images[13:], a_draw(27, 13))]
    assert torch.equal(whole, torch.cat(halves))
    assert torch.equal(whole, step(images, a_draw(40)))
    assert not torch.equal(whole, step(images, a_draw(40, seed=1)))
    assert torch.equal(whole, step(images.to(memory_format=torch.channels_last), a_draw(40)))
    assert whole.dtype == torch.uint8 and whole.shape == images.shape


@pytest.mark.gpu
def test_gpu_agrees() -> None:
    images = many()
    both = [apply(images.to(device), some_parts(images), FILL).cpu() for device in ("cpu", "cuda")]
    assert ((both[0].int() - both[1].int()).abs() <= 1).float().mean() >= 0.999
    for name, step in STEPS.items():
        ours, theirs = step(images, a_draw(87)), step(images.cuda(), a_draw(87)).cpu()
        assert ((ours.int() - theirs.int()).abs() <= 1).float().mean() >= 0.999, name


def test_flip_probability() -> None:
    images = many(40)
    assert torch.equal(operations.flip(images, a_draw(40), 0.0), images)
    assert torch.equal(operations.flip(images, a_draw(40), 1.0), images.flip(3))
    flipped = (operations.flip(images, a_draw(40)) != images).flatten(1).any(dim=1)
    assert 8 < flipped.sum() < 32


@pytest.mark.parametrize(("mode", "torchvisions"), [("zero", "constant"), ("reflect", "reflect")])
def test_pad_crop_is_torchvisions(mode: str, torchvisions: str) -> None:
    images = many(81)
    places = np.arange(81)
    top, left = places // 9, places % 9
    ours = operations.crop_padded(images, top, left, 4, mode)  # type: ignore[arg-type]
    for i in range(81):
        padded = functional.pad(images[i], [4], padding_mode=torchvisions)
        assert torch.equal(ours[i], functional.crop(padded, top[i], left[i], 12, 14))


def test_pad_crop_reaches_every_place() -> None:
    image = torch.arange(1, 26, dtype=torch.uint8).view(1, 1, 5, 5)
    found = operations.pad_crop(image.expand(2000, -1, -1, -1), a_draw(2000), 2)
    assert len(found.flatten(1).unique(dim=0)) == 25
    with pytest.raises(InputError, match="a reflection of 5 pixels needs larger images than 5x5"):
        operations.pad_crop(image, a_draw(1), 5, "reflect")


def test_color_jitter_draws_torchvisions_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[Assignment]] = []

    def record(images: Tensor, parts: list[Assignment]) -> Tensor:
        calls.append(parts)
        return images

    monkeypatch.setattr(operations, "apply", record)
    operations.color_jitter(many(1000), a_draw(1000), 0.4, 1.5, 0.2, 0.1)
    ranges = {"Brightness": (0.6, 1.4), "Contrast": (0, 2.5), "Color": (0.8, 1.2), "Hue": (-0.1, 0.1)}
    for name, (low, high) in ranges.items():
        turns = [part for parts in calls for part in parts if part.name == name]
        assert sorted(np.concatenate([part.rows for part in turns])) == list(range(1000))
        assert all(190 < len(part.rows) < 310 for part in turns)  # each turn has a quarter
        amounts = np.concatenate([part.amounts for part in turns])
        assert low <= amounts.min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < amounts.max() <= high
    calls.clear()
    operations.color_jitter(many(9), a_draw(9), brightness=0.3)
    assert {part.name for parts in calls for part in parts} == {"Brightness"}
    with pytest.raises(InputError, match="hue 0.5 at most"):
        operations.color_jitter(many(9), a_draw(9), hue=0.6)


def test_erase_boxes_follow_timms_rule() -> None:
    random = np.random.default_rng(0).random((400, 40))
    height, width = 12, 30
    boxes, found = operations.erase_boxes(random, height, width)
    misses = 0
    for numbers, box, is_found in zip(random.reshape(-1, 4, 10), boxes, found, strict=True):
        expected = None
        for area, ratio, top, left in numbers.T:
            target = (0.02 + (1 / 3 - 0.02) * area) * height * width
            aspect = math.exp(math.log(0.3) + (math.log(1 / 0.3) - math.log(0.3)) * ratio)
            tall, wide = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if wide < width and tall < height:
                y, x = math.floor(top * (height - tall + 1)), math.floor(left * (width - wide + 1))
                expected = [y, x, y + tall, x + wide]
                break
            misses += 1
        assert is_found == (expected is not None)
        assert not is_found or box.tolist() == expected
    assert misses > 20


def test_erase_paints_noise_of_the_data() -> None:
    images = torch.zeros(600, 3, 32, 32, dtype=torch.uint8)
    mean, std = (0.5, 0.4, 0.6), (0.1, 0.05, 0.08)
    erased = operations.erase(images, a_draw(600), 0.25, "pixel", mean, std)
    touched = (erased > 0).flatten(1).any(dim=1)
    assert 110 < touched.sum() < 190
    pixels = erased.permute(1, 0, 2, 3).flatten(1).double()
    pixels = pixels[:, (pixels > 0).all(dim=0)] / 255  # (channels, painted pixels)
    assert 0.1 < pixels.shape[1] / (touched.sum() * 1024) < 0.25
    assert torch.allclose(pixels.mean(dim=1), torch.tensor(mean).double(), atol=2e-3)
    assert torch.allclose(pixels.std(dim=1), torch.tensor(std).double(), atol=2e-3)
    correlations = torch.corrcoef(pixels)[~torch.eye(3, dtype=torch.bool)]
    assert correlations.abs().max() < 0.02
    neighbours = torch.corrcoef(torch.stack([pixels[0, 1:], pixels[0, :-1]]))[0, 1]
    assert neighbours.abs() < 0.02


def test_erase_with_the_mean() -> None:
    images = torch.zeros(50, 3, 16, 16, dtype=torch.uint8)
    erased = operations.erase(images, a_draw(50), 1.0, "const", (0.5, 0.4, 0.6))
    colours = erased.permute(0, 2, 3, 1).reshape(-1, 3).unique(dim=0)
    assert colours.tolist() == [[0, 0, 0], [128, 102, 153]]
    assert torch.equal(operations.erase(images, a_draw(50), 0.0), images)


def test_normalize() -> None:
    images, mean, std = many(4), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    expected = functional.normalize(images.float() / 255, list(mean), list(std))
    ours = operations.normalize(images, mean, std)
    assert ours.dtype == torch.float32 and torch.allclose(ours, expected, atol=1e-6)
    half = operations.normalize(images, mean, std, torch.bfloat16)
    assert torch.equal(half, ours.to(torch.bfloat16))


def test_affine_turns_and_shears_about_the_centre() -> None:
    images = torch.zeros(64, 1, 15, 15, dtype=torch.uint8)
    images[:, :, 6:9, 6:9] = 255
    draw = Draw(0, 0, np.arange(64))
    moved = operations.affine(images, draw, 20.0, 0.3).float()
    assert len(moved.unique(dim=0)) > 60, "each image its own"
    assert (moved[:, 0, 7, 7] > 250).all(), "the centre stays"
    assert torch.equal(operations.affine(images, draw, 0.0, 0.0), images)
    turned = operations.affine(images, Draw(0, 0, np.arange(64)), 20.0, 0.0)
    expected = operations.apply(
        images,
        [
            operations.Assignment(
                "Rotate", np.arange(64), 20 * (2 * draw.uniform("affine", 2)[:, 0] - 1), "bilinear"
            )
        ],
    )
    assert torch.equal(turned, expected)
