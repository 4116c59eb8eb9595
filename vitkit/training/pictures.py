"""Pictures of self-supervised training: a few fixed images, the model's input, and its predictions."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitkit.data.draws import Draw
from vitkit.data.fetch import MOST_REPLACEMENTS
from vitkit.data.loader import EvaluationLoader
from vitkit.data.pipeline import evaluation_pipeline
from vitkit.data.sources.source import Source, Subset, spread
from vitkit.errors import InputError
from vitkit.files import written_whole
from vitkit.notes import Note
from vitkit.progress import Listener
from vitkit.training.build import RunParts
from vitkit.training.config import TrainConfig
from vitkit.world import World

FOLDER = "pictures"
HEADINGS = ("image", "given", "predicted")
NUM_IMAGES = 4


class Pictures:
    """Draws the same images with the same random choices every time. Only a run's first and last pictures are kept."""

    def __init__(
        self, config: TrainConfig, parts: RunParts, path: Path, listener: Listener, world: World
    ) -> None:
        self.parts, self.path, self.listener, self.world = parts, path, listener, world
        self.seed = config.seed
        self.source: Source = parts.evaluator.source if parts.evaluator else parts.source
        self.images: Tensor | None = None
        self.can_draw = True

    def draw(self, step: int) -> None:
        """Write the picture of a step. Every process takes part, since weights may be sharded."""
        if not self.can_draw:
            return
        if self.images is None:
            try:
                self.images, self.draws = self.read()
            except InputError as error:
                self.listener.note(Note(f"no pictures: {error}", "warning"))
                self.can_draw = False
                return
            self.listener.note(Note(f"pictures of its predictions: {self.path / FOLDER}"))
        objective = self.parts.objective.eval()
        try:
            with torch.no_grad():
                panels = objective.pictures({"image": self.images}, self.draws)
        finally:
            objective.train()
        if panels is None or not self.world.is_first:
            return
        from vitkit.figures.sheets import column_sheet

        folder = self.path / FOLDER
        folder.mkdir(exist_ok=True)
        with written_whole(folder / f"{step:08d}.png") as part:
            column_sheet(panels.cpu().numpy(), HEADINGS).save(part, "PNG")
        for file in drawn(self.path)[1:-1]:
            file.unlink()

    def read(self) -> tuple[Tensor, Draw]:
        """Return evenly spaced images of the source, with their random choices; the next image replaces an unreadable one."""
        found: dict[int, Tensor] = {}
        first = None
        for start, stop in pairwise([*spread(len(self.source), NUM_IMAGES).tolist(), len(self.source)]):
            for index in range(start, stop)[:MOST_REPLACEMENTS]:
                try:
                    found[index] = self.read_one(index)
                    break
                except InputError as error:
                    first = first or error
        if first and not found:
            raise first
        return torch.cat([*found.values()]), Draw(self.seed, 0, np.array([*found]), "pictures")

    def read_one(self, index: int) -> Tensor:
        [batch] = EvaluationLoader(
            Subset(self.source, np.array([index])),
            evaluation_pipeline(self.parts.preprocessing),
            batch_size=1,
            device=self.world.device,
            workers=0,
            bad_images="error",
        )
        return batch["image"]


def cut_pictures(path: Path, step: int) -> None:
    """Remove the pictures of later steps, for a run that resumes at `step`."""
    for file in drawn(path):
        if int(file.stem) > step:
            file.unlink()


def drawn(path: Path) -> list[Path]:
    """Return a run's pictures, by step."""
    return sorted((path / FOLDER).glob("[0-9]" * 8 + ".png"))
