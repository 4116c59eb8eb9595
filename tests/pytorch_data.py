"""A PyTorch data set of one's own, for the verbs that take one."""

from __future__ import annotations

from torch import Tensor
from torch.utils.data import Dataset

from vitkit.data.open import open_data


class Digits(Dataset[tuple[Tensor, int]]):
    """Images of `digits` as uint8 tensors."""

    def __init__(self, data: str) -> None:
        self.source = open_data(data)
        self.targets, self.classes = self.source.labels.tolist(), list(self.source.class_names)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.source[index]
