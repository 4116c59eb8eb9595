"""What every test shares: no downloads, no windows, no colours, `vit` as a function, and signals that arrive."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.util
import os
import re
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "agg"
os.environ["NO_COLOR"] = "1"
os.environ.pop("COLUMNS", None)  # tables in a pipe would keep to it
# A test module that starts itself as a program imports helpers from tests, as it does here.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])

# A machine for GPU tests need not have these: modules that import them are not collected there.
NEEDED = """braceexpand fastapi httpx hypothesis onnx onnxruntime openvino pydantic ray starlette timm transformers
webdataset""".split()
ABSENT = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if "hypothesis" not in ABSENT:
    from hypothesis import settings

    # Cores are shared with other test processes, so that the time of one example says nothing.
    settings.register_profile("vitkit", deadline=None)
    settings.load_profile("vitkit")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if not ABSENT or collection_path.suffix != ".py":
        return None
    pattern = rf"^(import|from) ({'|'.join(ABSENT)})\b"
    return bool(re.search(pattern, collection_path.read_text(encoding="utf-8"), re.MULTILINE)) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what stays to the end: a run collects garbage, and thousands of modules are loaded."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # extensions report what Python doesn't free as leaks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    chosen = [item for item in items if item.get_closest_marker("gpu")]
    if chosen:
        import torch

        if not torch.cuda.is_available():
            for item in chosen:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


class Answer(NamedTuple):
    """What a command answered."""

    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def built_verbs() -> Iterator[None]:
    """Build the command line once: typer reads the signatures of all verbs at each call."""
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def vit(capsys: pytest.CaptureFixture[str], built_verbs: None) -> Callable[..., Answer]:
    """Run a command in this process: `vit("models", "--json")`."""
    from vitkit.cli import main

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        status = main(list(arguments))
        return Answer(status, *capsys.readouterr())

    return run


@pytest.fixture
def heard() -> Iterator[None]:
    """Hear signals, and so what is started here, that a test process in the background or under nohup ignores."""
    numbers = {signal.SIGINT: signal.default_int_handler}
    if hasattr(signal, "SIGHUP"):
        numbers[signal.SIGHUP] = signal.SIG_DFL
    before = {number: signal.signal(number, handler) for number, handler in numbers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
