"""Procedural scenes of shapes, endless and without files: image n is a pure function of n.

Everything a pixel meets is addition, multiplication, division, square root, floor, minimum and maximum, which
IEEE 754 rounds in one way only: an image has the same bits alone or in any batch, on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from vitkit.data.draws import Draw, bits
from vitkit.data.source import Source
from vitkit.errors import InputError, did_you_mean

Array = np.ndarray

SPLITS: dict[str, int] = {"train": 50_000, "val": 5_000, "test": 10_000}
"Images of a split, unless told; it goes on beyond them, for SPAN images that are its own."
SPAN = 1 << 40
_SEED = 0
_CHUNK = 1 << 16  # pixels rendered at a time: what stays in a core's cache


def _length(u: Array, v: Array) -> Array:
    return np.sqrt(u * u + v * v)


def _disc(u: Array, v: Array) -> Array:
    return _length(u, v) - 0.83


def _ring(u: Array, v: Array) -> Array:
    return np.abs(_length(u, v) - 0.68) - 0.21


def _square(u: Array, v: Array) -> Array:
    return np.maximum(np.abs(u), np.abs(v)) - 0.72


def _triangle(u: Array, v: Array) -> Array:
    return np.maximum(-v, np.abs(u) * 0.866 + v * 0.5) - 0.5


def _hexagon(u: Array, v: Array) -> Array:
    u, v = np.abs(u), np.abs(v)
    return np.maximum(v, u * 0.866 + v * 0.5) - 0.82


def _star(u: Array, v: Array) -> Array:
    """A pentagram: inside all but one of five half-planes, so that the second largest distance counts."""
    first = second = np.full_like(u, -2)
    for side in range(5):
        angle = math.pi * (0.4 * side - 0.5)
        distance = u * round(math.cos(angle), 6) + v * round(math.sin(angle), 6) - 0.309
        second = np.maximum(second, np.minimum(first, distance))
        first = np.maximum(first, distance)
    return second


def _cross(u: Array, v: Array) -> Array:
    u, v = np.abs(u), np.abs(v)
    return np.maximum(np.minimum(u, v) - 0.29, np.maximum(u, v) - 0.92)


def _heart(u: Array, v: Array) -> Array:
    """A square on its corner, with a disc on each of its upper sides."""
    u, v = np.abs(u), v + 0.09
    return np.minimum(_length(u - 0.37, v - 0.37) - 0.523, (u + np.abs(v) - 0.74) * 0.7071)


def _crescent(u: Array, v: Array) -> Array:
    """A disc, less another above it."""
    return np.maximum(_length(u, v) - 0.92, 0.72 - _length(u, v - 0.46))


def _arrow(u: Array, v: Array) -> Array:
    u = np.abs(u)
    head = np.maximum(-v, u * 0.766 + v * 0.643 - 0.611)
    return np.minimum(head, np.maximum(u - 0.25, np.abs(v + 0.43) - 0.5))


def _line(u: Array, v: Array) -> Array:
    return np.maximum(np.abs(u) - 0.95, np.abs(v) - 0.05)


def _shadow(u: Array, v: Array) -> Array:
    return (_length(u, v * 4) - 0.85) * 0.4


# Signed distance from the outline, negative inside, of an upright shape in the unit circle; u is right, v up.
SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "hexagon": _hexagon,
    "star": _star,
    "cross": _cross,
    "heart": _heart,
    "crescent": _crescent,
    "arrow": _arrow,
}
_OUTLINES = (*SHAPES.values(), _line, _shadow)
_LINE, _SHADOW = len(SHAPES), len(SHAPES) + 1
_ONE_SIDED = np.array([7, 8, 9])  # heart, crescent and arrow look the same after a full turn only

# A texture is t = clip(sharpness (A a + B b + C a b + D)) between two colours, where a and b are waves across each
# other and `bend` a shifts b. Columns: A, B, C, D, sharpness, bend, fewest and most waves across the image.
_TEXTURES = np.array(
    [
        (0, 0, 0, 0.0, 1, 0.0, 1.0, 2),  # plain
        (1, 0, 0, 0.0, 1, 0.0, 0.4, 1),  # gradient
        (1, 0, 0, 0.0, 9, 0.0, 4.0, 8),  # stripes
        (0, 1, 0, 0.0, 2, 0.3, 3.0, 6),  # waves
        (0, 0, 1, 0.0, 9, 0.0, 2.0, 4),  # checks
        (1, 1, 0, -0.7, 9, 0.0, 4.0, 7),  # dots
        (1, 1, 1, 0.0, 1, 0.8, 1.5, 3),  # clouds
    ],
    np.float32,
)
# Cosine and sine of every direction in use, rounded because libraries differ in the last bits.
_DIRECTIONS = np.array(
    [[math.cos(n * math.tau / 4096), math.sin(n * math.tau / 4096)] for n in range(4096)]
).round(6)
_X_MARGIN = 1 / 8  # the centre of the thing stays as far from left and right
_NEAR, _FAR = 1.0, 0.25  # one over the distance
# What to add to grey for each of 64 hues; the luma stays as it is.
_HUES = np.stack([_DIRECTIONS[(64 * np.arange(64) + shift) % 4096, 0] for shift in (0, 2731, 1365)], axis=-1)
_HUES = (_HUES - (_HUES * [0.299, 0.587, 0.114]).sum(-1, keepdims=True)).round(4)


@dataclass
class _Paint:
    """Two colours in a texture, for each of some things: arrays (things, ...)."""

    colour: Array  # (things, 3), their mean
    change: Array  # (things, 3), half their difference
    texture: Array
    waves: Array
    direction: Array  # (things, 2)
    phase: Array  # (things, 2)

    def __getitem__(self, things: Array) -> _Paint:
        return _Paint(**{name: values[things] for name, values in vars(self).items()})


@dataclass
class _Things:
    """What is painted into each scene, slot after slot: arrays (scenes, slots)."""

    outline: Array
    x: Array
    y: Array
    radius: Array
    turn: Array  # whole turns, clockwise
    shown: Array
    paint: _Paint  # of scenes x slots things
    opacity: float = 1.0


def _between(uniform: Array, low: float | Array, high: float | Array) -> Array:
    return low + (high - low) * uniform


def _choice(uniform: Array, options: int) -> Array:
    return (uniform * options).astype(np.int64)


def _draw_paint(draw: Draw, luma: Array, contrast: float) -> _Paint:
    """Choose colours of these lumas (scenes, slots), and textures."""
    scenes, slots = luma.shape
    hue, saturation, change, hue_change, texture, waves, turn, phase_a, phase_b = np.moveaxis(
        draw.uniform("paint", 9 * slots).reshape(-1, 9), -1, 0
    )
    luma = luma.reshape(-1)
    first = _choice(hue, 64)
    second = (first + _choice(hue_change, 17) - 8) % 64
    chroma = _between(saturation, 0.05, 0.4) * (1 - np.abs(2 * luma - 1)) + 0.02
    change = _between(change, -contrast, contrast)
    one = np.clip((luma + change)[:, None] + chroma[:, None] * _HUES[first], 0, 1)
    other = np.clip((luma - change)[:, None] + chroma[:, None] * _HUES[second], 0, 1)
    number = _choice(texture, len(_TEXTURES))
    return _Paint(
        colour=((one + other) / 2).astype(np.float32),
        change=((one - other) / 2).astype(np.float32),
        texture=number,
        waves=_between(waves, _TEXTURES[number, 6], _TEXTURES[number, 7]).astype(np.float32),
        direction=_DIRECTIONS[_choice(turn, 4096)].astype(np.float32),
        phase=np.stack([phase_a, phase_b], -1).astype(np.float32),
    )


def _far_from(luma: Array, gap: float, uniform: Array) -> Array:
    """Return lumas at least `gap` away from another."""
    below, above = np.maximum(luma - gap - 0.04, 0), np.maximum(0.96 - luma - gap, 0)
    place = uniform * (below + above)
    return np.where(place < below, 0.04 + place, luma + gap + place - below)


def _wave(place: Array) -> Array:
    """A smooth wave of period 1 between -1 and 1, without a sine."""
    place = np.abs(place - np.floor(place) - 0.5) * 4 - 1
    return place * (1.5 - 0.5 * place * place)


def _column(values: Array) -> Array:
    return values[:, None, None]


def _texture(paint: _Paint, x: Array, y: Array, size: int) -> Array:
    """Return the blend of the two colours at these places, from -1 to 1: (things, height, width)."""
    a, b, both, constant, sharpness, bend, *_ = (_column(values) for values in _TEXTURES[paint.texture].T)
    cos, sin = (_column(values) for values in (paint.direction * paint.waves[:, None]).T)
    across = _wave(x * cos + y * sin + _column(paint.phase[:, 0]))
    along = _wave(y * cos - x * sin + _column(paint.phase[:, 1]) + bend * across)
    edge = np.minimum(sharpness, size / (3 * _column(paint.waves)))  # an edge takes a pixel at least
    return np.clip(edge * (a * across + b * along + both * (across * along) + constant), -1, 1)


def _paint_things(canvas: Array, things: _Things) -> None:
    """Paint into float32 (scenes, 3, size, size), each thing in a window around it."""
    size = canvas.shape[-1]
    scene, slot = np.nonzero(things.shown)
    if not len(scene):
        return
    order = np.argsort(things.outline[scene, slot], kind="stable")
    scene, slot = scene[order], slot[order]
    outline, x, y, radius, turn = (
        values[scene, slot] for values in (things.outline, things.x, things.y, things.radius, things.turn)
    )
    paint = things.paint[scene * things.shown.shape[1] + slot]
    half = math.ceil(radius.max() * size) + 2  # sharp corners reach up to 1.6 pixels further than their shape
    side = min(2 * half + 1, size)
    left = np.clip(np.floor(x * size).astype(np.int64) - half, 0, size - side)
    top = np.clip(np.floor(y * size).astype(np.int64) - half, 0, size - side)
    columns = (left[:, None] + np.arange(side) + 0.5) / size
    rows = (top[:, None] + np.arange(side) + 0.5) / size
    right = ((columns - x[:, None]) / radius[:, None]).astype(np.float32)[:, None, :]
    up = ((y[:, None] - rows) / radius[:, None]).astype(np.float32)[:, :, None]
    cos, sin = (_column(values) for values in _DIRECTIONS[_choice(turn, 4096)].astype(np.float32).T)
    u, v = right * cos - up * sin, right * sin + up * cos
    cover = np.empty_like(u)
    starts = np.searchsorted(outline, np.arange(len(_OUTLINES) + 1))
    for number, distance in enumerate(_OUTLINES):
        part = slice(starts[number], starts[number + 1])
        if part.start < part.stop:
            cover[part] = distance(u[part], v[part])
    cover = np.clip(0.5 - cover * _column((radius * size).astype(np.float32)), 0, 1) * things.opacity
    blend = _texture(paint, columns.astype(np.float32)[:, None, :], rows.astype(np.float32)[:, :, None], size)
    windows = sliding_window_view(canvas, (side, side), axis=(2, 3), writeable=True)
    for number in range(things.shown.shape[1]):
        now = np.flatnonzero(slot == number)
        place = (scene[now], slice(None), top[now], left[now])
        under = windows[place]  # (things, 3, side, side)
        over = blend[now, None] * paint.change[now, :, None, None] + paint.colour[now, :, None, None]
        windows[place] = under + (over - under) * cover[now, None]


def _clutter(
    draw: Draw, ground: Array, slots: int, low: float, high: float, outlines: Sequence[int]
) -> _Things:
    """Draw small things anywhere, of little contrast: some are left out."""
    kind, x, y, size, turn, shown, luma = np.moveaxis(
        draw.uniform("clutter", 7 * slots).reshape(-1, slots, 7), -1, 0
    )
    paint = _draw_paint(draw, _far_from(ground, 0.1, luma), 0.05)
    return _Things(
        np.array(outlines)[_choice(kind, len(outlines))],
        x,
        y,
        _between(size, low, high),
        turn,
        shown < 0.7,
        paint,
    )


def _one_thing(draw: Draw, kind: str, label: Array, ground: Array) -> list[_Things]:
    """One thing among clutter that is much smaller."""
    outline, x, y, size, turn, luma = np.moveaxis(draw.uniform("thing", 6)[:, None], -1, 0)
    radius = _between(size, 0.24, 0.38)
    number = _choice(outline, len(SHAPES))
    if kind == "class":
        number = label[:, None]
    elif kind == "orientation":
        number = _ONE_SIDED[_choice(outline, len(_ONE_SIDED))]
        turn = (label[:, None] + _between(turn, -0.35, 0.35)) / 16 % 1
    else:
        radius = _between(size, 0.1, 0.15)
    x, y = (_between(values, radius, 1 - radius) for values in (x, y))
    if kind == "x":
        place = draw.uniform("x")
        x = _X_MARGIN + (label[:, None] + _between(place, 0.1, 0.9)) * (1 - 2 * _X_MARGIN) / 16
    paint = _draw_paint(draw.child("thing"), _far_from(ground, 0.3, luma), 0.12)
    thing = _Things(number, x, y, radius, turn, np.ones_like(number, bool), paint)
    small = 0.02 if kind == "x" else 0.03
    return [
        _clutter(draw.child("lines"), ground, 3, 0.15, 0.35, [_LINE]),
        _clutter(draw.child("shapes"), ground, 8, small, 2 * small, range(len(SHAPES))),
        thing,
        _clutter(draw.child("specks"), ground, 3, 0.02, 0.03, range(len(SHAPES))),
    ]


def _many_things(draw: Draw, label: Array, ground: Array) -> list[_Things]:
    """One to eight things that don't touch, among lines and specks."""
    slots, tries = 8, 12
    outline, size, turn, luma = np.moveaxis(draw.uniform("things", 4 * slots).reshape(-1, slots, 4), -1, 0)
    candidates = _between(draw.uniform("places", slots * tries * 2), 0.12, 0.88).reshape(-1, slots, tries, 2)
    places = candidates[:, :, 0].copy()
    for slot in range(1, slots):  # of its candidates each takes the one farthest from those before
        apart = ((candidates[:, slot, :, None] - places[:, None, :slot]) ** 2).sum(-1).min(-1)
        places[:, slot] = candidates[np.arange(len(label)), slot, apart.argmax(-1)]
    apart = np.sqrt(((places[:, :, None] - places[:, None]) ** 2).sum(-1)) + 9 * np.eye(slots)
    radius = np.minimum(_between(size, 0.08, 0.125), 0.46 * apart.min(-1))
    paint = _draw_paint(draw.child("things"), _far_from(ground, 0.28, luma), 0.12)
    shown = np.arange(slots) <= label[:, None]
    things = _Things(
        _choice(outline, len(SHAPES)), places[..., 0], places[..., 1], radius, turn, shown, paint
    )
    return [
        _clutter(draw.child("lines"), ground, 4, 0.15, 0.35, [_LINE]),
        _clutter(draw.child("specks"), ground, 6, 0.012, 0.022, range(len(SHAPES))),
        things,
    ]


def _things_on_ground(draw: Draw, label: Array, ground: Array, horizon: Array) -> list[_Things]:
    """One to five things that stand on the ground, the nearest painted last."""
    slots = 5
    outline, x, away, size, turn, luma, shown = np.moveaxis(
        draw.uniform("things", 7 * slots).reshape(-1, slots, 7), -1, 0
    )
    step = (_NEAR - _FAR) / 6
    nearest = _NEAR - step * (label[:, None] + _between(away[:, :1], 0.1, 0.9))
    inverse = _between(away, 0.7 * _FAR, nearest - 0.2 * step)
    inverse[:, 0] = nearest[:, 0]
    inverse.sort(axis=1)
    shown = shown < 0.6
    shown[:, -1] = True
    radius = 0.19 * inverse * _between(size, 0.85, 1.15)
    foot = horizon + 0.62 * inverse
    paint = _draw_paint(draw.child("things"), _far_from(ground, 0.28, luma), 0.12)
    dark = _draw_paint(draw.child("shadows"), np.zeros_like(luma), 0.0)
    shadow = _Things(
        np.full_like(shown, _SHADOW, np.int64),
        _between(x, 0.15, 0.85),
        foot,
        radius * 1.1,
        0 * turn,
        shown,
        dark,
        0.5,
    )
    things = _Things(
        _choice(outline, len(SHAPES)),
        _between(x, 0.15, 0.85),
        foot - 0.85 * radius,
        radius,
        turn,
        shown,
        paint,
    )
    return [shadow, things]


def _ground(draw: Draw, paint: _Paint, horizon: Array, size: int) -> Array:
    """Paint a plane in perspective, under a sky: float32 (scenes, 3, size, size)."""
    x, y = _pixel_centres(size)
    below = y - _column(horizon).astype(np.float32)
    depth = 0.62 / np.maximum(below, 0.02)
    blend = _texture(paint, (x - 0.5) * depth, depth, size) * np.clip(below * 5 - 0.3, 0, 1)
    canvas = _blended(paint, blend)
    sky = _draw_paint(draw.child("sky"), draw.uniform("sky") * 0.6 + 0.3, 0.0)
    shade = np.clip(below * size + 0.5, 0, 1)[:, None]
    above = sky.colour[:, :, None, None] * (1 - 0.4 * below)[:, None]
    return above + (canvas - above) * shade


def _blended(paint: _Paint, blend: Array) -> Array:
    return blend[:, None] * paint.change[:, :, None, None] + paint.colour[:, :, None, None]


def _pixel_centres(size: int) -> tuple[Array, Array]:
    centres = ((np.arange(size) + 0.5) / size).astype(np.float32)
    return centres[None, None, :], centres[None, :, None]


def _labels(label: str, numbers: Array) -> Array:
    return _choice(_draw(label, numbers).uniform("label")[:, 0], len(LABELS[label]))


def _draw(label: str, numbers: Array) -> Draw:
    return Draw(_SEED, 0, numbers, f"shapes/{label}")


def _render(label: str, numbers: Array, size: int) -> Array:
    """Paint the scenes of these numbers: uint8 (scenes, size, size, 3)."""
    draw = _draw(label, numbers)
    answer = _labels(label, numbers)
    luma = _between(draw.uniform("ground"), 0.12, 0.88)
    paint = _draw_paint(draw.child("ground"), luma, 0.08)
    x, y = _pixel_centres(size)
    if label == "distance":
        horizon = _between(draw.uniform("horizon"), 0.27, 0.33)
        canvas = _ground(draw, paint, horizon[:, 0], size)
        layers = _things_on_ground(draw, answer, luma, horizon)
    else:
        canvas = _blended(paint, _texture(paint, x, y, size))
        layers = (
            _many_things(draw, answer, luma) if label == "count" else _one_thing(draw, label, answer, luma)
        )
    for things in layers:
        _paint_things(canvas, things)
    light = _between(draw.uniform("light", 2), -0.35, 0.35).astype(np.float32)
    canvas *= (1 + _column(light[:, 0]) * (x - 0.5) + _column(light[:, 1]) * (y - 0.5))[:, None]
    words = bits(_SEED, f"shapes/{label}/noise", numbers, -(-canvas[0].size // 8)).astype("<u8")
    noise = words.view(np.uint8)[:, : canvas[0].size].reshape(canvas.shape)
    canvas *= 255
    canvas += noise * np.float32(0.1) - np.float32(12.25)  # the half that rounds is in it
    return np.clip(canvas, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)


LABELS: dict[str, tuple[str, ...]] = {
    "class": tuple(SHAPES),
    "count": tuple(str(number) for number in range(1, 9)),
    "x": tuple(f"{_X_MARGIN + n * 3 / 64:.3f}-{_X_MARGIN + (n + 1) * 3 / 64:.3f}" for n in range(16)),
    "orientation": tuple(f"{number * 22.5:g} degrees" for number in range(16)),
    "distance": tuple(f"{1 / (1 - n / 8):.2f}-{1 / (1 - (n + 1) / 8):.2f}" for n in range(6)),
}
"Names of the classes for each `label=`."


class Shapes(Source):
    """Scenes of shapes. Indices beyond the length work as well, without end."""

    name = "shapes"

    def __init__(
        self, split: str = "train", label: str = "class", size: int = 32, count: int | None = None
    ) -> None:
        if split not in SPLITS:
            hint = did_you_mean(split, SPLITS) or ";"
            raise InputError(f"shapes has no split {split!r}{hint} expected {', '.join(SPLITS)}")
        if label not in LABELS:
            hint = did_you_mean(label, LABELS) or ";"
            raise InputError(f"shapes has no label {label!r}{hint} expected {', '.join(LABELS)}")
        if not 8 <= size <= 4096:
            raise InputError(f"shapes of size {size} can't be drawn; expected 8 to 4096 pixels")
        self.split, self.label, self.size = split, label, size
        self.class_names = LABELS[label]
        self.start = SPAN * list(SPLITS).index(split)
        self.labels = self.labels_of(np.arange(SPLITS[split] if count is None else count))

    def labels_of(self, indices: Array) -> Array:
        """Return the labels of any images: int64 (images,)."""
        return _labels(self.label, self._numbers(indices))

    def render(self, indices: Array) -> Array:
        """Return any images: uint8 (images, size, size, 3)."""
        numbers = self._numbers(indices)
        images = np.empty((len(numbers), self.size, self.size, 3), np.uint8)
        step = max(1, _CHUNK // self.size**2)
        for start in range(0, len(numbers), step):
            images[start : start + step] = _render(self.label, numbers[start : start + step], self.size)
        return images

    def read(self, index: int) -> Array:
        return self.render(np.array([index]))[0]

    def _numbers(self, indices: Array) -> Array:
        indices = np.asarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < SPAN:
            raise IndexError(f"shapes has images 0 to {SPAN - 1}, not {indices.min()} to {indices.max()}")
        return indices + self.start
