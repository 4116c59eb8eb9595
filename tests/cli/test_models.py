"""`vit models` lists models in both dialects and the public weights, with near names for unknown ones."""

from __future__ import annotations

import json

import pytest

import vitkit
from vitkit.catalog import models
from vitkit.weights.public import PUBLIC


def test_json_is_what_python_returns(vit) -> None:
    answer = vit("models", "cct*", "--json")
    assert (answer.status, answer.err) == (0, "")
    assert json.loads(answer.out) == [row.to_json() for row in models("cct*")]


def test_both_dialects_find_the_same_rows() -> None:
    assert models("vit_large_patch*") == models("L/*")
    assert [row.name for row in models("CCT-7*")] == vitkit.list_models("cct_7*")


@pytest.mark.parametrize("name", ["g/14", "G/14", "s/16", "S/16", "b/32", "B/32"])
def test_case_tells_sizes_apart(name: str) -> None:
    assert [row.name for row in models(name)] == [name]


def test_every_model_has_its_cost() -> None:
    rows = models()
    assert [row.name for row in rows] == vitkit.list_models()
    assert all(row.parameters > 0 and row.macs > 0 for row in rows)
    assert all((row.tokens is None) == row.name.startswith("BiT-") for row in rows)


def test_published_numbers() -> None:
    (row,) = models("B/16")
    assert row.other_name == "vit_base_patch16_224"
    assert row.image_size == (224, 224)
    assert row.tokens == 197
    assert row.parameters == 86_567_656


@pytest.mark.parametrize(
    ("name", "paper_name", "image_size", "tokens"),
    [("vit_base_patch16_384", "B/16", 384, 577), ("B/20", "B/20", 224, 122)],
)
def test_a_name_that_is_not_listed(name: str, paper_name: str, image_size: int, tokens: int) -> None:
    (row,) = models(name)
    assert row.name == paper_name
    assert row.image_size == (image_size, image_size)
    assert row.tokens == tokens


def test_the_page_shows_both_names(vit) -> None:
    answer = vit("models", "cct_7_3x1*")
    assert answer.status == 0
    assert "CCT-7/3x1" in answer.out
    assert "cct_7_3x1_32" in answer.out


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("vit_bse_patch16_224", "did you mean 'vit_base_patch16_224'"),
        ("swin*", "no model matches 'swin*'; `vit models` lists them all"),
        ("", "unknown model ''"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--weights"], ["--json"]])
def test_unknown_names_are_answered(vit, pattern: str, message: str, flags: list[str]) -> None:
    answer = vit("models", pattern, *flags)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert message in answer.err


def test_all_public_weights_are_listed() -> None:
    rows = models(weights=True)
    assert [row.weights for row in rows] == [f"{entry.name}@{entry.tag}" for entry in PUBLIC]
    for row, entry in zip(rows, PUBLIC, strict=True):
        assert row.hub_id == entry.hub_id
        assert row.licence
        assert row.size_bytes > 0
        assert row.top1 is None or 0.5 < row.top1 < 1.0
        assert entry.name in vitkit.list_models()


def test_weights_of_one_model() -> None:
    entry = PUBLIC[0]
    tags = [f"{row.name}@{row.tag}" for row in PUBLIC if row.name == entry.name]
    assert [row.weights for row in models(entry.name, weights=True)] == tags
    (row,) = models(f"{entry.name}@{entry.tag}", weights=True)
    assert row.preprocessing.mean == entry.mean
    assert entry.tag in models(entry.name)[0].weights


def test_the_tag_of_the_default_weights() -> None:
    (row,) = models("B/16@pretrained", weights=True)
    assert row.default
    assert row in models("B/16", weights=True)


def test_the_page_of_weights(vit) -> None:
    answer = vit("models", "--weights")
    assert answer.status == 0
    for entry in PUBLIC:
        assert entry.hub_id in answer.out
        assert entry.licence in answer.out


def test_a_model_without_public_weights(vit) -> None:
    answer = vit("models", "e/14", "--weights")
    assert answer == (2, "", "error: no public weights for 'e/14'; `vit models --weights` lists them all\n")
