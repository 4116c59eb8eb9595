"""The frame of the package: light imports, one-way layers, versions written once."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitkit

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vitkit"

# Parts of the package from the bottom up. A part imports only parts that stand before it; stories know nothing of
# each other: what one needs of another's folder it reads through `runs`.
CORE = (
    *(
        "errors",
        "notes",
        "markup",
        "display",
        "results",
        "files",
        "settings",
        "config",
        "runs",
        "world",
        "kernels",
        "models",
        "costs",
        "published",
    ),
    *("weights", "catalog", "figures", "page", "progress", "machine", "data", "calibration"),
)
WORK = ("runtimes", "predictor", "objectives", "evaluation", "inspection", "training")
STORIES = ("doctor", "quickstart", "transfer", "reports", "exports", "timing", "studies", "serving")
BUILDS_ON = {"studies": {"transfer"}}  # a study plans, times and carries out fine-tunings
PEERS = {"timm", "transformers"}  # what we are measured against: only timing imports them
OPTIONAL = """braceexpand datasets fastapi httpx hypothesis kornia multipart onnx onnxruntime onnxscript
openvino pillow_heif pydantic ray starlette tensorboard timm transformers uvicorn wandb webdataset""".split()

HTTP = ("serving.app", "serving.schemas", "serving.server")  # which `vit serve` imports once FastAPI is there


def parts() -> set[str]:
    """Modules and packages right under vitkit/."""
    folders = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    return folders | {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Full names of all that a file imports, at its top, inside functions or for type checkers, or uses as vitkit.NAME."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import: write it out"
            yield from (whole_name(str(node.module), alias.name) for alias in node.names)
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "vitkit"
        ):
            yield whole_name("vitkit", node.attr)


def whole_name(module: str, name: str) -> str:
    """Return where a name is defined; that of a public function is looked up."""
    return f"{vitkit.PUBLIC.get(name, 'vitkit')}.{name}" if module == "vitkit" else f"{module}.{name}"


def source_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_every_part_has_its_layer() -> None:
    assert sorted(parts()) == sorted((*CORE, *WORK, *STORIES, "cli"))


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_keep_to_the_layers(path: Path) -> None:
    part = part_of(path)
    used = {name.split(".")[1] for name in imports(path) if name.startswith("vitkit.")} & parts()
    order = (*CORE, *WORK)
    if part == "__main__":
        assert used == {"cli"}
    elif part in order:
        assert used <= {*order[: order.index(part) + 1]}
    elif part in STORIES:
        assert used <= {*order, part, *BUILDS_ON.get(part, ())}
    assert part == "timing" or not PEERS & {name.split(".")[0] for name in imports(path)}


@pytest.mark.parametrize(
    "code",
    ["from vitkit import train", "import vitkit\nvitkit.train", "import vitkit.training.run"],
)
def test_a_public_function_counts_as_its_module(code: str, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(code)
    assert "training" in {name.split(".")[1] for name in imports(tmp_path / "code.py") if "." in name}


def test_only_the_worker_of_a_study_is_started_by_name() -> None:
    """A study's workers are processes of the command line, which a story can't import."""
    starting = [path for path in source_files() if '"vitkit.cli.' in path.read_text(encoding="utf-8")]
    assert {part_of(path) for path in starting} <= {"cli", "studies"}


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.name)
def test_benchmarks_import_what_there_is(path: Path) -> None:
    for name in imports(path):
        if name.startswith(("vitkit.", "tests.")):
            module, _, attribute = name.rpartition(".")
            found = importlib.import_module(module)
            assert hasattr(found, attribute) or importlib.util.find_spec(name), f"{path.name} imports {name}"


def test_no_module_has_a_name_to_avoid() -> None:
    names = {path.stem for path in source_files()} | {path.parent.name for path in source_files()}
    assert not names & {"utils", "inspect", "profile"}


def test_every_file_says_its_idea_on_line_one() -> None:
    for path in source_files():
        text = path.read_text(encoding="utf-8")
        assert not text or text.startswith('"""'), path


def run(code: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return answer.stdout


def test_import_is_light() -> None:
    # Measured without torch, since vitkit's own import does not need it; after torch it can only be quicker.
    # The processor's time, since other work on the machine would count as well.
    code = "import sys, time; start = time.process_time(); import vitkit; "
    code += "print(time.process_time() - start); assert 'torch' not in sys.modules"
    assert min(float(run(code)) for _ in range(5)) < 0.050


@pytest.mark.slow
def test_import_is_light_over_torch() -> None:
    code = (
        "import torch, time; start = time.perf_counter(); import vitkit; print(time.perf_counter() - start)"
    )
    assert statistics.median(float(run(code)) for _ in range(5)) < 0.050


# As on a machine where the optional packages were never installed.
WITHOUT_OPTIONAL = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
absent = {OPTIONAL}
PathFinder.find_spec = classmethod(
    lambda cls, name, *rest: None if name.partition(".")[0] in absent else find(name, *rest)
)
"""


@pytest.mark.slow
def test_every_module_imports_without_optional_packages() -> None:
    paths = [path.relative_to(ROOT).with_suffix("") for path in source_files()]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    chosen = [name for name in names if not name.endswith(("__main__", "_triton", *HTTP))]
    run(f"{WITHOUT_OPTIONAL}import importlib; [importlib.import_module(name) for name in {chosen}]")


@pytest.mark.slow
def test_gpu_tests_are_collected_without_optional_packages() -> None:
    # Plugins of other packages import what is absent here.
    alone = "import os; os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'"
    arguments = "-m gpu --collect-only -q -p no:cacheprovider".split()
    found = run(f"{WITHOUT_OPTIONAL}{alone}; import pytest; raise SystemExit(pytest.main({arguments}))")
    assert "tests/training/test_gpu.py::test_under_torchrun[fsdp]" in found


def test_public_names_are_there() -> None:
    for name in vitkit.__all__:
        assert getattr(vitkit, name) is not None
        assert name in dir(vitkit)
    assert set(vitkit.__all__) == {*vitkit.PUBLIC, "__version__"}


def test_modules_are_attributes() -> None:
    code = (
        "import vitkit; print(vitkit.costs.__name__, vitkit.models.names.__name__, 'doctor' in dir(vitkit))"
    )
    assert run(code).split() == ["vitkit.costs", "vitkit.models.names", "True"]


def test_modules_keep_their_names_once_imported() -> None:
    code = "import vitkit.costs, vitkit.doctor, vitkit; vitkit.create_model; "
    code += "print(vitkit.costs.cost.__name__, vitkit.doctor.doctor.__name__)"
    assert run(code).split() == ["cost", "doctor"]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'vitkit' has no attribute 'lode'"):
        _ = vitkit.lode


def test_versions_are_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert f"\nversion: {vitkit.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert vitkit.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_constraints_are_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines == sorted(lines, key=lambda line: line.split("=="))
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line), line
        assert not line.startswith(("nvidia", "cuda", "triton")), f"{line}: torch brings what its build needs"


def test_constraints_pin_what_make_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    direct = [*project["dependencies"], *extras["dev"], *extras["docs"]]
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {re.split(r"[<>=[]", line)[0].lower().replace("_", "-") for line in direct} <= pinned


def test_no_second_lock_file() -> None:
    assert not [
        name for name in ("uv.lock", "poetry.lock", "setup.py", "setup.cfg") if (ROOT / name).exists()
    ]


def test_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
