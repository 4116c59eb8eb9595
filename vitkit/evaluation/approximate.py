"""An index that finds nearly all nearest rows without comparing every one: faiss's graph of neighbours (HNSW), kept in the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitkit.data.cache import cache_folder
from vitkit.errors import InputError
from vitkit.evaluation.embeddings import Embeddings
from vitkit.evaluation.groups import SLACK, SimilarPairs
from vitkit.evaluation.neighbours import Nearest, unit_rows
from vitkit.files import written_whole
from vitkit.progress import Progress

LINKS, BUILD_BREADTH = 32, 80
"Neighbours of a row in the graph, and candidates that are looked at when it is added."
BREADTH = 64
"Candidates that are looked at for a query, at least."
NEIGHBOURS = 32
"Of each row, that are looked at for near-duplicates."
_ROWS = 4096


class Index:
    """An index of the rows of a file of embeddings."""

    def __init__(self, embeddings: Embeddings, progress: Progress | None = None) -> None:
        """Open the index of a file, or build it; progress: called with the number of rows in it, and their total."""
        faiss = _faiss()
        self.embeddings = embeddings
        path = _path(embeddings)
        self._graph = _read(faiss, path, embeddings)
        if self._graph is None:
            self._graph = _build(faiss, embeddings, progress)
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as part:
                faiss.write_index(self._graph, str(part))

    def nearest(self, vectors: np.ndarray, k: int) -> Nearest:
        """Return the k rows that are nearest to each vector, by cosine similarity, as far as the graph leads to them."""
        count = min(k, len(self.embeddings))
        self._graph.hnsw.efSearch = max(BREADTH, 2 * count)
        similarities, numbers = self._graph.search(unit_rows(vectors).numpy(), count)
        return Nearest(torch.from_numpy(similarities).clamp(-1, 1), torch.from_numpy(numbers))

    def similar_pairs(self, at_least: float, progress: Progress | None = None) -> SimilarPairs:
        """Return pairs of rows whose similarity is high enough, among each row's nearest."""
        done, count = 0, len(self.embeddings)
        keys, values = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for block in self.embeddings.blocks():
            for start in range(0, len(block), _ROWS):
                rows = block[start : start + _ROWS]
                similarities, numbers = (part.numpy() for part in self.nearest(rows, NEIGHBOURS))
                first = np.arange(done, done + len(rows))[:, None].repeat(similarities.shape[1], 1)
                kept = (similarities >= at_least - SLACK) & (numbers >= 0) & (numbers != first)
                low, high = (pick(first, numbers)[kept] for pick in (np.minimum, np.maximum))
                keys.append(low * count + high)
                values.append(similarities[kept])
                done += len(rows)
                if progress:
                    progress(done, count)
        # Both rows of a pair may have found it.
        found, places = np.unique(np.concatenate(keys), return_index=True)
        return SimilarPairs(*np.divmod(found, max(1, count)), np.concatenate(values)[places])


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise InputError('approximate search needs faiss: pip install "vitkit[search]"') from None
    return faiss


def _path(embeddings: Embeddings) -> Path:
    """Return where the cache keeps the index of these rows."""
    origin = embeddings.origin
    facts = (origin.weights, origin.images, len(embeddings), embeddings.width, LINKS, BUILD_BREADTH)
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()
    return cache_folder() / "indexes" / f"{digest}.hnsw"


def _read(faiss: Any, path: Path, embeddings: Embeddings) -> Any:
    """Return an index that was kept; None if it is missing or damaged."""
    if not path.is_file():
        return None
    try:
        graph = faiss.read_index(str(path))
    except RuntimeError:
        return None
    return graph if (graph.ntotal, graph.d) == (len(embeddings), embeddings.width) else None


def _build(faiss: Any, embeddings: Embeddings, progress: Progress | None) -> Any:
    graph = faiss.IndexHNSWFlat(embeddings.width, LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = BUILD_BREADTH
    for block in embeddings.blocks():
        for start in range(0, len(block), _ROWS):
            graph.add(unit_rows(block[start : start + _ROWS]).numpy())
            if progress:
                progress(graph.ntotal, len(embeddings))
    return graph
