"""Run folders: name, settings, progress and metrics of a run, and who is at work in it. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from vitkit.config import read_yaml, write_yaml
from vitkit.errors import InputError
from vitkit.files import is_locked, write_file

ROOT = "runs"
CONFIG, RECORD, METRICS, LOCK = "config.yaml", "run.json", "metrics.jsonl", ".lock"
LOCK_SECONDS = 0.5
# What a list of runs shows, and its types.
_SHOWN = {
    "status": str,
    "step": int,
    "steps": int,
    "best": dict | None,
    "seconds": int | float,
    "updated": str,
    "message": str,
}
_BEST = {"metric": str, "value": int | float, "step": int}


FREE = {"data.bad_images": "error", "log_every": 50}
"Settings that may change when a run goes on, since nothing that was trained would be another; its name has these values."


def run_name(recipe: str, config: Mapping[str, Any]) -> str:
    """Name a run after its recipe and its settings: the same settings are the same run."""
    return f"{recipe}-{hashlib.sha256(_canonical(config).encode()).hexdigest()[:8]}"


def named_path(run: str) -> Path:
    """Return the folder of a run that was given a name, or a path."""
    if not run.strip():
        raise InputError("--run is empty: give a name, or leave it out")
    return Path(run) if Path(run).name != run else Path(ROOT, run)


class RunFolder:
    """A run folder in the hands of this process alone, until it is closed or the process ends."""

    def __init__(
        self,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        force: bool = False,
        complete: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> None:
        """Make the folder, or open it again for the same settings.

        force: other settings are fine; the run that is there stays until `clear`.
        complete: returns the settings of an older run with those that have come since.
        """
        self.path, self._config, self._complete = Path(path), config, complete
        self.is_stale, self.is_new = False, not (self.path / CONFIG).exists()
        self._is_made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(self.path)
        except OSError as error:
            raise InputError(f"{path} can't be written: {error.strerror or error}") from None
        try:
            if force and (self.path / CONFIG).is_file():
                if not (self.path / RECORD).is_file():
                    raise InputError(
                        f"{path} has a {CONFIG} and no {RECORD}: it is no run, and stays; name another"
                    )
                self.is_stale, self.record = True, _new_record(self.path.name)
                return
            is_changed = self._check_config(config)
            self._remove_leftovers()
            known: dict[str, Any] = {}
            with suppress(InputError):  # a broken run.json is begun anew: checkpoints hold what counts
                known = read_record(self.path)
            self.record = _new_record(self.path.name) | known
            if is_changed and self.record["status"] != "done":
                self._write_config(config)
            if not known:
                self.update()
        except BaseException:
            self.close()
            raise

    def clear(self) -> None:
        """Remove the run that was there before, if it is to be begun anew; what makes it a run goes last."""
        if not self.is_stale:
            return
        entries = [entry for entry in self.path.iterdir() if entry.name != LOCK]
        for entry in sorted(entries, key=lambda entry: entry.name in (CONFIG, RECORD)):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        self.is_stale = False
        self._check_config(self._config)
        self.update()

    def withdraw(self) -> None:
        """Take back a run that never began; a folder that was there before keeps all that it held."""
        self.close()
        with suppress(OSError):  # what is told is why it didn't begin
            for name in (CONFIG, RECORD, LOCK):
                (self.path / name).unlink(missing_ok=True)
            if self._is_made:
                self.path.rmdir()

    def check_data(self, data: Mapping[str, Any]) -> None:
        """Refuse to go on with other images or classes than the run began with."""
        known = self.record["data"]
        if not known or known == data:
            self.update(data=dict(data))
            return
        if known["images"] != data["images"] or known["classes"] != data["classes"]:
            then, now = (f"{one['images']:,} images of {one['classes']:,} classes" for one in (known, data))
            what = f"{then} then, {now} now"
        else:
            what = "its classes have other names now"
        raise InputError(
            f"the data is not what {self.path} began with: {what}; put it back, name another run, or begin anew with --force"
        )

    def update(self, **fields: Any) -> None:
        """Set fields of run.json; an earlier run's stays until it is cleared."""
        assert fields.keys() <= self.record.keys(), f"run.json has no {fields.keys() - self.record.keys()}"
        self.record |= {**fields, "updated": _now()}
        if self.is_stale:
            return
        write_file(self.path / RECORD, json.dumps(self.record, indent=2, allow_nan=False) + "\n")

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

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.close()

    def _remove_leftovers(self) -> None:
        """Remove what a kill left behind while a file or a model folder was being written aside."""
        for entry in self.path.glob(".*"):
            if entry.name.startswith(".model") and entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name.endswith(".part") and entry.is_file():
                entry.unlink()

    def _write_config(self, config: Mapping[str, Any]) -> None:
        plain = json.loads(json.dumps(config, allow_nan=False))
        write_file(self.path / CONFIG, write_yaml(plain))

    def _check_config(self, config: Mapping[str, Any]) -> bool:
        """Refuse other settings than the run's, but for those that are FREE; say whether one of these is another."""
        path = self.path / CONFIG
        if not path.exists():
            if others := sorted(entry.name for entry in self.path.iterdir() if entry.name[0] != "."):
                raise InputError(
                    f"{self.path} holds {others[0]!r} and no {CONFIG}: it is no run folder; name another"
                )
            self._write_config(config)
            return False
        theirs, ours = dict(_leaves(self._complete(read_config(self.path)))), dict(_leaves(config))
        for name in ours | theirs:
            there, here = (
                _canonical(leaves[name]) if name in leaves else "unset" for leaves in (theirs, ours)
            )
            if there != here and name not in FREE:
                raise InputError(
                    f"{self.path} holds a run with other settings: {name} is {there} there, {here} here; "
                    "name another run, or begin this one anew with --force"
                )
        return any(ours.get(name) != theirs.get(name) for name in FREE)


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return the settings that a run was started with."""
    path = Path(folder, CONFIG)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{folder} is no run folder: it has no {CONFIG}; `vit runs` lists runs") from None
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not YAML; restore it, or remove {folder}") from None
    try:
        return read_yaml(text, str(path))
    except InputError as error:
        raise InputError(f"{error}; restore it, or remove {folder}") from None


def read_record(folder: str | Path) -> dict[str, Any]:
    """Return run.json; what a list of runs shows of it is checked."""
    path = Path(folder, RECORD)
    try:
        record = json.loads(path.read_bytes(), parse_constant=_refuse)
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror or error}") from None
    except ValueError:
        raise InputError(f"{path} is not JSON") from None
    if not isinstance(record, dict):
        raise InputError(f"{path} is not an object")
    _check_types(record, _SHOWN, path)
    if record["best"] is not None:
        _check_types(record["best"], _BEST, path)
    try:
        datetime.fromisoformat(record["updated"])
    except ValueError:
        raise InputError(f"{path}: 'updated' is {record['updated']!r}, which is no time") from None
    return record


def _check_types(record: dict[str, Any], types: Mapping[str, Any], path: Path) -> None:
    for name, kind in types.items():
        if not isinstance(record.get(name), kind):
            raise InputError(f"{path}: {name!r} is {record.get(name)!r}")


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl; a last one that was never finished is left out."""
    return [line for _, line in _metrics(Path(folder))]


def cut_metrics(folder: str | Path, step: int) -> None:
    """Cut metrics.jsonl back to what was known at a step, as a run does that goes on from there."""
    path = Path(folder, METRICS)
    kept = b"".join(text for text, line in _metrics(Path(folder)) if line["step"] <= step)
    if path.exists() and path.read_bytes() != kept:
        write_file(path, kept)


def list_runs(root: str | Path = ROOT) -> list[dict[str, Any]]:
    """Return what the run folders in `root` say of themselves, the last updated first; `root` may be one too."""
    folder = Path(root)
    if not folder.is_dir():
        if folder == Path(ROOT):
            return []
        raise InputError(f"{root} is no folder; expected one that holds runs, such as {ROOT}")
    try:
        folders = list(_find_runs(folder))
    except OSError as error:
        raise InputError(f"{root} can't be read: {error.strerror or error}") from None
    rows = [_row(path, folder) for path in sorted(folders)]
    return sorted(rows, key=lambda row: row["updated"] or "", reverse=True)


def _find_runs(folder: Path, depth: int = 4) -> Iterator[Path]:
    """Yield the runs in a folder, and those in folders that hold several, such as a fine-tuning's."""
    if _is_run(folder):
        yield folder
    elif depth:
        for path in folder.iterdir():
            if path.is_dir() and not path.name.startswith("."):
                yield from _find_runs(path, depth - 1)


def _row(folder: Path, root: Path) -> dict[str, Any]:
    try:
        record = read_record(folder)
    except InputError as error:
        record = dict.fromkeys(_SHOWN) | {"status": "unreadable", "message": str(error)}
    if record["status"] == "running" and not is_locked(folder / LOCK):
        record["status"] = "interrupted"
    name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
    return {"name": name, **{field: record[field] for field in _SHOWN}, "path": str(folder)}


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (CONFIG, RECORD, METRICS))


def _take_lock(folder: Path) -> IO[str]:
    """Return the open file whose lock says that this process is at work in the folder."""
    file = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 (it stays open)
    try:
        import fcntl
    except ImportError:
        return file
    patience = time.monotonic() + LOCK_SECONDS  # whoever lists runs holds the lock for a moment
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() < patience:
                time.sleep(LOCK_SECONDS / 10)
                continue
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise InputError(
                f"{folder} is in use by {holder}; wait for it, stop it, or name another run"
            ) from None
        except OSError:  # a file system without locks
            return file
    # A forked worker may outlive this process, and would keep the lock.
    os.register_at_fork(after_in_child=file.close)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def _new_record(name: str) -> dict[str, Any]:
    """Return run.json as it begins, with all its fields."""
    return {
        "name": name,
        "status": "running",
        "step": 0,
        "steps": 0,
        "command": "",
        "started": _now(),
        "updated": _now(),
        "seconds": 0.0,
        "environment": {},
        "micro_batch": None,
        "data": {},
        "best": None,
        "cost": {},
        "message": "",
    }


def _metrics(folder: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each whole line of metrics.jsonl as it stands and as it reads."""
    path = folder / METRICS
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror or error}") from None
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            whole = isinstance(line["step"], int) and text.endswith(b"\n")
        except (ValueError, KeyError, TypeError):
            whole = False
        if whole:
            yield text, line
        elif number < len(lines):
            raise InputError(f"{path}: line {number} is no object with a step; repair or remove that line")


def _leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a nested config by dotted name."""
    if isinstance(config, Mapping) and (config or not prefix):
        for name, value in config.items():
            yield from _leaves(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, config


def _canonical(config: Any) -> str:
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
