"""Folders that a command fills: who works there, with which settings, and what `--force` removes.

A command opens its folder, works, and closes it:

    with RunFolder(path, settings, kind="finetune", force=force, keeps=[paths of MODEL and DATA]) as folder:
        if folder.record["status"] == "done":
            return ...                            # the same command again: already finished
        plan = make_plan(...)                     # whatever can be wrong with the input
        folder.clear()                            # with `force`, only now the earlier run is removed
        ...                                       # work; what an interrupted run made is still in the folder
        folder.update(status="done", **results)   # the record, written whole

Opening takes the lock, checks whose folder it is and which settings it has, and writes the record. After an error
inside the block the status is 'failed', after Ctrl-C 'stopped'; a new folder in which nothing was made is removed, so
that a mistyped setting leaves nothing behind. Needs no torch.

What happens on `--force`:
- Runs (train, finetune, vtab, pack, embed) start over. Opening refuses a folder that isn't the command's own, is in use, or holds
  MODEL or DATA; or another run or a repository among what would be deleted. `clear` then deletes what the table
  `records.KINDS` says that the command writes, and nothing else. A suite and the quickstart pass `force` to their runs.
- Other commands (eval, report, inspect, data, convert, export, bench, ...) replace files of the names that they write, and
  nothing else: `files.check_output`.

What may change when a training run resumes: the settings in `FREE` and the device; with a warning, the numbers of processes
and threads, files of the training data, and the evaluation data; with `--accept data`, how many images the training data
has. An error: other settings, or training data with other classes (`check_data`). Packing refuses any other content. Labels
count as files; versions of PyTorch and vitkit are recorded, not compared.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vitkit.config import merge, write_yaml
from vitkit.errors import InputError
from vitkit.files import is_alone, is_locked, sync, take_lock, write_file, write_json
from vitkit.runs.records import (
    CONFIG,
    FORMAT,
    KINDS,
    LOCK,
    METRICS,
    ROOT,
    read_config,
    read_record,
)

FREE = {"data.bad_images": "error", "log_every": 50}
"Settings that may change on resume, since nothing that was trained would differ; a run's name has these values."


def accepts_data(accept: str | Sequence[str]) -> bool:
    """Say whether `--accept data` was given, the only thing that a run that resumes accepts."""
    words = [accept] if isinstance(accept, str) else list(accept)
    for word in words:
        if word != "data":
            raise InputError(f"--accept is {word!r}; expected data, which accepts added and removed images")
    return bool(words)


def data_facts(num_images: int, class_names: Sequence[str]) -> dict[str, Any]:
    """Return what a run's record says of the data that it learns from."""
    names = hashlib.sha256(json.dumps(class_names).encode()).hexdigest()[:16]
    return {"images": num_images, "classes": len(class_names), "class_names": names}


def binding(changes: Iterable[str]) -> list[str]:
    """Return the `key=value` changes that may not change on resume."""
    return [change for change in changes if change.partition("=")[0].strip() not in FREE]


def run_name(recipe: str, config: Mapping[str, Any]) -> str:
    """Name a run after its recipe and its settings: the same settings are the same run."""
    return f"{recipe}-{hashlib.sha256(_canonical(config).encode()).hexdigest()[:8]}"


def named_path(run: str | os.PathLike[str]) -> Path:
    """Return the folder of a run that was given a name, or a path; a `Path` is always a path."""
    if not isinstance(run, str):
        return Path(run)
    if not run.strip():
        raise InputError("--run is empty: give a name, or leave it out")
    return Path(ROOT, run) if Path(run).name == run and run != ".." else Path(run)


class RunFolder:
    """A run folder in the hands of this process, until it is closed or the process ends."""

    def __init__(
        self,
        path: str | Path,
        settings: Mapping[str, Any],
        *,
        kind: str = "train",
        force: bool = False,
        keeps: Iterable[str | Path] = (),
        parts: Sequence[str] = (),
        is_shared: bool = False,
        complete: Callable[[dict[str, object]], dict[str, object]] = dict,
    ) -> None:
        """Make the folder, or open it again for the same settings.

        force: accept other settings; the earlier run stays until `clear`.
        keeps: paths that the run reads, MODEL and DATA; none may lie where it writes.
        parts: names for `{part}` in the table of kinds, such as VTAB's tasks.
        is_shared: other processes with the same settings may work here too, unless one of them uses `force`.
        complete: returns the settings of an older run as they are written today, with those that have come since.
        """
        self.path, self.kind, self._parts, self._complete = Path(path), kind, tuple(parts), complete
        self.settings = json.loads(json.dumps(settings, allow_nan=False))
        self.record = self._new_record()
        self.is_stale, self.is_new = False, not self._holds_run()
        self._check_kept(keeps)
        if self.is_new:
            self._refuse_others()  # before a lock is left in someone else's folder
        places = (self.path / LOCK, self.path, *self.path.parents)
        self._made = [place for place in places if not place.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = take_lock(self.path / LOCK, is_shared=is_shared and not force)
        except (OSError, InputError) as error:
            self._remove_made()
            if isinstance(error, InputError):  # someone else is at work here
                raise
            raise InputError(f"{path} can't be written: {error.strerror or error}") from None
        try:
            self._open(force)
        except BaseException:
            self.withdraw()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.is_new and not self._has_begun():
            self.withdraw()
        elif error is not None and self.record["status"] != "done":
            status = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            with suppress(InputError):  # a full disk, say: the error itself is what is reported
                self.update(status=status, message=str(error).split("\n")[0])
        self.close()

    def clear(self) -> None:
        """Remove the earlier run, if `force` asked for it: only what its kind writes, its record last.

        A run inside that is at work stops this before anything is removed.
        """
        if not self.is_stale:
            return
        entries, runs = self._owned()
        with ExitStack() as locks:
            for run in runs:
                locks.enter_context(closing(take_lock(run / LOCK)))
            for entry in entries:
                _remove(entry, self.path)
        self.is_stale = False
        self._write_settings()
        self.update()

    def withdraw(self) -> None:
        """Take back a run that never began; a folder that was there before keeps all that it held."""
        if is_alone(self._lock):  # nobody has come to share the folder
            with suppress(OSError):  # what is reported is why it didn't begin
                for name in (CONFIG, KINDS[self.kind].record) if self.is_new else ():
                    (self.path / name).unlink(missing_ok=True)
            self._remove_made()
        self.close()

    @property
    def is_done(self) -> bool:
        """Whether the run that is here, and stays, is finished."""
        return not self.is_stale and self.record["status"] == "done"

    @property
    def began_with(self) -> int | None:
        """How many images the run started with, which its number of steps follows; None for a new run."""
        known = self.record.get("data") or {}
        return known.get("began_with", known.get("images"))

    def check_data(self, data: Mapping[str, Any], accept: bool = False) -> None:
        """Refuse to resume with other classes than the run started with, or with another number of images.

        accept: images may have been added or removed; the record is updated. A finished run needs no data.
        """
        known = self.record.get("data") or data
        if self.is_done:
            return
        if any(known[name] != data[name] for name in ("classes", "class_names")):
            what = "they have other names"
            if known["classes"] != data["classes"]:
                what = f"{known['classes']:,} then, {data['classes']:,} now"
            raise InputError(
                f"the classes of the data are not what {self.path} started with: {what}; put the data back, start over "
                "with --force, or choose another --run"
            )
        if known["images"] != data["images"] and not accept:
            raise InputError(
                f"the data has {data['images']:,} images, and {self.path} started with {known['images']:,}: --accept data "
                "(accept='data' in Python) resumes with the current images, --force (force=True) starts over"
            )
        began = known.get("began_with", known["images"])
        self.update(data={**data, **({"began_with": began} if began != data["images"] else {})})

    def update(self, **fields: Any) -> None:
        """Set fields of the record and write it; an earlier run's stays until it is cleared."""
        known = self.record.keys()
        assert fields.keys() <= known or self.kind != "train", f"run.json has no {fields.keys() - known}"
        self.record |= fields
        if not KINDS[self.kind].is_data:
            self.record["updated"] = _now()
        if not self.is_stale:
            write_json(self.path / KINDS[self.kind].record, self.record)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl; numbers that are not finite become null, since JSON has none."""
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in line.items()
        }
        try:
            with open(self.path / METRICS, "a", encoding="utf-8") as file:
                file.write(json.dumps(finite) + "\n")
        except OSError as error:
            raise InputError(f"{self.path / METRICS} can't be written: {error.strerror or error}") from None

    def sync(self) -> None:
        """Make the metrics written so far outlast a power cut."""
        path = self.path / METRICS
        try:
            if path.exists():
                sync(path, self.path)
        except OSError as error:
            raise InputError(f"{path} can't be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Let others have the folder."""
        if KINDS[self.kind].is_data and not self._lock.closed:
            (self.path / LOCK).unlink(missing_ok=True)
        self._lock.close()

    def _open(self, force: bool) -> None:
        if self.is_new:
            self._refuse_others()
        elif force:
            self._check_owned()
            self.is_stale = True
            return
        is_changed = not self.is_new and check_settings(self.path, self.settings, self.kind, self._complete)
        self._remove_leftovers()
        known: dict[str, object] = {}
        if KINDS[self.kind].has_config:
            with suppress(InputError):  # a damaged run.json is replaced: checkpoints hold what counts
                known = read_record(self.path, self.kind)
        elif not self.is_new:
            known = read_record(self.path, self.kind)
        self.record |= known
        if self.is_new or (is_changed and self.record["status"] != "done"):
            self._write_settings()
        if not known:
            self.update()

    def _holds_run(self) -> bool:
        """Say whether a run was started here; a record alone, of one with a config, is a start that was killed."""
        kind = KINDS[self.kind]
        return (self.path / (CONFIG if kind.has_config else kind.record)).exists()

    def _refuse_others(self) -> None:
        """Refuse a folder that holds something else than a run of this kind."""
        kind = KINDS[self.kind]
        names = [entry.name for entry in self._entries()]
        for other in KINDS.values():
            if other != kind and other.record in names:
                raise InputError(f"{self.path} holds {other.words}, not {kind.words}; {kind.elsewhere}")
        if others := [name for name in names if name[0] != "." and name != kind.record]:
            mark = CONFIG if kind.has_config else kind.record
            raise InputError(
                f"{self.path} holds {others[0]!r} and no {mark}: not {kind.words}; {kind.elsewhere}"
            )

    def _check_owned(self) -> None:
        """Refuse to remove what this package didn't write, and what holds something of others."""
        kind = KINDS[self.kind]
        try:
            read_record(self.path, self.kind)
        except InputError as error:
            raise InputError(
                f"{error}; not {kind.words} of vitkit, so --force will not delete it: {kind.elsewhere}"
            ) from None
        entries, runs = self._owned()
        for run in runs:
            if is_locked(run / LOCK):
                raise InputError(f"{run} is in use; wait for it, stop it, or {kind.elsewhere}")
        for entry in entries:
            if entry.is_dir() and not entry.is_symlink() and (inside := _find_foreign(entry)):
                raise InputError(
                    f"{inside} lies in {entry}, so --force will not delete it: move it, or {kind.elsewhere}"
                )

    def _owned(self) -> tuple[list[Path], list[Path]]:
        """Return what --force removes, and the runs inside of which it is a part."""
        return _written(self.path, self.kind, self._parts)

    def _check_kept(self, keeps: Iterable[str | Path]) -> None:
        """Refuse to write over what the run reads; symbolic links are followed."""
        here, names = self.path.resolve(), {pattern.split("/")[0] for pattern in KINDS[self.kind].writes}
        names |= set(self._parts)

        def is_written(name: str) -> bool:
            return any(fnmatch(name, pattern) for pattern in names)

        written = [entry.resolve() for entry in self._entries() if is_written(entry.name)]
        for path in map(Path, keeps):
            for place in (path.resolve(), path.parent.resolve() / path.name):
                inside = place.relative_to(here).parts if place.is_relative_to(here) else None
                if (
                    inside == ()
                    or (inside and is_written(inside[0]))
                    or any(map(place.is_relative_to, written))
                ):
                    raise InputError(
                        f"{self.path} holds {path}, which this run reads and would overwrite: choose another --run"
                    )

    def _entries(self) -> list[Path]:
        try:
            return sorted(self.path.iterdir()) if self.path.is_dir() else []
        except OSError as error:
            raise InputError(f"{self.path} can't be read: {error.strerror or error}") from None

    def _write_settings(self) -> None:
        if KINDS[self.kind].has_config:
            write_file(self.path / CONFIG, write_yaml(self.settings))

    def _new_record(self) -> dict[str, Any]:
        """Return the record as it begins, with all its fields."""
        kind, now = KINDS[self.kind], _now()
        times = {} if kind.is_data else {"name": self.path.name, "started": now, "updated": now}
        return {
            "format": FORMAT,
            "kind": self.kind,
            "status": "running",
            "message": "",
            **times,
            **({} if kind.has_config else {"settings": self.settings}),
            **kind.starts,
        }

    def _has_begun(self) -> bool:
        """Say whether a new run has made anything besides its settings and its record."""
        own = (CONFIG, KINDS[self.kind].record)
        return bool(self.record.get("steps")) or any(path.name not in own for path in self._owned()[0])

    def _remove_made(self) -> None:
        """Remove the lock and the folders that opening made, unless something else came into them."""
        with suppress(OSError):
            for place in self._made:
                place.rmdir() if place.is_dir() else place.unlink(missing_ok=True)

    def _remove_leftovers(self) -> None:
        """Remove what a kill left behind while a file or a model folder was being written aside."""
        for entry in self.path.glob(".*"):
            if entry.name.startswith(".model") and entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name.endswith(".part") and entry.is_file():
                entry.unlink()


def check_settings(
    path: Path,
    settings: Mapping[str, Any],
    kind: str = "train",
    complete: Callable[[dict[str, object]], dict[str, object]] = dict,
    advice: str = "",
) -> bool:
    """Refuse other settings than those of the run that is here, but for those that are FREE; say whether one of these is another.

    advice: what to do about others, where that isn't the command's own --force.
    """
    made = KINDS[kind]
    if made.has_config:
        found = complete(read_config(path))
    else:
        found = read_record(path, kind)["settings"]
        if found is None:  # an earlier version's suite, which kept none
            return False
        found = complete(found)
    theirs, ours = (_binding_settings(each) for each in (found, settings))
    for name in ours | theirs:
        there, here = (_canonical(leaves[name]) if name in leaves else "unset" for leaves in (theirs, ours))
        if there != here and name not in FREE:
            raise InputError(
                f"{path} holds {made.words if made.is_data else 'a run'} with other settings: "
                f"{name} is {there} there, {here} here; {advice or f'{made.elsewhere}, or start over with --force'}"
            )
    return any(ours.get(name) != theirs.get(name) for name in FREE)


def _written(folder: Path, kind: str, parts: Sequence[str] = ()) -> tuple[list[Path], list[Path]]:
    """Return what the table says that a kind writes and that is here, its record last; and the runs among it.

    Links are removed, not followed: what lies elsewhere is not the run's.
    """
    entries, runs = list[Path](), list[Path]()
    for pattern, inner in KINDS[kind].writes.items():
        patterns = {
            pattern.format(part=glob.escape(part)) for part in (parts if "{part}" in pattern else [""])
        }
        for entry in sorted({entry for one in patterns for entry in folder.glob(one)}):
            if not entry.parent.resolve().is_relative_to(folder.resolve()):
                continue
            if inner is None:
                entries.append(entry)
            elif not entry.is_symlink() and _is_ours(entry, inner):
                own, deeper = _written(entry, inner)
                entries += [*own, entry / LOCK]
                runs += [entry, *deeper]
    last = (folder / name for name in (CONFIG, KINDS[kind].record))
    return entries + [path for path in last if path.is_file()], runs


def _is_ours(folder: Path, kind: str) -> bool:
    try:
        read_record(folder, kind)
    except InputError:
        return False
    return True


def _find_foreign(folder: Path) -> Path | None:
    """Return something in a folder that no command of ours writes there: another run, a repository."""
    strangers = {".git", *(kind.record for kind in KINDS.values())}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if name in strangers:
                return Path(place, name)
    return None


def _remove(entry: Path, root: Path) -> None:
    """Remove an entry, and the folders above it that are then empty."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
    with suppress(OSError):
        while (entry := entry.parent) != root:
            entry.rmdir()


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return settings by their dotted names."""
    if not isinstance(config, Mapping) or (prefix and not config):
        return {prefix: config}
    inner = (flatten(value, f"{prefix}.{name}" if prefix else str(name)) for name, value in config.items())
    return {name: value for part in inner for name, value in part.items()}


def _binding_settings(settings: Mapping[str, Any]) -> dict[str, object]:
    """Return settings by their dotted names, those of a list of changes too, without those that may change on resume."""
    leaves = flatten(settings)
    changes = binding(leaves.pop("changes", None) or ())
    return leaves | flatten(merge({}, changes))


def _canonical(config: Any) -> str:
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
