"""Pictures of what a model without labels has learned: a few fixed images, what is left of them, what it makes of that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.data.draws import Draw
from vitkit.data.evaluation import evaluation_pipeline
from vitkit.data.loader import EvaluationLoader
from vitkit.data.parts import written_whole
from vitkit.data.sheet import spread
from vitkit.data.sources.source import Subset
from vitkit.errors import InputError
from vitkit.train.build import Parts
from vitkit.train.config import TrainConfig
from vitkit.train.log import Listener
from vitkit.world import World

FOLDER = "pictures"
NUM_IMAGES = 4
GAP = 4
SIDE = 128
"Smaller images are magnified by a whole number, up to about this many pixels."


class Pictures:
    """Draws the same images with the same choices every time; of a run's pictures the first and the last are kept."""

    def __init__(
        self, config: TrainConfig, parts: Parts, path: Path, listener: Listener, world: World
    ) -> None:
        self.parts, self.path, self.listener, self.world = parts, path, listener, world
        source = parts.evaluator.source if parts.evaluator else parts.source
        self.indices = spread(len(source), NUM_IMAGES)
        self.loader = EvaluationLoader(
            Subset(source, self.indices),
            evaluation_pipeline(parts.preprocessing),
            batch_size=NUM_IMAGES,
            device=world.device,
            workers=0,
        )
        self.draws = Draw(config.seed, 0, self.indices, "pictures")
        self.images: Tensor | None = None
        self.can_draw = True

    def draw(self, step: int) -> None:
        """Write the picture of a step; each process takes part, since weights may be spread over them."""
        if not self.can_draw:
            return
        if self.images is None:
            try:
                [batch] = self.loader
            except InputError as error:
                self.listener.note(f"no pictures: {error}")
                self.can_draw = False
                return
            self.images = batch["image"]
            self.listener.note(f"pictures of what it learns: {self.path / FOLDER}")
        objective = self.parts.objective.eval()
        try:
            with torch.no_grad():
                panels = objective.pictures({"image": self.images}, self.draws)
        finally:
            objective.train()
        if panels is None or not self.world.is_first:
            return
        folder = self.path / FOLDER
        folder.mkdir(exist_ok=True)
        with written_whole(folder / f"{step:08d}.png") as part:
            Image.fromarray(sheet(panels.cpu().numpy())).save(part, "PNG")
        for file in drawn(self.path)[1:-1]:
            file.unlink()


def cut_pictures(path: Path, step: int) -> None:
    """Remove the pictures of later steps, as a run does that goes on from there."""
    for file in drawn(path):
        if int(file.stem) > step:
            file.unlink()


def drawn(path: Path) -> list[Path]:
    """Return a run's pictures, by step."""
    return sorted((path / FOLDER).glob("*.png"))


def sheet(panels: np.ndarray) -> np.ndarray:
    """Return panels (rows, columns, channels, height, width) as one picture (height, width, 3), white between them."""
    rows, columns, channels, height, width = panels.shape
    scale = max(1, SIDE // max(height, width))
    colors = (
        panels if channels == 3 else panels.mean(axis=2, keepdims=True).astype(np.uint8).repeat(3, axis=2)
    )
    large = colors.repeat(scale, axis=3).repeat(scale, axis=4)
    padded = np.pad(large, ((0, 0),) * 3 + ((0, GAP),) * 2, constant_values=255)
    joined = padded.transpose(0, 3, 1, 4, 2).reshape(
        rows * (scale * height + GAP), columns * (scale * width + GAP), 3
    )
    return joined[:-GAP, :-GAP]
