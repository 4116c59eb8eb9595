"""Weight files from strangers: damaged, lying or hostile ones give one line and exit 2, run nothing, leave nothing."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import Tensor

import vitkit
from vitkit.errors import InputError
from vitkit.models import build
from vitkit.models.configs import Preprocessing, ResNetConfig
from vitkit.weights import google, huggingface, torchvision
from vitkit.weights.convert import save as save_model
from vitkit.weights.files import read_header, read_tensors
from vitkit.weights.load import LoadedModel, load_model

Tensors = dict[str, Tensor]


def tiny(name: str = "mu/16", **model_settings: Any) -> Tensors:
    torch.manual_seed(0)
    model = vitkit.create_model(name, **{"image_size": 32, "num_classes": 3, **model_settings})
    return {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}


def as_npz(tensors: Tensors, compressed: bool = False) -> bytes:
    file = io.BytesIO()
    write = np.savez_compressed if compressed else np.savez
    write(file, **{name: tensor.numpy() for name, tensor in tensors.items()})
    return file.getvalue()


def as_pth(tensors: Any, zipped: bool = True) -> bytes:
    file = io.BytesIO()
    torch.save(tensors, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


OURS = tiny()
CONFIG = vitkit.create_model("mu/16", image_size=32, num_classes=3).config
CONTAINERS: dict[str, bytes] = {
    "model.safetensors": save(OURS),
    "model.npz": as_npz(google.write(CONFIG, OURS)),
    "compressed.npz": as_npz(google.write(CONFIG, OURS), compressed=True),
    "model.pth": as_pth(OURS),
    "legacy.pth": as_pth(OURS, zipped=False),
}


@pytest.fixture
def refuse(vit: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    """Convert a source that must be refused, in every format; return the one line that says why."""

    def refuse(source: Path, *arguments: str, to: str = "vitkit") -> str:
        before = sorted(tmp_path.rglob("*"))
        target = tmp_path / {"npz": "out.npz", "torchvision": "out.pth"}.get(to, "out")
        answer = vit("convert", str(source), str(target), "--to", to, *arguments)
        assert (answer.status, answer.out) == (2, "")
        assert answer.err.startswith("error: ") and answer.err.count("\n") == 1, answer.err
        assert sorted(tmp_path.rglob("*")) == before
        return answer.err.removeprefix("error: ").rstrip("\n")

    return refuse


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_files_are_sound_before_we_damage_them(name: str, tmp_path: Path) -> None:
    state = load_model(write(tmp_path, name, CONTAINERS[name])).model.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in OURS.items())


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x.pth", "x"])
def test_empty_files(name: str, refuse: Callable[..., str], tmp_path: Path) -> None:
    path = write(tmp_path, name, b"")
    assert refuse(path) == f"{path} is empty"


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("kept", [1, 7, 9, 40, 1000, 0.5, -100, -22, -1])
def test_truncated_files(name: str, kept: float, refuse: Callable[..., str], tmp_path: Path) -> None:
    content = CONTAINERS[name]
    end = int(len(content) * kept) if isinstance(kept, float) else kept
    path = write(tmp_path, name, content[:end])
    assert str(path) in refuse(path)


@pytest.mark.parametrize(
    "content",
    [
        b"Not Found",
        b"<!doctype html><html><body>rate limit</body></html>",
        b'{"error": "not a file"}',
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 22\n",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"PK\x03\x04" + bytes(100),
        b"PK\x05\x06" + bytes(18),
        b"\x80\x02.",
        bytes(1000),
        np.random.default_rng(0).bytes(1000),
    ],
    ids=lambda content: repr(content[:12]),
)
def test_other_files(content: bytes, refuse: Callable[..., str], tmp_path: Path) -> None:
    refuse(write(tmp_path, "model.safetensors", content))


def test_a_folder_instead_of_a_file(refuse: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "model.npz").mkdir()
    assert "is not a model folder: it has no config.json" in refuse(tmp_path / "model.npz")


def read_or_refuse(path: Path) -> None:
    """Whatever the bytes, reading ends in tensors or in an InputError of one line."""
    for read in (read_header, read_tensors, load_model):
        try:
            read(path)
        except InputError as error:
            one_line(error)
            return


def one_line(error: InputError) -> None:
    assert "\n" not in str(error)


@pytest.mark.parametrize("name", CONTAINERS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_never_crashes(name: str, data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(CONTAINERS[name])
    size = len(content)
    # Structure stands at both ends of these formats; weights, which may hold anything, between.
    places = st.one_of(st.integers(0, size - 1), st.integers(0, 3000), st.integers(size - 3000, size - 1))
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
        content[place] = value
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, size - 1)) :]
    read_or_refuse(write(tmp_path, name, bytes(content)))


class Evil:
    """Unpickling this makes a folder: the proof that code ran."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_never_runs(zipped: bool, refuse: Callable[..., str], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = write(tmp_path, "model.pth", as_pth({"state_dict": OURS, "args": Evil(mark)}, zipped))
    message = refuse(path)
    assert message == (
        f"{path} holds pickled objects other than tensors, which could run code; "
        "save only its state_dict, preferably as .safetensors"
    )
    assert not mark.exists()
    torch.load(path, weights_only=False)  # the attack itself is real
    assert mark.exists()


def test_a_plain_pickle_never_runs(refuse: Callable[..., str], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    refuse(write(tmp_path, "model.pth", pickle.dumps(Evil(mark))))
    assert not mark.exists()


def test_code_in_a_folder_never_runs(refuse: Callable[..., str], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architecture": "vit_base_patch16_224"}))
    write(folder, "pytorch_model.bin", as_pth({"x": Evil(mark)}))
    refuse(folder)
    assert not mark.exists()


def test_code_in_an_object_array_never_runs(refuse: Callable[..., str], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    np.savez(tmp_path / "model.npz", **{"embedding/kernel": np.array([Evil(mark)], dtype=object)})
    message = refuse(tmp_path / "model.npz")
    assert message == f"{tmp_path / 'model.npz'}: embedding/kernel has type object; expected numbers"
    assert not mark.exists()


@pytest.mark.parametrize(
    "document",
    [
        {"state_dict": 3},
        [1, 2],
        {"a": "text"},
        {"a": torch.ones(2).to_sparse()},
        {"state_dict": {}},
        {},
        5,
        None,
    ],
    ids=str,
)
def test_pth_files_without_a_state_dict(document: Any, refuse: Callable[..., str], tmp_path: Path) -> None:
    refuse(write(tmp_path, "model.pth", as_pth(document)))


def test_a_state_dict_inside_itself(refuse: Callable[..., str], tmp_path: Path) -> None:
    endless: dict[str, Any] = {}
    endless["model"] = endless
    refuse(write(tmp_path, "model.pth", as_pth(endless)))


def test_a_tensor_larger_than_its_file(refuse: Callable[..., str], tmp_path: Path) -> None:
    """One number, repeated by its strides, would fill the memory when it is looked at."""
    tensors = {
        **OURS,
        "head.weight": torch.zeros(1, 1).expand(10**10, 32),
        "head.bias": torch.zeros(1).expand(10**10),
    }
    with bounded():
        message = refuse(write(tmp_path, "model.pth", as_pth(tensors)))
    assert "head.weight" in message


class bounded:
    """Fail when the block takes long or allocates much: a lying file must be seen through before it is read."""

    def __enter__(self) -> None:
        tracemalloc.start()
        self.start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if error[0] is None:
            assert peak < 64e6
            assert time.perf_counter() - self.start < 10


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    length = struct.pack("<H" if version[0] == 1 else "<I", len(header) + 1)
    return b"\x93NUMPY" + version + length + header.encode() + b"\n" + data


def npz_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def described(shape: str, dtype: str = "'<f4'", order: str = "False") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}, }}"


@pytest.mark.parametrize(
    "member",
    [
        npy(described("(1000000, 1000000)"), bytes(4000)),
        npy(described("(3,)"), bytes(4000)),
        npy(described("(-1,)"), bytes(4)),
        npy(described("(-2, -2)"), bytes(16)),
        npy(described("(1000000000, 0)")),
        npy(described("(99999999999999999999999999, 0)")),
        npy(described("()"), bytes(4)),
        npy(described("'x'"), bytes(4)),
        npy(described("(1.5,)"), bytes(4)),
        npy(described("(2,)", "'|O'"), bytes(16)),
        npy(described("(2,)", "'<U4'"), bytes(32)),
        npy(described("(2,)", "[('a', '<f4')]"), bytes(8)),
        npy(described("(2,)", "'no type'"), bytes(8)),
        npy(described("(2,)", "'<c8'"), bytes(16)),
        npy("__import__('os').getcwd()"),
        npy("{'descr': '<f4'}"),
        npy("(" * 5000),
        npy(described("(1,)") + " " * 60000, bytes(4)),
        npy(described("(1,)") + " " * 100000, bytes(4), b"\x02\x00"),
        npy(described("(1,)"), bytes(4), b"\x09\x00"),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        b"",
        b"no array",
    ],
    ids=lambda member: repr(member[10:60]),
)
def test_lying_npz_members(member: bytes, refuse: Callable[..., str], tmp_path: Path) -> None:
    with bounded():
        refuse(write(tmp_path, "model.npz", npz_of({"embedding/kernel.npy": member})))


@pytest.mark.parametrize("shape", [(1000000, 1000000), (31,), (33,)])
def test_a_member_that_says_another_shape(
    shape: tuple[int, ...], refuse: Callable[..., str], tmp_path: Path
) -> None:
    sound = {name: tensor.numpy() for name, tensor in google.write(CONFIG, OURS).items()}
    members = {}
    for name, array in sound.items():
        members[f"{name}.npy"] = npy(described(str(array.shape)), array.tobytes())
    members["embedding/bias.npy"] = npy(described(str(shape)), sound["embedding/bias"].tobytes())
    path = write(tmp_path, "model.npz", npz_of(members))
    with bounded():
        assert refuse(path) == f"{path}: embedding/bias has shape {shape}, but holds 128 bytes"


def test_a_scanned_npz_of_endless_depth(refuse: Callable[..., str], tmp_path: Path) -> None:
    arrays = {"embedding/kernel": np.zeros((16, 16, 3, 32), np.float32)}
    arrays["Transformer/encoderblock/LayerNorm_0/scale"] = np.zeros((10**6, 1), np.uint8)
    np.savez(tmp_path / "model.npz", **arrays)
    with bounded():
        refuse(tmp_path / "model.npz")


def test_zip_bombs_are_not_inflated(refuse: Callable[..., str], tmp_path: Path) -> None:
    """A whole model whose head has 2.6 million classes, all zero: 1.5 MB that would fill 340."""
    path, classes = tmp_path / "model.npz", 2_600_000
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, tensor in google.write(CONFIG, OURS).items():
            with archive.open(f"{name}.npy", "w") as file:
                if name.startswith("head/"):
                    shape = (*tensor.shape[:-1], classes)
                    file.write(npy(described(str(shape))))
                    for _ in range(classes // 100_000):
                        file.write(bytes(400_000 * (len(tensor) if tensor.ndim > 1 else 1)))
                else:
                    np.save(file, tensor.numpy())
    assert path.stat().st_size < 2e6
    with bounded():
        message = refuse(path)
    assert "model.npz would inflate from " in message
    assert message.endswith(" bytes: weights don't compress that well")


def test_compressed_files_of_zeros_are_no_bombs(tmp_path: Path) -> None:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in OURS.items()}
    path = write(tmp_path, "zeros.npz", as_npz(google.write(CONFIG, zeros), compressed=True))
    assert sum(t.numel() for t in zeros.values()) * 4 > 20 * path.stat().st_size
    assert not any(tensor.any() for tensor in load_model(path).model.state_dict().values())


def safetensors_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    "content",
    [
        safetensors_of({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4]}}, bytes(4)),
        safetensors_of({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}, bytes(4)),
        safetensors_of({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}),
        safetensors_of({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, bytes(4)),
        safetensors_of({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        safetensors_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, bytes(4)),
        safetensors_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(400)),
        safetensors_of({"a": 5}),
        safetensors_of({}),
        safetensors_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4), length=2**60),
        safetensors_of(b"{" * 10000),
    ],
    ids=lambda content: repr(content[8:70]),
)
def test_lying_safetensors(content: bytes, refuse: Callable[..., str], tmp_path: Path) -> None:
    with bounded():
        refuse(write(tmp_path, "model.safetensors", content))


WRITERS: dict[str, Callable[[Tensors], bytes]] = {
    "safetensors": save,
    "npz": lambda tensors: as_npz(google.write(CONFIG, tensors)),
    "pth": as_pth,
}


@pytest.mark.parametrize("container", WRITERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite(
    container: str, value: float, refuse: Callable[..., str], tmp_path: Path
) -> None:
    tensors = {name: tensor.clone() for name, tensor in OURS.items()}
    tensors["norm.bias"][7] = value
    path = write(tmp_path, "model", WRITERS[container](tensors))
    name = "Transformer/encoder_norm/bias" if container == "npz" else "norm.bias"
    assert refuse(path) == f"{path}: {name} holds NaN or infinite values"


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
@pytest.mark.parametrize("container", ["safetensors", "pth"])
def test_numbers_of_other_kinds(
    container: str, dtype: torch.dtype, refuse: Callable[..., str], tmp_path: Path
) -> None:
    tensors = {**OURS, "norm.bias": OURS["norm.bias"].to(dtype)}
    path = write(tmp_path, "model", WRITERS[container](tensors))
    assert "norm.bias" in refuse(path)


LAYOUTS: dict[str, tuple[str, Tensors]] = {
    "Google": ("mu/16@model.npz", google.write(CONFIG, OURS)),
    "timm": ("mu/16@model.safetensors", OURS),
    "transformers": ("mu/16@model.safetensors", huggingface.write(CONFIG, OURS)),
    "torchvision": ("mu/16@model.safetensors", torchvision.write(CONFIG, OURS)),
    "timm, MAP": ("mu/16@model.safetensors", tiny(pool="map", registers=2, layer_scale=0.1)),
    "BiT": ("BiT-R26x1@model.safetensors", {}),
    "Compact": ("CCT-2/3x2@model.safetensors", tiny("CCT-2/3x2")),
}
LAYOUTS["BiT"] = (
    "model.safetensors",
    {
        "stem.conv.weight": torch.zeros(64, 3, 7, 7),
        "norm.weight": torch.zeros(256),
        "norm.bias": torch.zeros(256),
        "head.fc.weight": torch.zeros(3, 256, 1, 1),
        "head.fc.bias": torch.zeros(3),
        **{
            f"stages.0.blocks.0.norm{n}.{kind}": torch.zeros(64) for n in "123" for kind in ("weight", "bias")
        },
        "stages.0.blocks.0.conv1.weight": torch.zeros(64, 64, 1, 1),
        "stages.0.blocks.0.conv2.weight": torch.zeros(64, 64, 3, 3),
        "stages.0.blocks.0.conv3.weight": torch.zeros(256, 64, 1, 1),
        "stages.0.blocks.0.downsample.conv.weight": torch.zeros(256, 64, 1, 1),
    },
)
SHAPES = [(), (0,), (1,), (5,), (7, 3), (1, 1, 1), (3, 2, 2, 2), (1, 2, 1, 2, 1)]


def specs(layout: str, folder: Path, tensors: Tensors) -> str:
    name, _, file = LAYOUTS[layout][0].rpartition("@")
    (write_npz if file.endswith(".npz") else save_file)(tensors, folder / file)
    return f"{name}@{folder / file}" if name else str(folder / file)


def write_npz(tensors: Tensors, path: Path) -> None:
    path.write_bytes(as_npz(tensors))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_tensor_of_another_shape_is_refused(layout: str, tmp_path: Path) -> None:
    _, sound = LAYOUTS[layout]
    load_model(specs(layout, tmp_path, sound))
    for index, name in enumerate(sound):
        for shape in SHAPES[index % 4 :: 4]:
            if sound[name].shape == shape:
                continue
            spec = specs(layout, tmp_path, {**sound, name: torch.zeros(shape)})
            with pytest.raises(InputError) as error:
                load_model(spec)
            assert "\n" not in str(error.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_headers_are_compared_before_anything_is_read(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_tensors(path: Path) -> Tensors:
        raise AssertionError("the data was read")

    monkeypatch.setattr("vitkit.weights.load.read_tensors", read_tensors)
    _, sound = LAYOUTS[layout]
    last = list(sound)[-1]
    for wrong in ({**sound, last: torch.zeros(5)}, {**sound, "unknown": torch.zeros(5)}):
        with pytest.raises(InputError):
            load_model(specs(layout, tmp_path, wrong))
    with pytest.raises(AssertionError, match="the data was read"):
        load_model(specs(layout, tmp_path, sound))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_missing_tensor_is_refused(layout: str, tmp_path: Path) -> None:
    _, sound = LAYOUTS[layout]
    for name in sound:
        if name == "classifier.positional_emb":
            continue  # Compact Transformers without positions are published ones
        spec = specs(layout, tmp_path, {other: tensor for other, tensor in sound.items() if other != name})
        with pytest.raises(InputError):
            load_model(spec)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound model folder of ours."""
    model = vitkit.create_model("mu/16", image_size=32, num_classes=3)
    model.load_state_dict(OURS)
    names = ("ant", "bee", "cat")
    save_model(LoadedModel(model, Preprocessing((32, 32)), names, "mu/16"), tmp_path / "folder")
    return tmp_path / "folder"


def set_in(document: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """Return the document with the entry at 'a.b.c' set."""
    *parents, last = place.split(".")
    entry = document
    for parent in parents:
        entry = entry[parent]
    entry[last] = value
    return document


ENTRIES: list[tuple[str, Any, str]] = [
    ("vitkit", [], "the entry 'vitkit' is not an object"),
    ("vitkit.format_version", 2, "its format version is 2; this version of vitkit reads 1"),
    ("vitkit.format_version", None, "its format version is None; this version of vitkit reads 1"),
    ("vitkit.family", "lstm", "unknown family 'lstm'; expected one of vit, hybrid, resnet, compact"),
    ("vitkit.family", ["vit"], "unknown family"),
    ("vitkit.multi_label", "no", "'multi_label' is neither true nor false"),
    ("vitkit.model", None, "'model' is missing or not an object"),
    ("vitkit.model.droput", 0.1, "{path}: unknown setting 'droput' in model; did you mean 'dropout'"),
    ("vitkit.model.width", "32", "{path}: width in model is '32'; expected a whole number"),
    ("vitkit.model.width", 10**30, "{path}: width must be below 2**63, not 10000"),
    ("vitkit.model.depth", 10**9, "depth must be at least 1 and at most 1000, not 1000000000"),
    ("vitkit.model.depth", 1000, "its config says 1000 layers (depth, units), but the file holds"),
    ("vitkit.model.heads", 10**9, "heads must be at least 1 and at most 1000, not 1000000000"),
    ("vitkit.model.depth", -1, "depth must be at least 1 and at most 1000, not -1"),
    ("vitkit.model.heads", 0, "heads must be at least 1 and at most 1000, not 0"),
    ("vitkit.model.patch", 0, "patch must be at least 1 and at most 16384, not 0"),
    ("vitkit.model.mlp_width", 10**9, "mlp_width must be at least 1 and at most 262144"),
    ("vitkit.model.mlp_width", 2**18, "shape"),
    (
        "vitkit.model.image_size",
        [10**6, 10**6],
        "image_size must be at least 1 and at most 16384, not 1000000",
    ),
    ("vitkit.model.image_size", [2**14, 2**14], "it is made for images of 16384x16384 pixels"),
    ("vitkit.model.image_size", [1000, 1000], "pos_embed"),
    ("vitkit.model.image_size", [0, 0], "image_size must be at least 1 and at most 16384, not 0"),
    ("vitkit.model.image_size", [1, 2, 3], "expected a whole number or HEIGHTxWIDTH"),
    ("vitkit.model.channels", 0, "channels must be at least 1, not 0"),
    ("vitkit.model.num_classes", 4, "head.weight has shape (3, 32); the model expects (4, 32)"),
    ("vitkit.model.num_classes", -3, "num_classes must be at least 0, not -3"),
    ("vitkit.model.pool", "max", "{path}: pool in model is 'max'; expected one of"),
    ("vitkit.model.registers", 10**12, "registers must be at least 0 and at most 1000"),
    ("vitkit.model.registers", 1000, "pos_embed has shape (1, 5, 32); the model expects (1, 1005, 32)"),
    ("vitkit.model.pre_logits", 10**12, "pre_logits must be at least 0 and at most 262144"),
    ("vitkit.model.pre_logits", 2**18, "head.weight has shape (3, 32); the model expects (3, 262144)"),
    ("vitkit.model.channels", 10**9, "shape"),
    ("vitkit.model.num_classes", 10**9, "shape"),
    ("vitkit.preprocessing", 3, "'preprocessing' is missing or not an object"),
    ("vitkit.preprocessing.mean", [], "mean"),
    ("vitkit.preprocessing.mean", [0.5], "mean and std need one number per channel"),
    ("vitkit.preprocessing.std", [0.5, 0.5, 0], "mean and std need one number per channel, and std must be"),
    ("vitkit.preprocessing.crop_fraction", 0, "crop_fraction must be at least 0.25 and at most 1, not 0"),
    ("vitkit.preprocessing.interpolation", "nearest", "expected one of 'bilinear', 'bicubic'"),
    ("vitkit.class_names", ["ant"], "names 1 classes, but its head has 3"),
    ("vitkit.class_names", "ant", "'class_names' is not a list of texts"),
    ("vitkit.class_names", [1, 2, 3], "'class_names' is not a list of texts"),
]


@pytest.mark.parametrize(("place", "value", "message"), ENTRIES, ids=lambda value: str(value)[:40])
def test_wrong_entries_of_our_config(
    place: str, value: Any, message: str, folder: Path, refuse: Callable[..., str]
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(set_in(json.loads(path.read_text()), place, value)))
    with bounded():
        assert message.replace("{path}", str(path)) in refuse(folder)


def test_mean_and_std_of_other_channels(folder: Path, refuse: Callable[..., str]) -> None:
    path = folder / "config.json"
    document = json.loads(path.read_text())
    document["vitkit"]["preprocessing"] |= {"mean": [0.5] * 4, "std": [0.5] * 4}
    path.write_text(json.dumps(document))
    assert "4" in refuse(folder)


def test_a_fixed_table_of_absurd_size(folder: Path, refuse: Callable[..., str]) -> None:
    """Fixed positions are computed, not read, so that the file doesn't bound them."""
    tensors = {name: tensor for name, tensor in OURS.items() if name != "pos_embed"}
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    document = json.loads(path.read_text())
    document["vitkit"]["model"] |= {"positions": "sincos_2d", "patch": 1, "image_size": [2**11, 2**11]}
    path.write_text(json.dumps(document))
    with bounded():
        assert "images of 2048x2048 pixels have 4,194,304 patches; the limit is 65,536" in refuse(folder)


COUNTS = {
    "BiT": [
        {"units": [10**9]},
        {"units": [1] * 10**5},
        {"width_factor": 10**9},
        {"image_size": [2**12, 2**12]},
        {"image_size": [1, 10**9]},
    ],
    "CCT-2/3x2": [
        {"convolutions": 10**9},
        {"depth": 10**9},
        {"kernel": 10**9},
        {"heads": 10**9},
        {"image_size": [2**14, 2**14], "positions": "none"},
    ],
    "R26+S/32": [{"backbone_units": [10**9]}, {"backbone_width": 2**40}, {"patch": 10**9}],
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, settings) for name, rows in COUNTS.items() for settings in rows],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_no_count_or_size_of_a_config_is_taken_at_its_word(
    name: str, settings: dict[str, Any], refuse: Callable[..., str], tmp_path: Path
) -> None:
    """A config of a few bytes must not hang, or take memory that its tensors don't."""
    if name == "BiT":
        model = build(ResNetConfig(units=(1,), image_size=32, num_classes=3))
    else:
        with torch.device("meta"):
            model = vitkit.create_model(name, image_size=32, num_classes=3)
        model.to_empty(device="cpu")
    folder = tmp_path / "folder"
    vitkit.save(model, folder)
    path = folder / "config.json"
    document = json.loads(path.read_text())
    document["vitkit"]["model"] |= settings
    path.write_text(json.dumps(document))
    with bounded():
        assert refuse(folder).startswith(f"{folder}/")


def test_large_images_are_taken_where_they_are_asked_for(tmp_path: Path) -> None:
    model = build(ResNetConfig(units=(1,), image_size=2**12, num_classes=3))
    vitkit.save(model, tmp_path / "folder")
    with pytest.raises(InputError, match="if you trust it, pass the size: --image-size 4096"):
        load_model(tmp_path / "folder")
    assert load_model(tmp_path / "folder", image_size=2**12).model.config.size == (4096, 4096)


def with_records(content: bytes, **records: bytes) -> bytes:
    """Return a .pth file with some of its records replaced."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        for member in old.namelist():
            new.writestr(member, records.get(member.rpartition("/")[2], old.read(member)))
    return file.getvalue()


@pytest.mark.parametrize(
    ("record", "value", "message"),
    [
        ("byteorder", b"big", "was written on a big-endian machine: save it as .safetensors there"),
        (".storage_alignment", b"0", "has storage alignment 0; expected 1 to 1048576"),
        (".storage_alignment", str(2**40).encode(), "has storage alignment 1099511627776"),
    ],
)
def test_records_that_end_torchs_process(
    record: str, value: bytes, message: str, refuse: Callable[..., str], tmp_path: Path
) -> None:
    """torch.load of these on the meta device ends in SIGSEGV, in SIGFPE, or takes the memory that is stated."""
    if record not in {
        name.rpartition("/")[2] for name in zipfile.ZipFile(io.BytesIO(as_pth(OURS))).namelist()
    }:
        pytest.skip(f"this torch writes no record {record}")
    path = write(tmp_path, "model.pth", with_records(as_pth(OURS), **{record: value}))
    with bounded():
        assert message in refuse(path)


@pytest.mark.parametrize("wrapper", ["module.", "model._orig_mod.", "module.model."])
def test_names_of_endless_prefixes(wrapper: str, refuse: Callable[..., str], tmp_path: Path) -> None:
    endless = {wrapper * 100_000 + name: tensor for name, tensor in OURS.items()}
    with bounded():
        message = refuse(write(tmp_path, "model.safetensors", save(endless)))
    assert "characters; the limit is 500" in message and len(message) < 300
    several = {wrapper * 10 + name: tensor for name, tensor in OURS.items()}
    state = load_model(write(tmp_path, "model.safetensors", save(several))).model.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in OURS.items())


@pytest.mark.parametrize("prefix", ["", "patch_embed.backbone."])
def test_a_resnet_of_endless_stages(prefix: str, refuse: Callable[..., str], tmp_path: Path) -> None:
    """A stage is a name of a few bytes, and looking for the units of each takes a look at every name."""
    tensors = {f"{prefix}stages.{number}.blocks.0.x": torch.zeros(1) for number in range(1_000)}
    tensors |= {f"{prefix}stem.conv.weight": torch.zeros(64, 3, 7, 7)}
    if prefix:
        tensors |= {"patch_embed.proj.weight": torch.zeros(8, 64, 1, 1)}
        tensors |= {"blocks.0.mlp.fc1.weight": torch.zeros(8, 8)}
    message = refuse(write(tmp_path, "model.safetensors", save(tensors)))
    assert message.endswith("the file's ResNet has 1,000 stages; the limit is 8")


def test_scanned_blocks_of_too_many_parts(refuse: Callable[..., str], tmp_path: Path) -> None:
    names = [f"Transformer/encoderblock/x{number}" for number in range(110)]
    arrays = {"embedding/kernel": torch.zeros(1, 1, 3, 8), **{name: torch.zeros(1000) for name in names}}
    message = refuse(write(tmp_path, "model.npz", as_npz(arrays)))
    assert message.endswith("its scanned blocks hold more than 100,000 tensors")


PIPE_OR_DEVICE: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("kind", PIPE_OR_DEVICE)
@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "README.md", "preprocessor_config.json"]
)
def test_pipes_and_devices_in_a_folder(
    kind: str, name: str, folder: Path, refuse: Callable[..., str]
) -> None:
    """Opening a pipe hangs, and reading /dev/zero never ends."""
    path = folder / name
    path.unlink(missing_ok=True)
    PIPE_OR_DEVICE[kind](path)
    if name in ("model.safetensors", "config.json"):
        with bounded():
            assert str(folder) in refuse(folder)
    else:
        load_model(folder)


@pytest.mark.parametrize("kind", PIPE_OR_DEVICE)
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "preprocessor_config.json"])
def test_pipes_and_devices_in_a_peers_folder(kind: str, name: str, tmp_path: Path) -> None:
    save_file(huggingface.write(CONFIG, OURS), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(HF_CONFIG))
    (tmp_path / name).unlink(missing_ok=True)
    PIPE_OR_DEVICE[kind](tmp_path / name)
    try:
        load_model(tmp_path)
    except InputError as error:
        one_line(error)


@pytest.mark.parametrize("kind", PIPE_OR_DEVICE)
def test_pipes_and_devices_as_weights(kind: str, refuse: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    PIPE_OR_DEVICE[kind](path)
    assert str(path) in refuse(path)
    assert str(path) in refuse(Path(f"mu/16@{path}"))
    path.with_name("model.npz.json").symlink_to(path)
    write(tmp_path, "model.npz", CONTAINERS["model.npz"])
    load_model(tmp_path / "model.npz")


def test_json_of_absurd_length(folder: Path, refuse: Callable[..., str]) -> None:
    with (folder / "config.json").open("r+b") as file:
        file.truncate(10**11)  # sparse: it takes no place on the disk
    with bounded():
        assert "has 100,000,000,000 bytes; the limit for JSON is 33,554,432" in refuse(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "{'vitkit': 1}",
        "[" * 100_000,
        '{"vitkit": ' * 5000,
        '{"a": ' + "9" * 5000 + "}",
        "\xff\xfe",
    ],
    ids=lambda text: text[:12],
)
def test_broken_json(text: str, folder: Path, refuse: Callable[..., str]) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert str(folder / "config.json") in refuse(folder)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("key", ["norm_epsilon", "dropout"])
def test_json_numbers_that_are_not_finite(
    key: str, value: str, folder: Path, refuse: Callable[..., str]
) -> None:
    path = folder / "config.json"
    document = set_in(json.loads(path.read_text()), f"vitkit.model.{key}", "HERE")
    path.write_text(json.dumps(document).replace('"HERE"', value))
    refuse(folder)


@pytest.fixture
def sidecar_of(tmp_path: Path) -> Path:
    write(tmp_path, "model.npz", CONTAINERS["model.npz"])
    return tmp_path / "model.npz.json"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format_version": 1}'])
def test_broken_sidecars(text: str, sidecar_of: Path, refuse: Callable[..., str]) -> None:
    sidecar_of.write_text(text)
    assert str(sidecar_of) in refuse(sidecar_of.with_suffix(""))


WRONG = [None, True, 5, -1, 0, 1.5, "text", "", [], [1], ["x"], [[1]], {}, {"a": 1}, 10**30]


def survives(path: Path, spec: Path, document: dict[str, Any]) -> None:
    """The config is understood or refused in one line, nothing else."""
    path.write_text(json.dumps(document))
    try:
        load_model(spec)
    except InputError as error:
        one_line(error)


TIMM_CONFIG: dict[str, Any] = {
    "architecture": "vit_base_patch16_224",
    "num_classes": 3,
    "global_pool": "token",
    "label_names": ["ant", "bee", "cat"],
    "model_args": {
        "img_size": 32,
        "num_heads": 2,
        "act_layer": "gelu",
        "no_embed_class": False,
        "global_pool": "token",
        "pos_embed": "learn",
    },
    "pretrained_cfg": {
        "input_size": [3, 32, 32],
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
    },
}
HF_CONFIG: dict[str, Any] = {
    "model_type": "vit",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "num_attention_heads": 2,
    "image_size": 32,
    "id2label": {"0": "ant", "1": "bee", "2": "cat"},
    "pooler_act": "tanh",
}
HF_PREPROCESSOR: dict[str, Any] = {
    "do_normalize": True,
    "do_center_crop": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 3,
    "size": {"shortest_edge": 36},
    "crop_size": {"height": 32, "width": 32},
}


def places(document: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in document.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from places(value, f"{prefix}{name}.")


@pytest.mark.parametrize("place", list(places(TIMM_CONFIG)))
def test_wrong_types_in_timms_config(place: str, tmp_path: Path) -> None:
    save_file(OURS, tmp_path / "model.safetensors")
    for value in WRONG:
        document = set_in(json.loads(json.dumps(TIMM_CONFIG)), place, value)
        survives(tmp_path / "config.json", tmp_path, document)


@pytest.mark.parametrize("place", list(places(HF_CONFIG)))
def test_wrong_types_in_transformers_config(place: str, tmp_path: Path) -> None:
    save_file(huggingface.write(CONFIG, OURS), tmp_path / "model.safetensors")
    for value in WRONG:
        document = set_in(json.loads(json.dumps(HF_CONFIG)), place, value)
        survives(tmp_path / "config.json", tmp_path, document)


@pytest.mark.parametrize("place", list(places(HF_PREPROCESSOR)))
def test_wrong_types_in_transformers_preprocessor(place: str, tmp_path: Path) -> None:
    save_file(huggingface.write(CONFIG, OURS), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(HF_CONFIG))
    for value in WRONG:
        document = set_in(json.loads(json.dumps(HF_PREPROCESSOR)), place, value)
        survives(tmp_path / "preprocessor_config.json", tmp_path, document)


def test_paths_and_code_in_a_config_are_not_followed(tmp_path: Path) -> None:
    """What timm and transformers would follow stays text here."""
    secret = tmp_path / "secret.safetensors"
    save_file({name: tensor + 1 for name, tensor in OURS.items()}, secret)
    (tmp_path / "model").mkdir()
    code = "open('ran', 'w')"
    write(tmp_path / "model", "evil.py", code.encode())
    save_file(OURS, tmp_path / "model" / "model.safetensors")
    document = {
        **TIMM_CONFIG,
        "auto_map": {"AutoModelForImageClassification": "evil.Evil"},
        "_name_or_path": str(secret),
        "pretrained_cfg": {**TIMM_CONFIG["pretrained_cfg"], "file": str(secret), "url": f"file://{secret}"},
    }
    (tmp_path / "model" / "config.json").write_text(json.dumps(document))
    state = load_model(tmp_path / "model").model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in OURS.items())
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "a\0b", "..", "C:\\evil"])
def test_strange_tensor_names(name: str, refuse: Callable[..., str], tmp_path: Path) -> None:
    path = write(tmp_path, "model.pth", as_pth({**OURS, name: torch.ones(2)}))
    assert "unused tensors (1)" in refuse(path)


@pytest.mark.parametrize("to", ["npz", "timm", "hf", "torchvision"])
def test_nothing_is_written_in_any_format(to: str, refuse: Callable[..., str], tmp_path: Path) -> None:
    refuse(write(tmp_path, "model.safetensors", CONTAINERS["model.safetensors"][:-1]), to=to)


@pytest.mark.slow
def test_the_commands_exit_status(tmp_path: Path) -> None:
    """The same in a process of its own: one line, no traceback, status 2."""
    path = write(tmp_path, "model.npz", CONTAINERS["model.npz"][:1000])
    command = [sys.executable, "-m", "vitkit", "convert", str(path), str(tmp_path / "out")]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"error: {path} is damaged or not a weight file: ")
    assert answer.stderr.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == [path]
