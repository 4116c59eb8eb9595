"""Checkpoints: written under a temporary name, checksummed, then renamed, so a named checkpoint is complete."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from vitkit.errors import InputError
from vitkit.files import digest, json_text, sync
from vitkit.notes import Note

Result = TypeVar("Result")
STATE, MANIFEST = "state.json", "manifest.json"
# A checkpoint is named by its step. While another one of the same step replaces it, it is `.STEP.old`. Names that
# end in `.part` are incomplete: being written, or being removed.
_NAME = re.compile(r"(\d{8,})|\.(\d{8,})\.old")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    step: int
    path: Path
    state: dict[str, object]
    "What was saved in addition to the tensors."

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Load into the tensors of a nested dict, plain or sharded; their names, types and shapes must match."""
        wanted = _flatten(tensors)
        with _speaking_of(self.path, "read"):
            reader = _Reader(self.path)
            stored = reader.read_metadata().state_dict_metadata
            for name in sorted(wanted.keys() | stored.keys()):
                there, here = _describe(stored.get(name)), _describe(wanted.get(name))
                if there != here:
                    raise InputError(
                        f"{self.path} belongs to another model or optimiser: {name!r} is {there} there, {here} here; "
                        "use the settings it was saved with, or start another run"
                    )
            dcp.load(wanted, storage_reader=reader)


def save(folder: Path, step: int, tensors: Mapping[str, Any], state: Mapping[str, Any], keep: int) -> None:
    """Save the tensors of a nested dict and `state` as JSON to folder/STEP, and keep the last `keep` checkpoints.

    Every rank calls it, with a folder that all share. The state is that of rank 0.
    """
    assert keep >= 1
    path = folder / f"{step:08d}"
    part = _part(path)
    try:
        with _speaking_of(path, "written"):
            on_first_rank(lambda: _start(folder, part))
            dcp.save(_flatten(tensors), storage_writer=_Writer(part))
            digests = on_every_rank(lambda: _digests(part, part.glob(f"__{_rank()}_*")))
            files = {name: digest for rank in digests for name, digest in rank.items()}
            on_first_rank(lambda: _finish(part, path, state, files))
            on_first_rank(lambda: _prune(folder, path, keep))
    finally:
        if _rank() == 0:
            shutil.rmtree(part, ignore_errors=True)


def latest(folder: Path, warn: Callable[[Note], None]) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None if there are no checkpoints; warn about each broken one."""

    def find() -> Checkpoint | None:
        found = _checkpoints(folder)
        for place, path in enumerate(found):
            try:
                return _verified(path)
            except (OSError, ValueError) as error:
                cause = (error.strerror if isinstance(error, OSError) else None) or error
                rest = "; trying the one before it" if place + 1 < len(found) else ""
                warn(Note(f"checkpoint {path} is broken: {cause}{rest}", "warning"))
        if found:
            raise InputError(
                f"all checkpoints in {folder} are broken; restore one from a backup, "
                "or remove the folder to start from the beginning"
            )
        return None

    with _speaking_of(folder, "read"):
        return on_first_rank(find)


def on_every_rank(function: Callable[[], Result]) -> list[Result]:
    """Call a function on every rank and return all results; an exception on one rank is raised on all."""
    given: list[tuple[Any, Exception | None]]
    try:
        given = [(function(), None)]
    except Exception as error:
        given = [(None, error)]
    if _distributed():
        mine = given[0]
        given = given * dist.get_world_size()
        dist.all_gather_object(given, mine)
    for _, failure in given:
        if failure is not None:
            raise failure
    return [result for result, _ in given]


def on_first_rank(function: Callable[[], Result]) -> Result:
    """Call a function on rank 0 and return its result on every rank; an exception is raised on all."""
    result = on_every_rank(lambda: function() if _rank() == 0 else None)[0]
    return result  # type: ignore[return-value]


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank() -> int:
    return dist.get_rank() if _distributed() else 0


class _Writer(dcp.FileSystemWriter):
    """Raises the file system's error, which torch.save hides behind its own."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            raise _cause(error) or error from None


class _Reader(dcp.FileSystemReader):
    """Reads a checkpoint that may be untrusted: its .metadata is a pickle, which could run any code.

    Only classes that describe tensors are unpickled, and they may only name tensors in the checkpoint's own files. DCP
    reads tensors with weights_only, but would unpickle anything else.
    """

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path, ".metadata")
        try:
            with open(path, "rb") as file:
                metadata = _Unpickler(file).load()
            _check_metadata(metadata)
        except OSError:
            raise
        except Exception as error:
            what = f"it names {error.args[0]}" if isinstance(error, _NotMetadata) else "it can't be read"
            raise InputError(
                f"{path} does not only describe tensors ({what}), so reading it could run code; "
                f"remove {path.parent}, or start another run"
            ) from None
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


def _check_metadata(metadata: Any) -> None:
    """Refuse anything but tensors in the checkpoint's own files. Not with asserts, which -O removes."""
    if not isinstance(metadata, Metadata):
        raise _NotMetadata(type(metadata).__name__)
    for entry in metadata.state_dict_metadata.values():
        if type(entry) is not TensorStorageMetadata:
            raise _NotMetadata(type(entry).__name__)
    for info in metadata.storage_data.values():
        if type(info) is not _StorageInfo or getattr(info, "transform_descriptors", None):
            raise _NotMetadata("transformed data")
        if not re.fullmatch(r"__\d+_\d+\.distcp", info.relative_path):
            raise _NotMetadata(f"the file {info.relative_path!r}")


class _NotMetadata(Exception):
    """A pickle that names something other than a description of tensors."""


class _Unpickler(pickle.Unpickler):
    """Unpickles only the classes that torch.distributed.checkpoint writes, which can't run code."""

    def find_class(self, module: str, name: str) -> Any:
        # In Python 3.13, pathlib's classes are in pathlib._local.
        known = _METADATA.get(f"{module.removesuffix('._local')}.{name}")
        if known is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            known = getattr(torch, name)
        if known is None:
            raise _NotMetadata(f"{module}.{name}")
        return known


def _layout(name: str) -> torch.layout:
    if name != "torch.strided":
        raise _NotMetadata(name)
    return torch.strided


_METADATA: dict[str, object] = {
    "torch.Size": torch.Size,
    "torch.serialization._get_layout": _layout,
    "torch.distributed.checkpoint.filesystem._StorageInfo": _StorageInfo,
    # Where the checkpoint was written; not used.
    **{f"pathlib.{kind}Path": PurePosixPath for kind in ("Posix", "PurePosix", "Windows", "PureWindows")},
    **{
        f"torch.distributed.checkpoint.metadata.{kind.__name__}": kind
        for kind in (
            *(ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta, TensorProperties),
            *(TensorStorageMetadata, _MEM_FORMAT_ENCODING),
        )
    },
}


def _cause(error: BaseException | None) -> OSError | None:
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


@contextmanager
def _speaking_of(path: Path, done: str) -> Iterator[None]:
    """Turn errors of the file system, on any rank, into a one-line InputError."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except (OSError, CheckpointException) as error:
        errors = (
            [failure for failure, _ in error.failures.values()]
            if isinstance(error, CheckpointException)
            else [error]
        )
        for cause in errors:
            if isinstance(cause, OSError):
                raise InputError(f"{path} can't be {done}: {cause.strerror or cause}") from None
        raise errors[0] from error


def _flatten(tensors: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    flat: dict[str, Tensor] = {}
    for name, value in tensors.items():
        path = f"{prefix}{name}"
        inner = _flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
        assert all(isinstance(tensor, Tensor) for tensor in inner.values()), (
            "other values belong in the state"
        )
        assert not flat.keys() & inner.keys(), f"two tensors are named {path}"
        flat |= inner
    return flat


def _describe(entry: Any) -> str:
    """Return the dtype and shape of a tensor or of a checkpoint's entry, in words."""
    if entry is None:
        return "missing"
    dtype = entry.properties.dtype if isinstance(entry, TensorStorageMetadata) else entry.dtype
    shape = entry.size if isinstance(entry, TensorStorageMetadata) else entry.shape
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name.removeprefix('.')}.part")


def _step(path: Path) -> int:
    return int(re.sub(r"\D", "", path.name))


def _checkpoints(folder: Path) -> list[Path]:
    """Return the folders that may be checkpoints, newest first."""
    if not folder.exists():
        return []
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (_step(path), path.suffix != ".old"), reverse=True)


def _start(folder: Path, part: Path) -> None:
    """Create an empty folder to write to, and remove what killed processes left behind."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".*.part"):
        shutil.rmtree(left, ignore_errors=True)
    part.mkdir()


def _digests(folder: Path, files: Iterator[Path]) -> dict[str, dict[str, object]]:
    """Return the size and checksum of each file by name; hashing releases the GIL, so threads help."""
    with ThreadPoolExecutor() as pool:
        return dict(pool.map(lambda path: (path.name, _digest(path)), files))


def _digest(path: Path) -> dict[str, object]:
    return {"size": path.stat().st_size, "sha256": digest(path)}


def _finish(part: Path, path: Path, state: Mapping[str, Any], files: dict[str, dict[str, object]]) -> None:
    """Write the state, then the manifest, then give the checkpoint its name."""
    for name in files:
        if not (part / name).exists():
            raise InputError(
                f"{path.parent} is not the same folder for all ranks; use one on a shared file system"
            )
    (part / STATE).write_text(json_text(state), encoding="utf-8")
    files |= _digests(part, iter([part / STATE, part / ".metadata"]))
    (part / MANIFEST).write_text(json_text({"files": files}), encoding="utf-8")
    sync(part / STATE, part / MANIFEST, part)
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    part.rename(path)
    sync(path.parent)


def _prune(folder: Path, newest: Path, keep: int) -> None:
    """Remove all checkpoints but `newest` and the `keep - 1` before it.

    Checkpoints of later steps than `newest` are broken: a resumed run skipped them.
    """
    others = [path for path in _checkpoints(folder) if path != newest]
    before = [path for path in others if _step(path) < _step(newest) and path.suffix != ".old"]
    for path in others:
        if path not in before[: keep - 1]:
            path.rename(_part(path))
            shutil.rmtree(_part(path), ignore_errors=True)


def _verified(path: Path) -> Checkpoint:
    """Return a checkpoint whose files all match its manifest; else raise ValueError or OSError."""
    if not path.is_dir():
        raise ValueError("it is not a folder")
    if not (path / MANIFEST).exists():
        raise ValueError(f"{MANIFEST} is missing")
    try:
        files = json.loads((path / MANIFEST).read_bytes())["files"]
        sizes = {name: digest["size"] for name, digest in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{MANIFEST} can't be read") from None
    for name in {STATE: 0, ".metadata": 0} | sizes:
        if name not in sizes:
            raise ValueError(f"{MANIFEST} lacks {name}")
        if not (path / name).is_file():
            raise ValueError(f"{name} is missing")
        if (size := (path / name).stat().st_size) != sizes[name]:
            raise ValueError(f"{name} has {size} bytes instead of {sizes[name]}")
    digests = _digests(path, (path / name for name in files))
    for name in files:
        if digests[name] != files[name]:
            raise ValueError(f"{name} has the wrong checksum")
    state = json.loads((path / STATE).read_bytes())
    if not isinstance(state, dict) or state.get("step", _step(path)) != _step(path):
        raise ValueError("its name doesn't match its step; it was renamed or mixed up with another")
    return Checkpoint(_step(path), path, state)
