"""The wheel: it holds the package and nothing else, and works where there is no checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import vitkit

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]

PROGRAM = """
import vitkit
from torch.utils.data import DataLoader, random_split

reveal_type(vitkit.create_model("B/16"))
print(vitkit.train("digits", duration=20).metrics["test/accuracy"])
source = vitkit.open_data("digits")
train, test = random_split(source, [0.8, 0.2])
for images, labels in DataLoader(source, batch_size=64):
    print(images.shape, labels.shape)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from links to the sources, so that nothing is written next to them."""
    folder = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "README.md", "LICENSE", "vitkit"):
        (folder / name).symlink_to(ROOT / name)
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(folder)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's package and its `vit`; what vitkit needs comes from this environment."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(folder), str(wheel)], check=True)
    return folder


def run(installed: Path, folder: Path, *command: str) -> str:
    """Run a command in a folder, where Python finds the wheel before the checkout that this environment has."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    files = [path for path in (ROOT / "vitkit").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == {path.relative_to(ROOT).as_posix() for path in files}
    assert {"vitkit/py.typed", "vitkit/recipes/digits.yaml"} <= inside


def test_its_metadata_is_the_project_s(wheel: Path) -> None:
    folder = f"vitkit-{vitkit.__version__}.dist-info"
    archive = zipfile.ZipFile(wheel)
    assert f"\nVersion: {vitkit.__version__}\n" in archive.read(f"{folder}/METADATA").decode()
    assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_it_works_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    vit = str(installed / "bin" / "vit")
    where = run(installed, tmp_path, sys.executable, "-c", "import vitkit; print(vitkit.__file__)")
    assert Path(where.strip()) == installed / "vitkit" / "__init__.py"
    recipes = {path.stem for path in (ROOT / "vitkit" / "recipes").glob("*.yaml")}
    assert {row["name"] for row in json.loads(run(installed, tmp_path, vit, "recipes", "--json"))} == recipes
    models = json.loads(run(installed, tmp_path, vit, "models", "--json"))
    assert {row["name"] for row in models} == set(vitkit.list_models())
    trained = json.loads(
        run(installed, tmp_path, vit, "train", "digits", "duration=2", "--device", "cpu", "--json")
    )
    assert trained["status"] == "done" and (tmp_path / trained["model"] / "model.safetensors").exists()


def test_an_editable_install_is_a_path_that_type_checkers_follow(tmp_path: Path) -> None:
    """Pylance and mypy read no import hooks."""
    project, checker = tmp_path / "project", tmp_path / "venv"
    shutil.copytree(ROOT / "vitkit", project / "vitkit", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project / name)
    code = f"from setuptools.build_meta import build_editable; build_editable({str(tmp_path)!r})"
    built = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    archive = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    [link] = [name for name in archive.namelist() if name.endswith(".pth")]
    assert archive.read(link).decode().split() == [str(project)]

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(checker)], check=True)
    [packages] = checker.glob("lib/python3*/site-packages")
    (packages / link).write_bytes(archive.read(link))
    (packages / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    command = [sys.executable, "-m", "mypy", "--python-executable", str(checker / "bin" / "python")]
    answer = subprocess.run([*command, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert 'Revealed type is "vitkit.models.model.Model"' in answer.stdout, answer.stdout
    assert "error" not in answer.stdout, answer.stdout
