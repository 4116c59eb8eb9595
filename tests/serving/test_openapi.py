"""The OpenAPI document and the answers agree: schemathesis asks what the document allows and what it doesn't."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fastapi import FastAPI

import vitkit
from tests.serving.client import Client, running
from tests.serving.conftest import picture
from vitkit.evaluation.embeddings import open_embeddings
from vitkit.predictor import Predictor
from vitkit.serving.engine import Engine

assert FastAPI
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("schemathesis"), reason="needs schemathesis: pip install schemathesis"),
]
KEY = "a-key-of-24-characters!!"
# What is left out: that any bytes are a valid picture. A page that the model can't fill answers 501.
SETTINGS = """
hooks = "hooks"

[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501]

[[operations]]
include-method = "POST"
checks.positive_data_acceptance.enabled = false
"""
# schemathesis takes a form to be wrong for a second field without a value, but doesn't send such a field.
HOOKS = """
import schemathesis

@schemathesis.hook
def filter_body(context, body):
    return not isinstance(body, dict) or all(value for name, value in body.items() if name != "file")
"""


def check_document(client: Client, folder: Path, *options: str) -> None:
    """Fail with schemathesis' own report unless all of its checks pass."""
    settings = folder / "schemathesis.toml"
    settings.write_text(SETTINGS)
    (folder / "hooks.py").write_text(HOOKS)
    program = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
    document = f"http://127.0.0.1:{client.port}/openapi.json"
    limits = ["--max-examples", "30", "--seed", "0"]
    command = [*program, "--config-file", str(settings), "run", document, *limits, "--no-color", *options]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    assert "9 passed" in ended.stdout


def test_it_agrees_with_a_server_that_can_do_everything(predictor: Predictor, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(3):
        (photos / f"{number}.jpg").write_bytes(picture(number))
    features = tmp_path / "features.parquet"
    vitkit.embed(predictor, str(photos), out=features, progress=False)
    engine = Engine(predictor, latency=20.0, batch_size=4, features=open_embeddings(features))
    with running(engine, KEY) as client:
        check_document(client, tmp_path, "--header", f"Authorization: Bearer {KEY}")
    assert engine.close(10)


def test_it_agrees_with_a_server_without_features(engine: Engine, tmp_path: Path) -> None:
    with running(engine) as client:
        check_document(client, tmp_path)
