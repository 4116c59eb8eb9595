"""`vit inspect`: a path or JSON on standard output, reasons on standard error, bad input in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitkit
from vitkit.models.configs import Preprocessing

Vit = Callable[..., Any]


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model in ./model and two photos in ./photos."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(image_size=8, patch=4, width=16, depth=2, heads=2, mlp_width=16)
    made = vitkit.create_model("Ti/16", num_classes=3, **sizes)
    torch.nn.init.normal_(made.head.weight)
    vitkit.save(made, "model", class_names=["a", "b", "c"], preprocessing=Preprocessing(8))
    Path("photos").mkdir()
    for name in ("one", "two"):
        Image.new("RGB", (20, 10), "red").save(f"photos/{name}.png")


def test_the_page_is_named(vit: Vit) -> None:
    answer = vit("inspect", "model", "photos", "--out", "seen", "--device", "cpu")
    assert answer == (0, "seen/index.html\n", "")  # that it has no pooling weights is on the page alone
    assert Path("seen/index.html").is_file() and Path("seen/photo-2-heads.png").is_file()


def test_a_reason_is_told_once(vit: Vit) -> None:
    made = vitkit.create_model("BiT-R50x1", num_classes=3, image_size=32, units=(1,))
    vitkit.save(made, "bit", class_names=["a", "b", "c"], preprocessing=Preprocessing(32))
    answer = vit("inspect", "bit", "photos", "--out", "seen", "--device", "cpu")
    assert (answer.status, answer.err) == (
        0,
        "similarity of positions, attention distance, attention rollout, gradient rollout, a picture of tokens and "
        "a map of attention are not defined for this model, because a ResNet has neither tokens nor attention\n",
    )


def test_json(vit: Vit) -> None:
    answer = vit("inspect", "model", "photos/one.png", "photos/two.png", "--json", "--target", "b")
    assert answer.status == 0
    result = json.loads(answer.out)
    assert result == json.loads(Path("inspection/inspection.json").read_text())
    assert [photo["target"] for photo in result["photos"]] == ["b", "b"]
    assert (result["html"], result["attention_distance"]["images"]) == ("inspection/index.html", 2)


def test_images_are_optional(vit: Vit) -> None:
    answer = vit("inspect", "model")
    assert (answer.status, answer.out) == (0, "inspection/index.html\n")
    assert answer.err.endswith("attention is drawn over images: vit inspect MODEL IMAGES\n")


def test_unreadable_images_are_skipped_unless_they_are_many(vit: Vit) -> None:
    Path("photos/two.png").write_bytes(b"")
    answer = vit("inspect", "model", "photos", "--json")
    assert answer.status == 0
    assert json.loads(answer.out)["unreadable"] == [
        {"image": "photos/two.png", "reason": "it is empty", "data": ""}
    ]
    assert answer.err == "warning: skipped 1 unreadable image: photos/two.png (it is empty)\n"
    Path("photos/three.png").write_bytes(b"")
    answer = vit("inspect", "model", "photos", "--out", "other")
    assert (answer.status, answer.err) == (
        2,
        "error: 2 of 3 images can't be read, so results would mislead: photos/three.png (it is empty), photos/two.png (it "
        "is empty); repair these files, or continue without them: --bad-images any (bad_images='any' in Python)\n",
    )
    assert vit("inspect", "model", "photos", "--out", "other", "--bad-images", "any").status == 0
    answer = vit("inspect", "model", "photos", "--out", "third", "--bad-images", "error")
    assert answer.status == 2 and answer.err.startswith(
        "error: cannot read photos/three.png: it is empty; --bad-images"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modle", "photos"], "unknown model 'modle'"),
        (["model", "photos", "--fuse", "sum"], "fuse is 'sum'; expected one of mean, max, min"),
        (["model", "photos", "--target", "d"], "the model has no class 'd'"),
        (["model", "photos", "photo.jpg"], "no such file or folder: photo.jpg"),
        (["model", "photos", "--image-size", "big"], "--image-size is 'big'"),
        (
            ["model", "photos", "--out", "photos"],
            "photos holds '",
        ),
    ],
)
def test_bad_input_is_one_line(vit: Vit, arguments: list[str], message: str) -> None:
    answer = vit("inspect", *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.splitlines()[-1].startswith(f"error: {message}")
