"""Groups of rows that are alike: all pairs compared in blocks, and what is connected by them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitkit.progress import Progress

ROWS, COLUMNS = 2048, 16_384
"Similarities that are held at once."
SLACK = 1e-6
"Rounding of a similarity in float32: equal rows may be less similar than 1."
_MOST_LINKS = 1 << 22


class SimilarPairs(NamedTuple):
    """Pairs of rows, each once."""

    first: np.ndarray
    second: np.ndarray
    similarity: np.ndarray


def similar_pairs(rows: Tensor, at_least: float, progress: Progress | None = None) -> Iterator[SimilarPairs]:
    """Yield the pairs of rows whose cosine similarity is high enough; the rows have length one.

    progress: called with the number of pairs compared, and their total.
    """
    count = len(rows)
    done, total = 0, count * (count - 1) // 2
    for start in range(0, count, ROWS):
        block = rows[start : start + ROWS]
        for begin in range(start, count, COLUMNS):
            # Zeros where the pair was compared before, or is a row with itself.
            similarities = (block @ rows[begin : begin + COLUMNS].T).triu(1 + start - begin)
            is_similar = similarities >= at_least - SLACK
            if is_similar.any():
                first, second = is_similar.nonzero(as_tuple=True)
                values = similarities[first, second]
                yield SimilarPairs(*(x.cpu().numpy() for x in (first + start, second + begin, values)))
        done += len(block) * (count - start) - len(block) * (len(block) + 1) // 2
        if progress:
            progress(done, total)


class Groups:
    """What pairs connect, directly or through others."""

    def __init__(self, count: int) -> None:
        self.pairs = 0
        "How many there were."
        self.best = np.zeros(count, np.float32)
        "The greatest similarity of each row to another."
        self._owner = np.arange(count)
        "A row of the same group, for each row."
        self._links: list[tuple[np.ndarray, np.ndarray]] = []
        self._held = 0

    def add(self, pairs: SimilarPairs) -> None:
        self.pairs += len(pairs.first)
        np.maximum.at(self.best, pairs.first, pairs.similarity)
        np.maximum.at(self.best, pairs.second, pairs.similarity)
        self._links.append((pairs.first, pairs.second))
        self._held += len(pairs.first)
        if self._held > _MOST_LINKS:
            self._join()

    def members(self) -> list[np.ndarray]:
        """Return the rows of each group of two or more, the largest group first."""
        self._join()
        order = np.argsort(self._owner, kind="stable")
        edges = np.flatnonzero(np.diff(self._owner[order])) + 1
        groups = [group for group in np.split(order, edges) if len(group) > 1]
        return sorted(groups, key=lambda group: (-len(group), int(group[0])))

    def _join(self) -> None:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        count = len(self._owner)
        self._links.append((np.arange(count), self._owner))
        first, second = (np.concatenate(column) for column in zip(*self._links, strict=True))
        graph = coo_array((np.ones(len(first), bool), (first, second)), shape=(count, count))
        _, numbers = connected_components(graph, directed=False)
        _, firsts = np.unique(numbers, return_index=True)
        self._owner, self._links, self._held = firsts[numbers], [], 0
