"""`vit doctor` tells what is there and what is wrong, and never crashes on a broken package."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import vitkit
from vitkit.doctor import cpu_name, doctor


@pytest.fixture
def requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small set of requirements: quick to import, one extra there, one missing."""
    lines = [
        "torch>=2.11",
        "numpy>=1.26",
        'pytest; extra == "dev"',
        'surely-not-there[all]>=1; python_version > "3" and extra == "serve"',
        'numpy; extra == "serve"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)


def test_real_requirements_are_read() -> None:
    from vitkit.doctor import requirements

    problems: list[str] = []
    core, extras = requirements(problems)
    assert problems == []
    assert set(core) == {
        *("torch", "torchvision", "numpy", "pillow", "safetensors", "huggingface_hub", "pyyaml"),
        *("typer", "rich", "matplotlib", "scikit-learn", "pyarrow"),
    }
    assert " ".join(extras) == "export serve search hub heic shards track cluster docs dev"
    assert extras["heic"] == ["pillow-heif"]
    assert extras["serve"] == ["fastapi", "uvicorn", "python-multipart", "httptools", "uvloop"]


@pytest.mark.usefixtures("requirements")
def test_json_is_what_python_returns(vit) -> None:
    answer = vit("doctor", "--json")
    found = json.loads(answer.out)
    assert (answer.status, answer.err) == (0, "")
    assert found.keys() == doctor().to_json().keys()
    assert found["vitkit"] == vitkit.__version__
    assert found["packages"] == {"torch": metadata.version("torch"), "numpy": metadata.version("numpy")}
    assert found["devices"]["cpu"]["threads"] == torch.get_num_threads()
    assert len(found["devices"]["cuda"]) == torch.cuda.device_count()
    assert found["extras"]["dev"]["missing"] == []
    assert found["extras"]["serve"]["missing"] == ["surely-not-there"]
    assert found["extras"]["serve"]["install"] == 'pip install "vitkit[serve]"'
    assert found["cache"]["offline"] is True
    assert found["cache"]["free_bytes"] > 0


@pytest.mark.usefixtures("requirements")
def test_the_page_names_what_matters(vit) -> None:
    answer = vit("doctor")
    assert answer.status == 0
    for word in ("torch", "cpu", "thread", "cuda", "cache folder", "offline", 'pip install "vitkit[serve]"'):
        assert word in answer.out
    assert 'pip install "vitkit[dev]"' not in answer.out


@pytest.mark.usefixtures("requirements")
@pytest.mark.parametrize("module", ["torch", "numpy", "huggingface_hub.constants"])
def test_a_broken_package_is_reported(vit, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    answer = vit("doctor", "--json")
    assert answer.status == 1
    (problem,) = json.loads(answer.out)["problems"]
    assert problem.startswith(f"{module} can't be imported: ")
    assert answer.err == f"problem: {problem}\n"
    assert vit("doctor").status == 1


def test_a_missing_package_is_reported(vit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: ["surely-not-there>=3"])
    answer = vit("doctor")
    assert answer.status == 1
    assert answer.err == "problem: surely-not-there is missing: pip install surely-not-there\n"


def test_a_copy_without_installation_is_reported(vit, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    answer = vit("doctor", "--json")
    assert answer.status == 1
    assert "vitkit is not installed" in json.loads(answer.out)["problems"][0]


def test_a_cache_folder_to_be_made_has_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "not" / "yet"))
    cache = doctor().cache
    assert cache.folder == str(tmp_path / "not" / "yet")
    assert cache.free_bytes > 0


def test_a_driver_that_is_too_old_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    def warn() -> bool:
        warnings.warn("the driver is too old\nsee its page", stacklevel=1)
        return False

    monkeypatch.setattr(metadata, "requires", lambda name: [])
    monkeypatch.setattr(torch.cuda, "is_available", warn)
    assert doctor().problems == ("the driver is too old",)


def test_cpu_name(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: Some CPU @ 2 GHz\n"
    )
    assert cpu_name(path) == "Some CPU @ 2 GHz"
    assert cpu_name(tmp_path / "absent") != ""
