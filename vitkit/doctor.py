"""Facts about this machine: versions, devices, extras, the cache folder. Problems are reported, not raised."""

from __future__ import annotations

import importlib
import platform
import re
import shutil
import warnings
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from vitkit import __version__
from vitkit.errors import first_line
from vitkit.machine import cpu_name, num_cores
from vitkit.results import Result

# Distributions whose module has another name.
MODULES = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}

REQUIREMENT = re.compile(r"""([\w.-]+)[^;]*(?:;.*extra\s*==\s*["']([\w-]+)["'])?""")


@dataclass(frozen=True)
class Cpu(Result):
    """The processor."""

    name: str
    cores: int | None
    threads: int | None
    "Threads that torch uses."


@dataclass(frozen=True)
class Gpu(Result):
    """A CUDA device."""

    name: str
    memory_bytes: int
    capability: str


@dataclass(frozen=True)
class Devices(Result):
    """Devices that models can run on."""

    cpu: Cpu
    cuda: tuple[Gpu, ...]
    mps: bool


@dataclass(frozen=True)
class Extra(Result):
    """An optional set of packages: their versions, None if missing."""

    packages: dict[str, str | None]
    missing: tuple[str, ...]
    install: str


@dataclass(frozen=True)
class Cache(Result):
    """The cache of weights from the hub: its folder, the free space there, and whether downloads are disabled."""

    folder: str | None
    free_bytes: int | None
    offline: bool | None


@dataclass(frozen=True)
class MachineFacts(Result):
    """Facts about this machine; `problems` is empty if there are none."""

    vitkit: str
    python: str
    platform: str
    packages: dict[str, str | None]
    devices: Devices
    extras: dict[str, Extra]
    cache: Cache
    problems: tuple[str, ...]


def doctor() -> MachineFacts:
    """Examine this machine."""
    problems: list[str] = []
    core, extras = requirements(problems)
    return MachineFacts(
        vitkit=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: package(name, problems) for name in core},
        devices=devices(problems),
        extras={extra: extra_state(extra, names) for extra, names in extras.items()},
        cache=cache(problems),
        problems=tuple(problems),
    )


def requirements(problems: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the distributions that vitkit needs, and those of each extra, from its own metadata."""
    try:
        lines = metadata.requires("vitkit") or []
    except metadata.PackageNotFoundError:
        problems.append("vitkit is not installed, so its requirements are unknown: pip install -e .")
        return [], {}
    core: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in lines:
        match = REQUIREMENT.match(line)
        assert match, line
        name, extra = match.groups()
        (extras.setdefault(extra, []) if extra else core).append(name.lower())
    return core, extras


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def package(name: str, problems: list[str]) -> str | None:
    """Return the version of a required distribution, or None; note if it is missing or can't be imported."""
    found = version(name)
    if found is None:
        problems.append(f"{name} is missing: pip install {name}")
    else:
        import_or_note(MODULES.get(name, name.replace("-", "_")), problems)
    return found


def import_or_note(module: str, problems: list[str]) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken package may raise anything
        reason = first_line(error)
        problem = f"{module} can't be imported: {reason}"
        if problem not in problems:
            problems.append(problem)
        return None


def extra_state(extra: str, names: list[str]) -> Extra:
    versions = {name: version(name) for name in names}
    missing = tuple(name for name, found in versions.items() if found is None)
    return Extra(versions, missing, f'pip install "vitkit[{extra}]"')


def devices(problems: list[str]) -> Devices:
    """Return the devices that models can run on."""
    cores = num_cores()
    torch = import_or_note("torch", problems)
    if torch is None:
        return Devices(Cpu(cpu_name(), cores, None), (), False)
    gpus: tuple[Gpu, ...] = ()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            gpus = tuple(cuda_device(torch, index) for index in range(torch.cuda.device_count()))
    problems += [str(warning.message).splitlines()[0] for warning in caught]
    return Devices(Cpu(cpu_name(), cores, torch.get_num_threads()), gpus, torch.backends.mps.is_available())


def cuda_device(torch: Any, index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    return Gpu(properties.name, properties.total_memory, f"{properties.major}.{properties.minor}")


def cache(problems: list[str]) -> Cache:
    """Return the state of the hub's cache."""
    constants = import_or_note("huggingface_hub.constants", problems)
    if constants is None:
        return Cache(None, None, None)
    folder = Path(constants.HF_HUB_CACHE)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return Cache(str(folder), shutil.disk_usage(existing).free, bool(constants.HF_HUB_OFFLINE))
