"""The model folders of a run: written whole, remembered by their digests, verified and repaired on resume."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from vitkit.errors import InputError
from vitkit.files import digest
from vitkit.runs import RunFolder
from vitkit.training.build import RunParts
from vitkit.training.checkpoints import on_first_rank
from vitkit.training.distributed import whole
from vitkit.weights.folder import fill_folder, replacing
from vitkit.weights.load import read_model
from vitkit.world import World

FILES = ("config.json", "model.safetensors")


@dataclass(frozen=True)
class Kept:
    """Which weights a model folder holds."""

    step: int
    sha256: str
    "Of its config and its weights."


class KeptModels:
    """Writes model folders and knows what they hold; every process calls it, the first one writes.

    run.json lists the digests of the last two writes of each folder, the newest first: a kill can come between the
    record and the swap of folders, and then the older one is in place. A checkpoint has the list as it was then.
    """

    def __init__(self, parts: RunParts, path: Path, folder: RunFolder | None, world: World) -> None:
        self.parts, self.path, self.folder, self.world = parts, path, folder, world

    def write(self, name: str, step: int, averaged: bool, unless_held: bool = False) -> None:
        """Write the weights as they are now; each process takes part, since weights may be spread over them.

        unless_held: a folder that holds them already stays.
        """
        if unless_held and on_first_rank(lambda: (held := self.held(name)) is not None and held.step == step):
            return
        model, average = self.parts.model, self.parts.average
        weights: dict[str, Tensor] = {}
        with average.applied() if average and averaged else nullcontext():
            for key, tensor in model.state_dict().items():
                gathered = whole(tensor)
                if self.world.is_first:
                    weights[key] = gathered.cpu().clone()
        if self.folder is None:
            return
        known = self.folder.record["models"]
        with replacing(self.path / name, force=True) as new:
            fill_folder(
                new,
                model.config,
                weights,
                self.parts.preprocessing,
                self.parts.class_names,
                self.parts.source.has_several_labels and getattr(self.parts.objective, "sigmoid", False),
            )
            entry = asdict(Kept(step, folder_digest(new)))
            self.folder.update(models={**known, name: [entry, *known.get(name, [])[:1]]})

    def held(self, name: str, state: Mapping[str, Any] = MappingProxyType({})) -> Kept | None:
        """Return what a folder holds, if it is whole: known by its digest, or, of an older run, readable.

        state: what the checkpoint says, from which the run resumes.
        """
        known = self._known(name, state)
        try:
            found = folder_digest(self.path / name)
            if not known:
                read_model(self.path / name)
                return Kept(-1, found)
        except (OSError, InputError):
            return None
        return next((entry for entry in known if entry.sha256 == found), None)

    def was_written(self, name: str, state: Mapping[str, Any]) -> bool:
        """Say whether a folder should be there."""
        return bool(self._known(name, state))

    def _known(self, name: str, state: Mapping[str, Any]) -> list[Kept]:
        assert self.folder is not None
        lists = (models.get(name, []) for models in (self.folder.record["models"], state.get("models", {})))
        return [Kept(**entry) for entries in lists for entry in entries]


def folder_digest(folder: Path) -> str:
    """Return what tells the config and weights of a model folder from others."""
    return hashlib.sha256("".join(digest(folder / name) for name in FILES).encode()).hexdigest()
