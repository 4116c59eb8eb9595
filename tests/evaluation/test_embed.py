"""`vitkit.embed`: every image once, the same bytes after any interruption and for any number of processes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import vitkit
from tests.two_ranks import ROOT, two_ranks
from vitkit import open_embeddings
from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.evaluation import embed as embedding
from vitkit.evaluation.embed import EmbedResult, Span
from vitkit.evaluation.features import load_for_features
from vitkit.evaluation.passes import SourcePass
from vitkit.predictor import Predictor, load
from vitkit.world import World


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "PART", 32)


def embed(out: Path, data: Any = "digits:test[:100]", model: Any = "mu/16", **options: Any) -> EmbedResult:
    """Embed with a small model, untrained unless one is given."""
    size = {"image_size": 32, "device": "cpu"} if isinstance(model, str) else {}
    return vitkit.embed(model, data, out, **{"batch_size": 16, "progress": False, **size, **options})


def model_of(seed: int = 0) -> Predictor:
    torch.manual_seed(seed)
    return load(vitkit.create_model("mu/16", num_classes=10, image_size=32))


def test_a_row_for_each_image(tmp_path: Path) -> None:
    result = embed(tmp_path / "features.parquet")
    assert (result.images, result.width, result.resumed_images, result.unreadable) == (100, 32, 0, ())
    assert (result.model, result.data, result.image_size) == ("mu/16", "digits:test[:100]", (32, 32))
    assert [path.name for path in tmp_path.iterdir()] == ["features.parquet"]
    table = pyarrow.parquet.read_table(tmp_path / "features.parquet")
    source = open_data("digits:test[:100]")
    assert table["index"].to_pylist() == list(range(100))
    assert table["image"].to_pylist() == [source.where(index) for index in range(100)]
    assert table["label"].to_pylist() == [source.class_names[label] for label in source.labels]
    rows = np.array(table["features"].to_pylist(), np.float32)
    ours = SourcePass(source, load_small().preprocessing, world=World(0, 1, torch.device("cpu")))
    np.testing.assert_allclose(rows, ours.features(load_small().model).values, atol=1e-5)


def load_small() -> Predictor:
    return load_for_features("mu/16", "cpu", 32)


class Killed(BaseException):
    """Stands for a power cut: nothing of the package handles it."""


def test_interrupted_anywhere_it_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole.parquet"
    embed(whole)
    write, out = embedding.write_tables, tmp_path / "features.parquet"
    for number in range(5):

        def cut(*arguments: Any, at: list[int] = [number]) -> None:  # noqa: B006 (counts down)
            if not at[0]:
                raise Killed
            at[0] -= 1
            write(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(embedding, "write_tables", cut)
            with pytest.raises(Killed):
                embed(out)
        assert len(list(tmp_path.glob("*.parts/0*.parquet"))) == number
        result = embed(out)
        assert result.resumed_images == min(100, 32 * number) and result.images == 100
        assert out.read_bytes() == whole.read_bytes()
        assert not list(tmp_path.glob("*.parts"))
        out.unlink()


def test_another_batch_size_resumes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "features.parquet"
    monkeypatch.setattr(embedding, "_remove", lambda folder: None)
    embed(out)
    for part in sorted(tmp_path.glob("*.parts/0*"))[::2]:
        part.unlink()
    before, again = open_embeddings(out).features(), tmp_path / "again.parquet"
    (tmp_path / "features.parquet.parts").rename(tmp_path / "again.parquet.parts")
    assert embed(again, batch_size=5).resumed_images == 32 + 4
    np.testing.assert_allclose(open_embeddings(again).features(), before, atol=1e-5)
    assert open_embeddings(again).indices.tolist() == list(range(100))


def test_a_finished_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "features.parquet"
    embed(out)
    before = out.stat()
    monkeypatch.setattr(embedding, "_write_parts", None)
    assert embed(out).resumed_images == 100
    assert out.stat().st_mtime_ns == before.st_mtime_ns


def test_others_are_overwritten_by_force_alone(tmp_path: Path) -> None:
    out = tmp_path / "features.parquet"
    embed(out, model=model_of(0))
    first = out.read_bytes()
    with pytest.raises(
        InputError, match=r"exists and holds other features, of .* by .*; --force overwrites it"
    ):
        embed(out, model=model_of(1))
    with pytest.raises(InputError, match="holds other features"):
        embed(out, "digits:test[:99]", model=model_of(0))
    assert out.read_bytes() == first
    assert embed(out, model=model_of(1), force=True).resumed_images == 0
    assert out.read_bytes() != first
    out.write_bytes(b"notes")
    with pytest.raises(InputError, match=r"features.parquet exists; --force overwrites it"):
        embed(out)


def test_unfinished_features_of_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "features.parquet"
    with monkeypatch.context() as patch:
        patch.setattr(embedding, "_unreadable", lambda folder: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            embed(out, model=model_of(0))
    with pytest.raises(InputError, match="holds unfinished features with other settings: weights is"):
        embed(out, model=model_of(1))
    assert embed(out, model=model_of(1), force=True).resumed_images == 0
    assert not list(tmp_path.glob("*.parts"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of images, of which one can't be read and one is in no class folder."""
    for number in range(20):
        path = tmp_path / "photos" / ("cat" if number % 2 else "dog") / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (12 * number, 40, 255 - 12 * number)).save(path)
    (tmp_path / "photos" / "cat" / "03.png").write_bytes(b"broken")
    Image.new("RGB", (20, 20), "white").save(tmp_path / "photos" / "loose.png")
    return tmp_path / "photos"


def test_every_image_of_a_folder(folder: Path, tmp_path: Path) -> None:
    told: list[str] = []
    result = embed(tmp_path / "f.parquet", folder, batch_size=2, announce=told.append)
    assert result.images == 20 and result.data == f"{folder}:all"
    [bad] = result.unreadable
    assert bad.image == str(folder / "cat" / "03.png")
    assert any("skipped 1 unreadable image" in line for line in told)
    found = open_embeddings(tmp_path / "f.parquet")
    again = found.check(load_small()).embed(found.images)  # as a query is embedded
    np.testing.assert_allclose(found.features(), again, atol=1e-4)
    assert found.origin.unreadable == result.unreadable and len(found) == 20
    assert {found.labels[number] for number in range(20)} == {"", "cat", "dog"}
    assert str(folder / "cat" / "03.png") not in found.images
    assert embed(tmp_path / "f.parquet", folder).unreadable == result.unreadable
    with pytest.raises(InputError, match=r"cannot read .*03.png"):
        embed(tmp_path / "g.parquet", folder, bad_images="error")


def test_too_many_unreadable_images_are_an_error(folder: Path, tmp_path: Path) -> None:
    for number in (5, 7, 9):
        (folder / "cat" / f"{number:02d}.png").write_bytes(b"broken")
    with pytest.raises(InputError, match="4 of 21 images"):
        embed(tmp_path / "f.parquet", folder)
    assert not (tmp_path / "f.parquet").exists()
    assert embed(tmp_path / "f.parquet", folder, bad_images="any").resumed_images == 21


def test_images_of_several_classes(tmp_path: Path) -> None:
    for name in "ab":
        Image.new("RGB", (20, 20), "red").save(tmp_path / f"{name}.png")
    (tmp_path / "labels.csv").write_text("image,labels,split\na.png,x;y,train\nb.png,y,train\n")
    embed(tmp_path / "f.parquet", tmp_path / "labels.csv")
    assert open_embeddings(tmp_path / "f.parquet").labels[:2] == ["x, y", "y"]


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"features.csv is no name for a file of features: expected .* .parquet"
    ):
        embed(tmp_path / "features.csv")
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(InputError, match="is a folder; expected a file"):
        embed(tmp_path / "folder.parquet")
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        embed(tmp_path / "f.parquet", batch_size=0)


@pytest.mark.parametrize(
    ("done", "count", "size", "missing"),
    [
        ([], 10, 4, [(0, 4), (4, 8), (8, 10)]),
        ([(0, 4)], 10, 4, [(4, 8), (8, 10)]),
        ([(4, 8)], 10, 3, [(0, 3), (3, 4), (8, 10)]),
        ([(0, 10)], 10, 4, []),
    ],
)
def test_what_is_missing(done: list[Any], count: int, size: int, missing: list[Any]) -> None:
    assert embedding._missing([Span(*span) for span in done], count, size) == missing


PROGRAM = (
    "-m",
    "vitkit",
    "embed",
    "mu/16",
    "digits",
    "--image-size",
    "32",
    "--device",
    "cpu",
    "--batch-size",
    "8",
)


@pytest.mark.slow
def test_killed_it_resumes_with_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL at moments when parts are there."""
    command = [sys.executable, *PROGRAM, "--out"]
    subprocess.run([*command, str(tmp_path / "whole.parquet")], cwd=ROOT, check=True, capture_output=True)
    kills, out = 0, tmp_path / "features.parquet"
    while not out.exists():
        known = len(list(tmp_path.glob("*.parts/0*")))
        process = subprocess.Popen([*command, str(out)], cwd=ROOT, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            if len(list(tmp_path.glob("*.parts/0*"))) > known:
                process.kill()
                process.wait()
                kills += 1
            time.sleep(0.001)
    assert kills and out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    embed(tmp_path / "one.parquet", "digits", batch_size=8)
    with two_ranks(*PROGRAM, "--out", str(tmp_path / "two.parquet")):
        pass
    ours, theirs = (pyarrow.parquet.read_table(tmp_path / f"{name}.parquet") for name in ("one", "two"))
    assert ours.equals(theirs) and len(ours) == 1797
    assert not list(tmp_path.glob("*.parts"))


def test_the_command(vit: Callable[..., Any], tmp_path: Path) -> None:
    out = str(tmp_path / "f.parquet")
    flags = ("--image-size", "32", "--device", "cpu", "--out", out)
    answer = vit("embed", "mu/16", "digits:test[:20]", *flags)
    assert answer.status == 0, answer.err
    assert answer.out == f"{out}: 20 images of digits:test[:20], 32 features each by mu/16\n"
    again = vit("embed", "mu/16", "digits:test[:20]", *flags, "--json")
    assert '"resumed_images": 20' in again.out
    other = vit("embed", "mu/16", "digits:test[:21]", *flags)
    assert other.status == 2 and re.fullmatch(
        r"(?s).*error: .*holds other features, .*; --force overwrites it\n", other.err
    )
    assert vit("embed", "mu/16", "digits:test[:21]", *flags, "--force").status == 0
