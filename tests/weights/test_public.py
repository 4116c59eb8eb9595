"""The table of public weights agrees with timm's, and fetching them works against a stand-in of the hub."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save

import vitkit
from vitkit.errors import InputError
from vitkit.models import build
from vitkit.models.names import canonical_name, model_config
from vitkit.weights import load
from vitkit.weights.convert import convert
from vitkit.weights.load import load_model
from vitkit.weights.public import AUGREG, PUBLIC, PublicWeights, find_timm_weights, find_weights


def test_tags_are_unique_and_models_known() -> None:
    assert max(Counter((row.name, row.tag) for row in PUBLIC).values()) == 1
    assert max(Counter(row.hub_id for row in PUBLIC).values()) == 1
    assert all(row.name == canonical_name(row.name) for row in PUBLIC)


def test_a_model_has_at_most_one_default() -> None:
    defaults = Counter(row.name for row in PUBLIC if row.default)
    assert max(defaults.values()) == 1
    classifiers = {row.name for row in PUBLIC if row.num_classes}
    assert set(defaults) == classifiers  # what has no head needs a tag


@pytest.mark.parametrize("row", PUBLIC, ids=lambda row: row.hub_id)
def test_every_row_agrees_with_timm(row: PublicWeights) -> None:
    owner, _, name = row.hub_id.partition("/")
    theirs = timm.get_pretrained_cfg(name)
    assert owner == "timm"
    assert theirs.hf_hub_id == row.hub_id
    assert canonical_name(name.partition(".")[0]) == row.name
    assert theirs.num_classes == row.num_classes
    assert theirs.input_size == (3, row.image_size, row.image_size)
    assert (theirs.crop_pct, theirs.interpolation) == (row.crop_fraction, row.interpolation)
    assert (theirs.mean, theirs.std) == (row.mean, row.std)
    assert theirs.license == row.licence
    assert find_timm_weights(name) == row


@pytest.mark.parametrize("row", PUBLIC[::7], ids=lambda row: row.hub_id)
def test_sizes_are_four_bytes_a_parameter(row: PublicWeights) -> None:
    with torch.device("meta"):
        model = build(model_config(row.name, num_classes=row.num_classes, image_size=row.image_size))
    assert row.size_bytes() == 4 * sum(parameter.numel() for parameter in model.parameters())


def test_accuracies_have_a_source() -> None:
    for row in PUBLIC:
        assert (row.top1 is None) == (row.source is None)
        assert row.top1 is None or (row.num_classes == 1000 and 65 < row.top1 < 90)


# The upstream checkpoint of each model in table 3 of the AugReg paper (arXiv 2106.10270), by its settings.
RECOMMENDED = {
    "R50+L/32": "aug_medium1-wd_0.1-do_0.1-sd_0.1",
    "Ti/16": "aug_none-wd_0.03-do_0.0-sd_0.0",
    "S/16": "aug_light1-wd_0.03-do_0.0-sd_0.0",
    "B/32": "aug_light1-wd_0.1-do_0.0-sd_0.0",
    "R+Ti/16": "aug_none-wd_0.03-do_0.0-sd_0.0",
    "S/32": "aug_none-wd_0.1-do_0.0-sd_0.0",
    "R26+S/32": "aug_light1-wd_0.1-do_0.0-sd_0.0",
}


@pytest.mark.parametrize("name", RECOMMENDED)
def test_accuracies_of_a_paper_are_those_of_the_very_file(name: str) -> None:
    """Table 3's accuracy stands with a file that was fine-tuned from that checkpoint, and with no other."""
    for row in PUBLIC:
        if row.name == name and row.tag.startswith("augreg_in21k_ft_in1k"):
            url = timm.get_pretrained_cfg(row.hub_id.removeprefix("timm/")).url
            is_same = f"-i21k-300ep-lr_0.001-{RECOMMENDED[name]}--imagenet2012" in url
            assert (row.top1 is not None) if is_same else row.source != AUGREG


def test_finding_a_row() -> None:
    assert find_weights("B/16", "augreg_in21k").hub_id == "timm/vit_base_patch16_224.augreg_in21k"
    assert find_weights("vit_base_patch16_224", "augreg_in21k") == find_weights("B/16", "augreg_in21k")
    assert find_weights("B/16", "pretrained") == find_weights("B/16", "augreg_in21k_ft_in1k")
    with pytest.raises(InputError) as error:
        find_weights("B/16", "augreg_in21")
    assert str(error.value).startswith(
        "'augreg_in21' is neither a file nor public weights of B/16; did you mean 'augreg_in21k'"
    )


ROW = find_weights("Ti/16", "pretrained")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def repository() -> dict[str, bytes]:
    """What the hub has: random weights in timm's layout, their config, and what nobody needs."""
    torch.manual_seed(0)
    model = vitkit.create_model("Ti/16")
    torch.nn.init.normal_(model.head.weight)
    config = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 1000,
        "num_features": 192,
        "global_pool": "token",
        "pretrained_cfg": {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9},
    }
    return {
        "README.md": b"# a model",
        "config.json": json.dumps(config).encode(),
        "model.safetensors": save(model.state_dict()),
        "pytorch_model.bin": b"a second copy of the weights",
    }


class Hub:
    """A stand-in of the hub on this machine, which writes down what it is asked."""

    def __init__(self, repository: dict[str, bytes]) -> None:
        self.requests: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, body: bool) -> None:
                path = self.path.partition("?")[0]
                hub.requests.append(f"{self.command} {path}")
                name = path.rpartition("/")[2]
                if path == f"/api/models/{ROW.hub_id}/revision/main":
                    files = [{"rfilename": file} for file in repository]
                    self.send_json({"id": ROW.hub_id, "sha": COMMIT, "siblings": files}, body)
                elif path == f"/api/models/{ROW.hub_id}/tree/{COMMIT}":
                    sizes = {file: len(content) for file, content in repository.items()}
                    self.send_json(
                        [{"type": "file", "path": f, "size": n, "oid": COMMIT} for f, n in sizes.items()],
                        body,
                    )
                elif path == f"/{ROW.hub_id}/resolve/{COMMIT}/{name}" and name in repository:
                    content = repository[name]
                    tag = hashlib.sha256(content).hexdigest()
                    self.send(200, content, body, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})
                else:
                    missing = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
                    self.send(404, b"{}", body, missing)

            def send_json(self, document: Any, body: bool) -> None:
                self.send(200, json.dumps(document).encode(), body, {"Content-Type": "application/json"})

            def send(self, status: int, content: bytes, body: bool, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if body:
                    self.wfile.write(content)

            def log_message(self, *arguments: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hub(repository: dict[str, bytes]) -> Iterator[Hub]:
    hub = Hub(repository)
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


def run(commands: list[list[str]], hub: Hub, home: Path, **environment: str) -> list[tuple[Any, str, str]]:
    """Run commands in one process of its own, whose hub is the stand-in; return status, out and err of each.

    The status of a command after which the hub's library was imported is given as text.
    """
    script = (
        "import contextlib, io, json, sys\n"
        "from vitkit.cli import main\n"
        "answers = []\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    out, err = io.StringIO(), io.StringIO()\n"
        "    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):\n"
        "        status = main(command)\n"
        "    status = f'{status}, hub' if 'huggingface_hub' in sys.modules else status\n"
        "    answers.append([status, out.getvalue(), err.getvalue()])\n"
        "print(json.dumps(answers))\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    answer = subprocess.run(
        [sys.executable, "-c", script, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **kept,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
            **environment,
        },
    )
    assert answer.returncode == 0, answer.stderr
    return [tuple(row) for row in json.loads(answer.stdout)]


@pytest.mark.slow
def test_weights_are_fetched_once_and_then_found_offline(
    hub: Hub, repository: dict[str, bytes], tmp_path: Path
) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    spec = f"{ROW.name}@{ROW.tag}"
    plain, missing, first, again = run(
        [
            ["convert", "mu/16", str(tmp_path / "plain")],
            ["convert", "hf-hub:nobody/nothing", str(tmp_path / "nothing")],
            ["convert", spec, str(out)],
            ["convert", f"hf-hub:{ROW.hub_id}", str(tmp_path / "again")],
        ],
        hub,
        home,
    )
    assert plain[0] == 0  # a plain name has no need of the hub's library
    assert missing[:2] == ("2, hub", "")
    assert (
        missing[2].splitlines()[-1].startswith("error: nobody/nothing could not be downloaded from the hub: ")
    )

    announcement = f"weights: {ROW.hub_id} from the Hugging Face hub, 23 MB, licence apache-2.0\n"
    assert (first[0], first[2]) == ("0, hub", announcement)
    assert (again[0], again[2]) == ("0, hub", f"weights: {ROW.hub_id} from the Hugging Face hub\n")

    resolved = [request for request in hub.requests if "/resolve/" in request]
    fetched = [request.rpartition("/")[2] for request in resolved if request.startswith("GET")]
    assert sorted(fetched) == ["config.json", "model.safetensors"]  # once, and nothing else
    asked = [request for request in hub.requests if "nobody" not in request]
    assert all(f"/{ROW.hub_id}/" in request for request in asked)  # no telemetry, no other model

    loaded = load_model(out)
    state = vitkit.weights.files.read_tensors(out / "model.safetensors")
    (tmp_path / "sent.safetensors").write_bytes(repository["model.safetensors"])
    sent = vitkit.weights.files.read_tensors(tmp_path / "sent.safetensors")
    assert state.keys() == sent.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in sent.items())
    assert (loaded.preprocessing.crop_fraction, loaded.preprocessing.interpolation) == (0.9, "bicubic")
    assert (loaded.model.config.gelu, loaded.model.config.norm_epsilon) == ("erf", 1e-6)

    hub.requests.clear()
    cached, absent = run(
        [
            ["convert", spec, str(tmp_path / "offline")],
            ["convert", "B/16@augreg_in21k", str(tmp_path / "absent")],
        ],
        hub,
        home,
        HF_HUB_OFFLINE="1",
    )
    assert cached[0] == "0, hub"
    assert (tmp_path / "offline" / "model.safetensors").is_file()
    assert absent[:2] == ("2, hub", "")
    assert absent[2].splitlines()[-1] == (
        "error: timm/vit_base_patch16_224.augreg_in21k is not in the cache and the hub can't be reached "
        "(HF_HUB_OFFLINE set, or no network); download it elsewhere and pass the folder"
    )
    assert not (tmp_path / "absent").exists()
    assert hub.requests == []


def test_size_and_licence_are_shown_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def download(hub_id: str, announce: Callable[[str], None], *details: Any) -> Path:
        raise InputError(f"{hub_id} {details}")

    monkeypatch.setattr(load, "download", download)
    with pytest.raises(InputError) as error:
        load_model("vit_base_patch16_224.mae", announce=said.append)
    assert str(error.value) == "timm/vit_base_patch16_224.mae (343194624, 'cc-by-nc-4.0')"


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError("connection\nreset"), OSError(28, "No space left on device"), RuntimeError()],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_download_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*arguments: Any, **settings: Any) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(InputError) as raised:
        load_model("Ti/16@pretrained", announce=lambda line: None)
    assert str(raised.value).startswith(f"{ROW.hub_id} could not be downloaded from the hub: ")
    assert "\n" not in str(raised.value)


def test_an_announcement_shows_escape_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: 1 / 0)
    with pytest.raises(InputError):
        load_model("hf-hub:someone/\x1b[2Jmodel")
    assert capsys.readouterr().err == "weights: someone/\\x1b[2Jmodel from the Hugging Face hub\n"


def test_a_repository_without_safetensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Older repositories have pytorch_model.bin alone; it is asked for only then."""
    asked: list[list[str]] = []
    model = vitkit.create_model("mu/16", image_size=32)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    document = {"architecture": "vit_base_patch16_224", "model_args": {"num_heads": 2}}
    (tmp_path / "config.json").write_text(json.dumps(document))

    def snapshot_download(hub_id: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    said: list[str] = []
    loaded = load_model("hf-hub:someone/old", announce=said.append)
    assert said == ["weights: someone/old from the Hugging Face hub"]
    assert torch.equal(loaded.model.state_dict()["pos_embed"], model.state_dict()["pos_embed"])
    assert ["pytorch_model.bin" in patterns for patterns in asked] == [False, True]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*arguments: Any) -> None:
        raise AssertionError(f"a connection to {arguments[1:]} was opened")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)


def test_plain_names_and_files_need_no_network(no_network: None, tmp_path: Path) -> None:
    convert("mu/16", tmp_path / "model", image_size=32)
    convert(tmp_path / "model", tmp_path / "model.npz", "npz")
    convert(f"mu/16@{tmp_path / 'model.npz'}", tmp_path / "again")
    for wrong in ("vit_nothing", "B/16@no_such_tag", "B/16@no_such.npz", "timm/vit_base_patch16_224"):
        with pytest.raises(InputError):
            load_model(wrong)
