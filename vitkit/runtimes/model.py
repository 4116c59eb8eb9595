"""A graph in a runtime as a Model, so that whatever measures a model measures an exported one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from vitkit.errors import InputError
from vitkit.models.configs import ModelConfig, Size, as_size, write_size
from vitkit.models.model import Model
from vitkit.models.precision import Precision
from vitkit.models.record import Record
from vitkit.runtimes.folder import ExportedFolder
from vitkit.runtimes.session import Session


class RuntimeModel(Model):
    """Gives the logits and features of an exported graph; it has no weights, so nothing else can be asked of it."""

    sha256: Tensor

    def __init__(self, folder: ExportedFolder, session: Session) -> None:
        super().__init__()
        self.config: ModelConfig = folder.stored.config
        self.folder, self.session = folder, session
        self._outputs = frozenset(folder.outputs)
        # In the state dict, so that features that are kept belong to this very graph.
        sums = "".join(folder.sha256.values())
        self.register_buffer("sha256", torch.frombuffer(bytearray.fromhex(sums), dtype=torch.uint8))

    def forward(self, images: Tensor, record: Record | None = None) -> Tensor:
        outputs = self._run(images)
        if record is not None:
            self._fill(record, outputs)
        return outputs["logits" if "logits" in outputs else "features"]

    def features(self, images: Tensor, record: Record | None = None) -> Tensor:
        outputs = self._run(images)
        if "features" not in self._outputs:
            raise InputError(
                f"{self.folder.path} gives only logits: a module of your own was exported, whose features aren't in its graph"
            )
        if record is not None:
            self._fill(record, outputs)
        return outputs["features"]

    def reset_head(self, num_classes: int, bias: float = 0.0) -> None:
        raise InputError(
            f"{self.folder.path} is an exported graph and can't get a new head: use the model folder that it was made from"
        )

    def set_image_size(self, image_size: Size) -> None:
        if as_size(image_size) != self.config.size:
            made = write_size(self.config.size)
            raise InputError(
                f"{self.folder.path} is an exported graph for images of {made}: export the model again with "
                f"--image-size {write_size(image_size)}"
            )

    def set_precision(self, precision: Precision, largest: Mapping[str, float] | None = None) -> None:
        raise InputError(
            f"{self.folder.path} is an exported graph, whose precision is {self.folder.precision}: export the model again "
            "with --precision"
        )

    def why_unmerged(self) -> str | None:
        return f"{self.folder.path} is an exported graph, which can't change"

    def _run(self, images: Tensor) -> dict[str, Tensor]:
        self.check_images(images)
        if not len(images):  # runtimes don't take empty batches
            sample = self._run(torch.zeros(1, *images.shape[1:]))
            return {name: value[:0] for name, value in sample.items()}
        array = images.detach().cpu().float().numpy()
        values = self.session.run(array)
        return {name: torch.from_numpy(np.asarray(value, np.float32)) for name, value in values.items()}

    def _fill(self, record: Record, outputs: dict[str, Tensor]) -> None:
        if hidden := record.kinds - self._outputs:
            raise InputError(
                f"{self.folder.path} is an exported graph, which hides its {' and '.join(sorted(hidden))}: use the model "
                "folder that it was made from"
            )
        record.start(0)
        record.keep("features", outputs["features"])
