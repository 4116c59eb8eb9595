"""Procedural scenes of shapes, endless and without files: image n is a pure function of n.

Pixels are made of sums, products, quotients, square roots, floors, minima and maxima, which IEEE 754 rounds in one
way only: an image has the same bits alone or in any batch, on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from vitkit.data.draws import Draw, bits
from vitkit.data.sources.source import Source
from vitkit.errors import InputError, did_you_mean

Array = np.ndarray

SPLITS: dict[str, int] = {"train": 50_000, "val": 5_000, "test": 10_000}
"Images of each split by default. More can be drawn: each split has SPAN images of its own."
SPAN = 1 << 40


def _length(u: Array, v: Array) -> Array:
    return np.sqrt(u * u + v * v)


def _disc(u: Array, v: Array) -> Array:
    return _length(u, v) - 0.83


def _ring(u: Array, v: Array) -> Array:
    return np.abs(_length(u, v) - 0.68) - 0.21


def _square(u: Array, v: Array) -> Array:
    return np.maximum(np.abs(u), np.abs(v)) - 0.7


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
    return np.maximum(np.abs(u) - 0.95, np.abs(v) - 0.07)


def _spot(u: Array, v: Array) -> Array:
    """A disc that lies on the ground."""
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
_OUTLINES = (*SHAPES.values(), _line, _spot)
_KINDS = len(SHAPES)
_ANY, _LINE, _SPOT = np.arange(_KINDS), np.array([_KINDS]), np.array([_KINDS + 1])
_ONE_SIDED = np.array([7, 8, 9])  # heart, crescent and arrow look the same after a full turn only

_LEFT, _COLUMN = 1 / 8, 3 / 64  # where the columns of label=x start, and how wide one is
_FOCUS = 0.62  # at distance d the ground is _FOCUS / d below the horizon
_STEP = 1 / 8  # how much of 1 / d a class of label=distance takes

# Names of the classes of each `label=`.
LABELS: dict[str, tuple[str, ...]] = {
    "class": tuple(SHAPES),
    "count": tuple(str(n) for n in range(1, 9)),
    "x": tuple(f"{_LEFT + n * _COLUMN:.3f}-{_LEFT + (n + 1) * _COLUMN:.3f}" for n in range(16)),
    "orientation": tuple(f"{n * 22.5:g} degrees" for n in range(16)),
    "distance": tuple(f"{1 / (1 - n * _STEP):.2f}-{1 / (1 - (n + 1) * _STEP):.2f}" for n in range(6)),
}

# A texture is t = clip(sharpness (A a + B b + C a b + D)) between two colours, where a and b are waves across each
# other and b is shifted by `bend` a. Columns: A, B, C, D, sharpness, bend, fewest and most waves across the image.
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
# Cosine and sine of every direction, rounded because libraries differ in the last bits.
_DIRECTIONS = np.array(
    [(math.cos(n * math.tau / 4096), math.sin(n * math.tau / 4096)) for n in range(4096)]
).round(6)
# What each of 64 hues adds to grey, its luma kept.
_HUES = np.stack([_DIRECTIONS[(64 * np.arange(64) + shift) % 4096, 0] for shift in (0, 2731, 1365)], axis=-1)
_HUES = (_HUES - (_HUES * [0.299, 0.587, 0.114]).sum(axis=-1, keepdims=True)).round(4)
_CHUNK = 1 << 16  # pixels rendered at a time: what a core's cache holds
_SEED = 0


@dataclass
class _Paint:
    """Two colours in a texture, for each of some things."""

    colour: Array  # (things, 3), the mean of the two
    change: Array  # (things, 3), half their difference
    texture: Array  # (things,), a row of _TEXTURES
    waves: Array  # (things,), across the image
    direction: Array  # (things, 2)
    phase: Array  # (things, 2)

    def __getitem__(self, things: Array) -> _Paint:
        return _Paint(**{name: values[things] for name, values in vars(self).items()})


@dataclass
class _Things:
    """What is painted into scenes, slot after slot: arrays (scenes, slots); lengths are shares of the image's side."""

    outline: Array
    x: Array
    y: Array
    radius: Array
    turn: Array  # clockwise, 1 is a full turn
    shown: Array
    paint: _Paint  # of scenes x slots things
    opacity: float = 1.0


def _draws(draw: Draw, name: str, slots: int, count: int) -> list[Array]:
    """Return `count` arrays of uniform numbers (scenes, slots)."""
    return list(np.moveaxis(draw.uniform(name, slots * count).reshape(-1, slots, count), -1, 0))


def _between(uniform: Array, low: float | Array, high: float | Array) -> Array:
    return low + (high - low) * uniform


def _below(uniform: Array, limit: int) -> Array:
    return (uniform * limit).astype(np.int64)


def _far_from(luma: Array, gap: float, uniform: Array) -> Array:
    """Return lumas that differ from another by `gap` at least."""
    below, above = np.maximum(luma - gap - 0.04, 0), np.maximum(0.96 - luma - gap, 0)
    place = uniform * (below + above)
    return np.where(place < below, 0.04 + place, luma + gap + place - below)


def _draw_paint(draw: Draw, luma: Array, contrast: float) -> _Paint:
    """Choose colours of these lumas (scenes, slots), and textures of up to this contrast."""
    draws = (values.reshape(-1, 1) for values in _draws(draw, "paint", luma.shape[1], 9))
    hue, saturation, change, bend, texture, waves, turn, *phase = draws
    luma = luma.reshape(-1, 1)
    first = _below(hue[:, 0], 64)
    second = (first + np.floor(_between(bend, -70, 70) * contrast).astype(np.int64)[:, 0]) % 64
    chroma = 0.02 + _between(saturation, 0.05, 0.4) * (1 - np.abs(2 * luma - 1))
    change = _between(change, -contrast, contrast)
    one = np.clip(luma + change + chroma * _HUES[first], 0, 1)
    other = np.clip(luma - change + chroma * _HUES[second], 0, 1)
    number = _below(texture[:, 0], len(_TEXTURES))
    return _Paint(
        colour=((one + other) / 2).astype(np.float32),
        change=((one - other) / 2).astype(np.float32),
        texture=number,
        waves=_between(waves[:, 0], _TEXTURES[number, 6], _TEXTURES[number, 7]).astype(np.float32),
        direction=_DIRECTIONS[_below(turn[:, 0], 4096)].astype(np.float32),
        phase=np.concatenate(phase, axis=1).astype(np.float32),
    )


def _wave(place: Array) -> Array:
    """A smooth wave of period 1 between -1 and 1, without a sine."""
    place = np.abs(place - np.floor(place) - 0.5) * 4 - 1
    return place * (1.5 - 0.5 * place * place)


def _each(values: Array) -> Array:
    """Make one number for each thing broadcast over its pixels."""
    return values[..., None, None]


def _texture(paint: _Paint, x: Array, y: Array, size: int) -> Array:
    """Return where between the two colours each place is, from -1 to 1: (things, height, width)."""
    a, b, both, constant, sharpness, bend, *_ = _each(_TEXTURES[paint.texture].T)
    cos, sin = _each((paint.direction * paint.waves[:, None]).T)
    across = _wave(x * cos + y * sin + _each(paint.phase[:, 0]))
    along = _wave(y * cos - x * sin + _each(paint.phase[:, 1]) + bend * across)
    sharpness = np.minimum(sharpness, size / (3 * _each(paint.waves)))  # an edge takes a pixel at least
    return np.clip(sharpness * (a * across + b * along + both * (across * along) + constant), -1, 1)


def _coloured(paint: _Paint, blend: Array) -> Array:
    """Return the colour of each place: (things, 3, height, width)."""
    colours = blend[:, None] * _each(paint.change)
    colours += _each(paint.colour)
    return colours


def _paint_things(canvas: Array, things: _Things) -> None:
    """Paint into float32 (scenes, 3, size, size), each thing in a window around it."""
    size, slots = canvas.shape[-1], things.shown.shape[1]
    scene, slot = np.nonzero(things.shown)
    order = np.argsort(things.outline[scene, slot], kind="stable")
    scene, slot = scene[order], slot[order]
    fields = (things.outline, things.x, things.y, things.radius, things.turn)
    outline, x, y, radius, turn = (values[scene, slot, None] for values in fields)
    paint = things.paint[scene * slots + slot]
    half = math.ceil(radius.max(initial=0) * size) + 2  # an edge blurs the sharpest corner 1.6 pixels further
    side = min(2 * half + 1, size)
    left, top = (np.clip(np.floor(place * size).astype(np.int64) - half, 0, size - side) for place in (x, y))
    columns, rows = ((start + np.arange(side) + 0.5) / size for start in (left, top))
    right = ((columns - x) / radius).astype(np.float32)[:, None, :]
    up = ((y - rows) / radius).astype(np.float32)[:, :, None]
    cos, sin = _each(_DIRECTIONS[_below(turn[:, 0], 4096)].astype(np.float32).T)
    u, v = right * cos - up * sin, right * sin + up * cos  # (things, side, side)
    cover = np.empty_like(u)
    starts = np.searchsorted(outline[:, 0], range(len(_OUTLINES) + 1))
    for distance, start, stop in zip(_OUTLINES, starts, starts[1:], strict=False):
        if start < stop:
            cover[start:stop] = distance(u[start:stop], v[start:stop])
    cover = np.clip(0.5 - cover * _each((radius[:, 0] * size).astype(np.float32)), 0, 1) * things.opacity
    colours = _each(paint.colour)
    if paint.change.any():
        columns, rows = columns.astype(np.float32)[:, None, :], rows.astype(np.float32)[:, :, None]
        colours = _coloured(paint, _texture(paint, columns, rows, size))
    windows = sliding_window_view(canvas, (side, side), axis=(2, 3), writeable=True)
    for number in range(slots):
        now = np.flatnonzero(slot == number)
        place = (scene[now], slice(None), top[now, 0], left[now, 0])
        under = windows[place]  # (things, 3, side, side)
        over = colours[now] - under
        over *= cover[now, None]
        over += under
        windows[place] = over


def _clutter(draw: Draw, ground: Array, slots: int, low: float, high: float, outlines: Array) -> _Things:
    """Choose things of one colour each, anywhere; some are left out."""
    outline, x, y, size, turn, shown, luma = _draws(draw, "clutter", slots, 7)
    paint = _draw_paint(draw, _far_from(ground, 0.1, luma), 0.0)
    kind = outlines[_below(outline, len(outlines))]
    return _Things(kind, x, y, _between(size, low, high), turn, shown < 0.7, paint)


def _one_thing(draw: Draw, label: str, answer: Array, ground: Array) -> list[_Things]:
    """One thing among clutter that is much smaller."""
    outline, x, y, size, turn, luma = _draws(draw, "thing", 1, 6)
    number = _below(outline, _KINDS)
    radius = _between(size, 0.1, 0.15) if label == "x" else _between(size, 0.24, 0.38)
    y = _between(y, radius, 1 - radius)
    if label == "x":
        x = _LEFT + (answer + _between(x, 0.1, 0.9)) * _COLUMN
    else:
        x = _between(x, radius, 1 - radius)
    if label == "orientation":
        number = _ONE_SIDED[_below(outline, 3)]
        turn = (answer + _between(turn, -0.35, 0.35)) / 16 % 1
    if label == "class":
        number = answer
    paint = _draw_paint(draw.child("thing"), _far_from(ground, 0.3, luma), 0.12)
    small = 0.02 if label == "x" else 0.03
    return [
        _clutter(draw.child("lines"), ground, 3, 0.12, 0.26, _LINE),
        _clutter(draw.child("shapes"), ground, 8, small, 2 * small, _ANY),
        _Things(number, x, y, radius, turn, np.ones_like(number, bool), paint),
        _clutter(draw.child("specks"), ground, 3, 0.02, 0.03, _ANY),
    ]


def _many_things(draw: Draw, answer: Array, ground: Array) -> list[_Things]:
    """One to eight things that don't touch, on lines and specks."""
    slots, tries = 8, 12
    outline, size, turn, luma = _draws(draw, "things", slots, 4)
    places = _between(draw.uniform("places", slots * tries * 2), 0.12, 0.88).reshape(-1, slots, tries, 2)
    chosen = places[:, :, 0].copy()
    for slot in range(1, slots):  # each takes the place that is farthest from the things before
        apart = ((places[:, slot, :, None] - chosen[:, None, :slot]) ** 2).sum(axis=-1).min(axis=-1)
        chosen[:, slot] = places[np.arange(len(answer)), slot, apart.argmax(axis=-1)]
    apart = np.sqrt(((chosen[:, :, None] - chosen[:, None]) ** 2).sum(axis=-1)) + np.eye(slots)
    radius = np.minimum(_between(size, 0.085, 0.125), 0.46 * apart.min(axis=-1))
    paint = _draw_paint(draw.child("things"), _far_from(ground, 0.28, luma), 0.12)
    shown = np.arange(slots) <= answer
    return [
        _clutter(draw.child("lines"), ground, 4, 0.12, 0.26, _LINE),
        _clutter(draw.child("specks"), ground, 6, 0.012, 0.022, _ANY),
        _Things(_below(outline, _KINDS), chosen[..., 0], chosen[..., 1], radius, turn, shown, paint),
    ]


def _standing_things(draw: Draw, answer: Array, ground: Array, horizon: Array) -> list[_Things]:
    """One to five things that stand on the ground with their shadows, the nearest last, among flat spots."""
    outline, x, near, size, turn, luma, shown = _draws(draw, "things", 5, 7)
    nearest = 1 - (answer + _between(near[:, :1], 0.1, 0.9)) * _STEP  # one over its distance
    near = np.sort(np.where(np.arange(5) == 4, nearest, _between(near, 0.18, nearest - 0.2 * _STEP)), axis=1)
    shown = (shown < 0.6) | (np.arange(5) == 4)
    x, foot = _between(x, 0.15, 0.85), horizon + _FOCUS * near
    radius = 0.19 * near * _between(size, 0.85, 1.15)
    paint = _draw_paint(draw.child("things"), _far_from(ground, 0.28, luma), 0.12)
    black = _draw_paint(draw.child("shadows"), np.zeros_like(luma), 0.0)
    flat = np.full_like(shown, _SPOT, np.int64)
    spots = _clutter(draw.child("spots"), ground, 6, 0.6, 1.4, _SPOT)
    place = _between(spots.y, 0.2, 1)
    spots.y, spots.radius, spots.turn = horizon + _FOCUS * place, 0.19 * place * spots.radius, 0 * place
    return [
        spots,
        _Things(flat, x, foot, radius * 1.1, 0 * turn, shown, black, opacity=0.5),
        _Things(_below(outline, _KINDS), x, foot - 0.85 * radius, radius, turn, shown, paint),
    ]


def _pixels(size: int) -> tuple[Array, Array]:
    """Return the centres of the pixels, x (1, 1, size) and y (1, size, 1)."""
    centres = ((np.arange(size) + 0.5) / size).astype(np.float32)
    return centres[None, None, :], centres[None, :, None]


def _landscape(draw: Draw, paint: _Paint, horizon: Array, size: int) -> Array:
    """Paint ground in perspective, and a sky: (scenes, 3, size, size)."""
    x, y = _pixels(size)
    below = y - _each(horizon[:, 0]).astype(np.float32)
    depth = _FOCUS / np.maximum(below, 0.02)
    fading = np.clip(below * 5 - 0.3, 0, 1)  # before the texture gets finer than pixels
    ground = _coloured(paint, _texture(paint, (x - 0.5) * depth, depth, size) * fading)
    sky = _draw_paint(draw.child("sky"), _between(draw.uniform("sky"), 0.3, 0.9), 0.0)
    above = _each(sky.colour) * (1 - 0.4 * below)[:, None]
    return above + (ground - above) * np.clip(below * size + 0.5, 0, 1)[:, None]


def _answers(label: str, numbers: Array) -> Array:
    uniform = Draw(_SEED, 0, numbers, f"shapes/{label}").uniform("label")
    return _below(uniform, len(LABELS[label]))  # (scenes, 1)


def _render(label: str, numbers: Array, size: int) -> Array:
    """Paint the scenes of these numbers: uint8 (scenes, size, size, 3)."""
    draw = Draw(_SEED, 0, numbers, f"shapes/{label}")
    answer = _answers(label, numbers)
    luma = _between(draw.uniform("ground"), 0.12, 0.88)
    paint = _draw_paint(draw.child("ground"), luma, 0.08)
    x, y = _pixels(size)
    if label == "distance":
        horizon = _between(draw.uniform("horizon"), 0.24, 0.34)
        canvas = _landscape(draw, paint, horizon, size)
        layers = _standing_things(draw, answer, luma, horizon)
    else:
        canvas = _coloured(paint, _texture(paint, x, y, size))
        one = label != "count"
        layers = _one_thing(draw, label, answer, luma) if one else _many_things(draw, answer, luma)
    for things in layers:
        _paint_things(canvas, things)
    light_x, light_y = _each(_between(draw.uniform("light", 2), -0.35, 0.35).astype(np.float32).T)
    canvas *= (1 + light_x * (x - 0.5) + light_y * (y - 0.5))[:, None] * 255
    words = bits(_SEED, f"shapes/{label}/noise", numbers, -(-canvas[0].size // 8)).astype("<u8")
    noise = words.view(np.uint8)[:, : canvas[0].size].reshape(canvas.shape)
    canvas += noise * np.float32(0.1) - np.float32(12.25)  # from -12.75 to 12.75, and the half that rounds
    return np.clip(canvas, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)


class Shapes(Source):
    """Scenes of shapes; `label` says what is asked of them. Indices continue beyond the length."""

    name = "shapes"

    def __init__(
        self, split: str = "train", label: str = "class", size: int = 32, count: int | None = None
    ) -> None:
        """`count` is the number of images of the split, of each split if it is 'all'."""
        for kind, value, options in (("split", split, [*SPLITS, "all"]), ("label", label, list(LABELS))):
            if value not in options:
                hint = did_you_mean(value, options) or ";"
                raise InputError(f"shapes has no {kind} {value!r}{hint} expected {', '.join(options)}")
        if not 8 <= size <= 4096:
            raise InputError(f"shapes can't be {size} pixels wide; expected size=8 to size=4096")
        if count is not None and count < 1:
            raise InputError(f"shapes can't have {count} images; expected count=1 or more")
        self.split, self.label, self.size = split, label, size
        self.class_names = LABELS[label]
        parts = list(SPLITS) if split == "all" else [split]
        lengths = [SPLITS[part] if count is None else count for part in parts]
        self._firsts = np.cumsum([0, *lengths[:-1]])
        self._starts = np.array([SPAN * list(SPLITS).index(part) for part in parts])
        self.labels = self.labels_of(np.arange(sum(lengths)))

    def labels_of(self, indices: Array) -> Array:
        """Return the labels of any images: int64 (images,)."""
        return _answers(self.label, self._numbers(indices))[:, 0]

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
        """Return the places of images in the one sequence that all splits are cut from."""
        indices = np.asarray(indices, np.int64)
        if ((indices < 0) | (indices >= SPAN)).any():
            raise IndexError(f"shapes has images 0 to {SPAN - 1}")
        part = np.searchsorted(self._firsts, indices, side="right") - 1
        return indices - self._firsts[part] + self._starts[part]
