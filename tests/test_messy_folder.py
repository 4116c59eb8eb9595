"""A folder of photos as people have them, from data to report with the README's commands alone."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitkit
from vitkit.models.names import default_preprocessing
from vitkit.weights.convert import save
from vitkit.weights.load import LoadedModel

CLASSES = {"Boxer (dog)": (190, 60, 40), "Épagneul 犬": (40, 160, 60), "<script>alert(1)": (50, 70, 190)}
BAD = ("cut off.jpg", "corrupt.png", "empty.jpeg")


def photo(colour: tuple[int, int, int], seed: int, size: tuple[int, int] = (96, 72)) -> Image.Image:
    """A noisy picture in a class's colour."""
    noise = np.random.default_rng(seed).normal(0, 30, (size[1], size[0], 3))
    return Image.fromarray(np.clip(noise + colour, 0, 255).astype(np.uint8))


def fill_class(folder: Path, colour: tuple[int, int, int], first: int) -> None:
    """Write a class's images in the formats that phones, scanners and cameras write."""
    folder.mkdir(parents=True)
    for number in range(24):
        photo(colour, first + number).save(folder / f"IMG_{number:04}.JPG", "JPEG", quality=88)
    photo(colour, first + 30).convert("CMYK").save(folder / "print.jpg")
    photo(colour, first + 31).convert("L").save(folder / "grey.png")
    photo(colour, first + 32).convert("P").save(folder / "palette.gif")
    photo(colour, first + 33).convert("RGBA").save(folder / "clear.webp")
    photo(colour, first + 34).save(folder / "bitmap.bmp")
    depth = np.asarray(photo(colour, first + 35).convert("L")).astype(np.uint16) * 257
    Image.fromarray(depth).save(folder / "16 bits.tiff")
    turned = Image.Exif()
    turned[0x0112] = 6
    photo(colour, first + 36, (72, 96)).save(folder / "turned.jpg", exif=turned)
    photo(colour, first + 37).save(folder / "naïve <b>name 写真.jpg")


@pytest.fixture
def messy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that goes wrong in one, and weights next to it."""
    monkeypatch.chdir(tmp_path)
    model = vitkit.create_model("mu/16", image_size=64)
    loaded = LoadedModel(model, default_preprocessing(model.config), None, "mu/16")
    save(loaded, tmp_path / "weights.safetensors", "timm")
    root = tmp_path / "photos"
    for place, (name, colour) in enumerate(CLASSES.items()):
        fill_class(root / name, colour, 100 * place)
    first = root / "Boxer (dog)"
    whole = io.BytesIO()
    photo((190, 60, 40), 90).save(whole, "JPEG")
    (first / BAD[0]).write_bytes(whole.getvalue()[: len(whole.getvalue()) // 3])
    (first / BAD[1]).write_bytes(random.Random(0).randbytes(4000))
    (first / BAD[2]).write_bytes(b"")
    (first / "notes.txt").write_text("taken in 2019")
    (root / ".DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1")
    (first / ".DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1")
    (root / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    (root / "to sort").mkdir()
    (root / "only one").mkdir()
    photo((200, 200, 20), 91).save(root / "only one" / "single.jpg")
    (first / "more" / "2019").mkdir(parents=True)
    for number in range(4):
        photo((190, 60, 40), 92 + number).save(first / "more" / "2019" / f"{number}.jpg")
    os.symlink("nowhere.jpg", first / "broken link.jpg")
    return tmp_path


@pytest.mark.slow
def test_every_step_of_the_readme_takes_it(vit: Callable[..., Any], messy: Path) -> None:
    def run(command: str) -> Any:
        answer = vit(*command.split()[1:])
        assert answer.status == 0, (command, answer.err)
        assert "Traceback" not in answer.err
        return answer

    named = run("vit data ./photos")
    text = named.out + named.err
    for name in (*BAD, "broken link.jpg"):
        assert name in text, f"vit data does not name {name}"
    assert "to sort" in text and "more/2019" in text and "only one" in text
    assert "16 bits.tiff" not in named.err

    tuned = run("vit finetune weights.safetensors ./photos --run photos minutes=0.2")
    assert "skipped" in tuned.err and any(name in tuned.err for name in BAD)
    assert run("vit eval runs/photos ./photos")
    for verb in ("fewshot", "probe", "knn"):
        frozen = run(f"vit {verb} weights.safetensors ./photos")
        assert "skipped" in frozen.err and any(name in frozen.err for name in BAD), verb
    assert "only one (1)" in run("vit fewshot weights.safetensors ./photos --shots 1,5").err
    predicted = run("vit predict runs/photos ./photos --json")
    assert all(name in predicted.out for name in BAD)
    run("vit inspect runs/photos ./photos --out seen")
    page = (messy / "seen" / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    run("vit report runs/photos")
    page = (messy / "runs" / "photos" / "report" / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    # A file that is removed later leads into no circle.
    (messy / "photos" / "Boxer (dog)" / BAD[1]).unlink()
    run("vit finetune weights.safetensors ./photos --run photos minutes=0.2")
