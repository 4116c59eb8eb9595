"""`vit fewshot`, `vit probe`, `vit knn`: tables, JSON equal to the functions, errors of one line before any work."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitkit.evaluation.fewshot import fewshot
from vitkit.evaluation.knn import knn
from vitkit.evaluation.probe import probe

COMMON = ("mu/16", "digits:train[:300]", "--image-size", "32", "--device", "cpu")
SETTINGS: dict[str, Any] = dict(image_size=32, device="cpu")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests share their features."""
    monkeypatch.setenv("VITKIT_CACHE", str(cache))


def timeless(document: dict[str, Any]) -> dict[str, Any]:
    assert document.pop("seconds") > 0
    return document


def test_fewshot(vit: Callable[..., Any]) -> None:
    flags = ("--shots", "1,5", "--seeds", "2")
    answer = vit("fewshot", *COMMON, *flags)
    assert answer.status == 0, answer.err
    lines = [line.split() for line in answer.out.splitlines() if line.strip(" ─")]
    assert lines[0][:4] == ["mu/16,", "digits:train[:300]", "to", "digits:test"]
    assert lines[1] == ["shots", "accuracy", "std", "l2"]
    expected = fewshot("mu/16", "digits:train[:300]", shots=(1, 5), seeds=2, **SETTINGS)
    for line, row in zip(lines[2:4], expected.results, strict=True):
        assert line == [str(row.shots), f"{row.accuracy:.2%}", f"{row.std:.2%}", "1024"]
    assert "mu/16 is untrained" in answer.err and "using split" not in answer.err
    assert "digits: using split 'test'" in vit("fewshot", *COMMON, *flags, "-v").err
    document = json.loads(vit("fewshot", *COMMON, *flags, "--json").out)
    assert timeless(document) == timeless(expected.to_json())
    alone = vit("fewshot", *COMMON, "--shots", "1", "--seeds", "1", "--l2", "sweep", "--json")
    [row] = json.loads(alone.out)["results"]
    assert row["std"] is None and len(row["sweep"]) == 30


def test_probe(vit: Callable[..., Any]) -> None:
    answer = vit("probe", *COMMON)
    assert answer.status == 0, answer.err
    expected = probe("mu/16", "digits:train[:300]", **SETTINGS)
    assert f"{expected.accuracy:.2%}" in answer.out and expected.protocol in answer.out
    assert timeless(json.loads(vit("probe", *COMMON, "--json").out)) == timeless(expected.to_json())
    fixed = json.loads(vit("probe", *COMMON, "--json", "--l2", "0.5", "--evaluate", "digits:val").out)
    assert (fixed["l2"], fixed["test"], fixed["num_test"]) == (0.5, "digits:val", 258)


def test_knn(vit: Callable[..., Any]) -> None:
    answer = vit("knn", *COMMON, "--k", "1,20", "--temperature", "0.07,0.2")
    assert answer.status == 0, answer.err
    expected = knn("mu/16", "digits:train[:300]", k=[1, 20], temperature=[0.07, 0.2], **SETTINGS)
    assert [(row.k, row.temperature) for row in expected.results] == [
        *((1, 0.07), (1, 0.2)),
        *((20, 0.07), (20, 0.2)),
    ]
    lines = [line.split() for line in answer.out.splitlines() if line.strip(" ─")]
    for line, row in zip(lines[2:6], expected.results, strict=True):
        assert line == [str(row.k), f"{row.temperature:g}", f"{row.accuracy:.2%}"]
    document = json.loads(vit("knn", *COMMON, "--json").out)
    assert document["results"] == knn("mu/16", "digits:train[:300]", **SETTINGS).to_json()["results"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fewshot", "mu/16", "digits", "--shots", "1,x"], "--shots is '1,x'; expected whole numbers"),
        (["fewshot", "mu/16", "digits", "--shots", "500"], "500shot: class '0' has only 114 images"),
        (["fewshot", "mu/16", "digits", "--seeds", "0"], "seeds must be at least 1, not 0"),
        (
            ["fewshot", "mu/16", "digits", "--l2", "swep"],
            "--l2 is 'swep'; expected a number above 0, or sweep",
        ),
        (["fewshot", "mu/16", "digits", "--l2", "nan"], "l2 must be above 0, not nan"),
        (["fewshot", "mu/16", "digits", "--l2", "inf"], "l2 must be above 0, not inf"),
        (["fewshot", "mu/16", "digits:test"], "holds 382 of the images that would be measured"),
        (["fewshot", "muu/16", "digits"], "unknown model 'muu/16'"),
        (["probe", "mu/16", "digits", "--l2", "-1"], "l2 must be above 0, not -1"),
        (["probe", "mu/16", "digits:train[1shot]"], "the dev split is empty: give --l2 (l2= in Python)"),
        (["probe", "mu/16", "digts"], "unknown data source 'digts'"),
        (["knn", "mu/16", "digits", "--k", "0"], "must be at least 1 and at most 1157, not 0"),
        (["knn", "mu/16", "digits", "--temperature", "hot"], "--temperature is 'hot'; expected numbers"),
        (["knn", "mu/16", "digits", "--temperature", "0"], "temperature must be above 0, not 0"),
        (["knn", "mu/16", "digits", "--image-size", "3x"], "--image-size is '3x'"),
        (["knn", "mu/16", "digits", "--device", "gpu"], "unknown device 'gpu'"),
    ],
)
def test_bad_input(vit: Callable[..., Any], arguments: list[str], message: str) -> None:
    answer = vit(*arguments)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("error: ") and message in answer.err and answer.err.count("\n") == 1


def test_the_page_runs(vit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of docs/frozen.md, with a small model and few images in place of those it names."""
    page = (Path(__file__).parents[2] / "docs" / "frozen.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    commands = [line for kind, block in blocks if kind == "sh" for line in block.splitlines()]
    assert len(commands) >= 3
    monkeypatch.chdir(tmp_path)
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        words = [
            "mu/16" if "@" in word else "digits" if word.startswith("cifar10") else word for word in words
        ]
        answer = vit(*words, "--image-size", "32")
        assert answer.status == 0 and answer.out, answer.err
    names: dict[str, Any] = {}
    for kind, block in blocks:
        if kind == "python":
            small = re.sub(r'"Ti/16@[^"]*"', '"mu/16"', block).replace('"cifar10"', '"digits"')
            exec(small, names)
    assert 0 < names["result"].results[0].accuracy < 1
    assert names["accuracy"] > 0.8
