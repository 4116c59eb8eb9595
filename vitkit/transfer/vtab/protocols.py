"""How a task is learned: ViT's protocol, BiT's HyperRule and the light script, as changes that `finetune` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitkit.config import Bounds, merge
from vitkit.data.sources.vtab import TRAINING
from vitkit.data.splits import counted
from vitkit.errors import InputError, did_you_mean
from vitkit.models.configs import ModelConfig, write_size
from vitkit.training.estimate import operations
from vitkit.transfer.protocols import fitting_size, in_proportion, part_changes
from vitkit.transfer.vtab.tasks import Exercise

FEWSHOT = "fewshot"


@dataclass(frozen=True)
class VtabProtocol:
    """Settings of all tasks alike; shares of the run keep their places when --steps shortens it."""

    steps: int
    batch_size: int
    learning_rate: float
    schedule: str
    image_size: int
    small_size: int
    "Side for images that are small themselves."
    clip_norm: float | None
    augments: bool
    "Whether images are cropped and mirrored, where the task allows it."


# ViT: B.1.1, with the warm-up of the official code. BiT: the breakpoints of its code, 100 to 500 for 1,000 images.
# light: run_all_tasks.sh, with the model's own normalisation in place of the range 0 to 1.
PROTOCOLS = {
    "vit": VtabProtocol(2500, 512, 0.01, "{name: cosine, warmup: '20%'}", 384, 384, 1.0, True),
    "bit": VtabProtocol(
        *(500, 512, 0.003, "{name: step, warmup: '20%', drops: ['40%', '60%', '80%']}", 384, 128, None, True)
    ),
    "light": VtabProtocol(
        *(1000, 64, 0.01, "{name: step, warmup: '8%', drops: ['30%', '60%', '90%']}", 224, 224, None, False)
    ),
}
NAMES = (*PROTOCOLS, FEWSHOT)
GRID = (0.001, 0.003, 0.01, 0.03)
"Learning rates that --sweep lr tries on train800 and val200."
LARGER = {384: 448, 128: 160}
"What an image is resized to before a crop of this side."


def check_protocol(
    name: str, *, steps: int | None, seeds: int, sweep: str | None, changes: Sequence[str]
) -> None:
    """Refuse a protocol that there isn't, and settings that it doesn't read."""
    if name not in NAMES:
        hint = did_you_mean(name, NAMES) or ";"
        raise InputError(f"unknown protocol {name!r}{hint} expected {', '.join(NAMES)}")
    Bounds(at_least=1).check("seeds", seeds)
    Bounds(at_least=1).check("steps", steps)
    if sweep not in (None, "lr"):
        raise InputError(f"sweep is {sweep!r}; expected lr")
    own, rest = part_changes(changes)
    if own.protocol == "quick" or own.minutes is not None:
        raise InputError(f"VTAB has no protocol quick and no minutes; expected protocol {', '.join(NAMES)}")
    for change in rest:
        if change.key in ("duration", "data.evaluate"):
            raise InputError(f"{change.key} is VTAB's own; a shorter run is given by steps")
    if name == FEWSHOT:
        given = {
            "--steps": steps is not None,
            "--seeds": seeds > 1,
            "--sweep": sweep is not None,
            "changes": bool(changes),
        }
        for flag, is_given in given.items():
            if is_given:
                raise InputError(
                    f"{flag} has no meaning for protocol fewshot, which solves for its head: leave it out"
                )


def changes_of(
    name: str, task: Exercise, model: ModelConfig, steps: int | None, changes: Sequence[str] = ()
) -> list[str]:
    """Return the settings of a task's run, the user's changes last."""
    protocol, size = PROTOCOLS[name], size_of(name, task, model, changes)
    clip = "" if protocol.clip_norm is None else f", clip_norm: {protocol.clip_norm}"
    return [
        "protocol=paper",
        f"image_size={write_size(size)}",
        f"duration={steps or protocol.steps}",
        f"batch_size={protocol.batch_size}",
        f"optimizer={{name: sgd, learning_rate: {protocol.learning_rate}, momentum: 0.9{clip}}}",
        f"schedule={protocol.schedule}",
        f"data.pipeline={_pipeline(protocol, task, size)}",
        "select=last",
        "keep_checkpoints=1",
        *(change for change in changes if change.partition("=")[0] not in ("protocol", "image_size")),
    ]


def size_of(name: str, task: Exercise, model: ModelConfig, changes: Sequence[str] = ()) -> tuple[int, int]:
    """Return the size of a task's images: the protocol's in the model's proportions, or the user's, as patches fit."""
    protocol = PROTOCOLS[name]
    if asked := part_changes(changes)[0].image_size:
        return fitting_size(model, asked)
    return in_proportion(model, protocol.small_size if task.is_small else protocol.image_size)


def operations_of(
    name: str,
    task: Exercise,
    model: ModelConfig,
    *,
    steps: int | None,
    seeds: int,
    sweep: str | None,
    changes: Sequence[str] = (),
) -> float:
    """Return the floating-point operations of all runs of a task."""
    if name == FEWSHOT:
        seen = TRAINING["train800val200"] + task.num_test
        return operations(model, model.size, trained=0, measured=seen)
    protocol, size = PROTOCOLS[name], size_of(name, task, model, changes)
    batch_size = merge({}, part_changes(changes)[1]).get("batch_size", protocol.batch_size)
    trained = (steps or protocol.steps) * batch_size
    flops = seeds * operations(model, size, trained=trained, measured=task.num_test)
    if sweep:
        flops += len(GRID) * operations(model, size, trained=trained, measured=TRAINING["val200"])
    return flops


def _pipeline(protocol: VtabProtocol, task: Exercise, size: tuple[int, int]) -> str:
    steps = [f"resize({write_size(size)})"]
    if protocol.augments and task.crop:
        side = protocol.small_size if task.is_small else protocol.image_size
        height, width = (round(length * LARGER[side] / side) for length in size)
        steps = [f"resize({write_size((height, width))})", f"random_crop({write_size(size)})"]
    return "|".join([*steps, "flip"] if protocol.augments and task.flip else steps)


def protocol_in_words(name: str, steps: int | None, is_swept: bool = False) -> str:
    """Return what a table says of the protocol."""
    if name == FEWSHOT:
        return "fewshot: ridge regression on frozen features"
    protocol = PROTOCOLS[name]
    sizes = f"{protocol.image_size} px" + (
        "" if protocol.small_size == protocol.image_size else f", small images {protocol.small_size} px"
    )
    length = counted(steps or protocol.steps, "step")
    if steps not in (None, protocol.steps):
        length += f" (the protocol's are {protocol.steps:,})"
    rate = "chosen by val200" if is_swept else f"{protocol.learning_rate:g}"
    return f"{name}: {length} of {protocol.batch_size} images, learning rate {rate}, {sizes}"
