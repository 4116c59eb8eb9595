"""The HTTP API: what it answers to good requests, and in which words to bad ones."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image

import vitkit
from tests.serving.client import Client, encoded, form, running
from tests.serving.conftest import picture
from vitkit.errors import InputError
from vitkit.evaluation.embeddings import open_embeddings
from vitkit.predictor import Predictor
from vitkit.serving.engine import Answer, Engine, Work
from vitkit.serving.guard import POLICY
from vitkit.serving.schedule import Refused

assert FastAPI  # a machine without it collects nothing here
KEY = "a-key-of-24-characters!!"


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[Client]:
    with running(engine, max_images=4, max_bytes=400_000) as made:
        yield made


@pytest.fixture(scope="module")
def locked(engine: Engine) -> Iterator[Client]:
    with running(engine, KEY, "another-key-of-some-length") as made:
        yield made


def test_predict_gives_the_models_own_answers(client: Client, predictor: Predictor) -> None:
    files = {f"{number}.jpg": picture(number) for number in range(3)}
    answer = client.post("/predict?top=2", files)
    assert answer.status == 200
    for row, (name, data) in zip(answer.json["predictions"], files.items(), strict=True):
        expected = predictor.predict(data, top=2)[0]
        assert row["file"] == name
        assert [(guess["name"], guess["index"]) for guess in row["classes"]] == [
            (guess.name, guess.index) for guess in expected
        ]
        np.testing.assert_allclose(
            [guess["probability"] for guess in row["classes"]],
            [guess.probability for guess in expected],
            atol=1e-4,
        )


def test_json_and_plain_bodies_mean_the_same(client: Client) -> None:
    [expected] = client.post("/predict", {"a.jpg": picture(1)}).json["predictions"]
    [in_json] = client.post_json("/predict", {"images": [encoded(picture(1))]}).json["predictions"]
    [plain] = client.ask("POST", "/predict", picture(1), Content_Type="image/jpeg").json["predictions"]
    assert expected["classes"] == in_json["classes"] == plain["classes"]
    assert (in_json["file"], plain["file"]) == ("image 1", "image")


@pytest.mark.parametrize("name", ["写真.jpg", "ünï cödé.jpg", "<b>.jpg", "a b;c.jpg"])
def test_files_keep_their_names(client: Client, name: str) -> None:
    assert client.post("/predict", {name: picture(1)}).json["predictions"][0]["file"] == name


def test_embed_gives_features(client: Client, predictor: Predictor) -> None:
    answer = client.post("/embed", {"a": picture(1), "b": picture(2)}).json
    assert answer["width"] == 24
    np.testing.assert_allclose(answer["embeddings"], predictor.embed([picture(1), picture(2)]), atol=1e-4)


def test_attention_gives_a_picture(client: Client) -> None:
    answer = client.post("/attention?layer=1&head=2", {"a": picture(1)})
    assert answer.status == 200 and answer.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(answer.content)).size == (672, 672)
    assert answer.content != client.post("/attention", {"a": picture(1)}).content


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("layer=2", "layer 2 is not there: the model has 2, counted from 0"),
        ("head=99", "head 99 is not there: the model has 3, counted from 0"),
        ("layer=all", "layer: String should match pattern '^(rollout|[0-9]{1,3})$'"),
    ],
)
def test_attention_that_is_not_there(client: Client, query: str, words: str) -> None:
    answer = client.post(f"/attention?{query}", {"a": picture(1)})
    assert (answer.status, answer.json) == (400, {"error": words})


@pytest.fixture(scope="module")
def searching(
    predictor: Predictor, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Client, Path]]:
    folder = tmp_path_factory.mktemp("searched")
    for number in range(12):
        path = folder / "photos" / "blue" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number, size=(300, 200)))
    features = folder / "features.parquet"
    vitkit.embed(predictor, str(folder / "photos"), out=features, progress=False)
    engine = Engine(predictor, latency=5.0, batch_size=4, features=open_embeddings(features))
    with running(engine) as client:
        yield client, folder
    assert engine.close(10)


def test_search_finds_the_nearest_images(searching: tuple[Client, Path]) -> None:
    client, _ = searching
    assert client.get("/info").json["search"] == {"images": 12}
    data = picture(5, size=(300, 200))
    found = client.post("/search?k=3", {"a": data}).json["images"]
    assert len(found) == 3
    assert (found[0]["name"], found[0]["label"]) == ("5.jpg", "blue") and found[0]["similarity"] > 0.9999
    assert found[0]["similarity"] >= found[1]["similarity"] >= found[2]["similarity"]
    answer = client.get(f"/thumbnail/{found[0]['index']}")
    assert answer.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(answer.content)) as image:
        assert image.size == (160, 107)


def test_images_that_are_not_there(searching: tuple[Client, Path]) -> None:
    client, folder = searching
    assert client.get("/thumbnail/12").json == {"error": "image 12 is not there"}
    (folder / "photos" / "blue" / "7.jpg").unlink()
    answer = client.get("/thumbnail/9")  # names are sorted as texts
    assert (answer.status, answer.json) == (404, {"error": "image 9 is not there"})
    assert client.get("/thumbnail/x").status == client.get("/thumbnail/-1").status == 400
    assert client.get("/thumbnail/..%2f..%2fetc%2fpasswd").status == 404


def test_search_without_features(client: Client) -> None:
    answer = client.post("/search", {"a": picture(1)})
    assert answer.status == 501 and answer.json["error"].endswith("vit serve MODEL --features FILE")
    assert client.get("/thumbnail/0").status == 501


def test_features_of_another_model_are_refused(searching: tuple[Client, Path]) -> None:
    other = vitkit.load(
        vitkit.create_model("Ti/16", num_classes=7, image_size=32, depth=1, width=24, heads=3, mlp_width=32)
    )
    with pytest.raises(InputError, match="was made with other weights"):
        Engine(other, latency=5.0, features=open_embeddings(searching[1] / "features.parquet"))


def test_a_broken_picture_among_good_ones_is_named(client: Client) -> None:
    answer = client.post("/predict", {"a.jpg": picture(1), "b.txt": b"text", "c.jpg": picture(2)})
    first, second, third = answer.json["predictions"]
    assert answer.status == 200 and "classes" in first and "classes" in third
    assert second["file"] == "b.txt" and second["error"].startswith("it is not an image in a known format")


JPEG = {"Content_Type": "image/jpeg"}
WRONG = [
    ("text", "/predict", b"text", JPEG, 400, "it is not an image in a known format"),
    ("cut", "/predict", picture(1, size=(300, 300))[:900], JPEG, 400, "image file is truncated"),
    ("tiff", "/predict", picture(1, "TIFF"), JPEG, 400, "it is a TIFF file; expected one of JPEG, PNG"),
    ("empty", "/predict", b"", JPEG, 400, "it is empty"),
    ("embed", "/embed", b"text", JPEG, 400, "it is not an image in a known format"),
    (
        "kind",
        "/predict",
        b"x",
        {"Content_Type": "text/plain"},
        415,
        "the content type is 'text/plain'; expected",
    ),
    ("no kind", "/predict", b"x", {}, 415, "the content type is 'nothing'; expected multipart/form-data"),
    ("top", "/predict?top=0", picture(1), JPEG, 400, "top: Input should be greater than or equal to 1"),
    ("large", "/predict", b"x" * 400_001, JPEG, 413, "the request is larger than 400,000 bytes"),
    (
        "two",
        "/attention",
        form({"a": b"", "b": b""})[1],
        {"Content_Type": form({})[0]},
        400,
        "more than one picture",
    ),
    *(
        (name, "/predict", body, {"Content_Type": "application/json"}, status, words)
        for name, body, status, words in [
            ("no JSON", b"{", 400, 'the body is not JSON; expected {"images": ["base64", ...]}'),
            ("deep JSON", b"[" * 100_000, 400, "the body is not JSON"),
            ("other keys", b'{"image": []}', 400, "the JSON document has other keys"),
            ("no list", b'{"images": "x"}', 400, "images is no list of texts"),
            ("numbers", b'{"images": [1]}', 400, "images is no list of texts"),
            ("none", b'{"images": []}', 400, "the request has no pictures"),
            ("no base64", b'{"images": ["***"]}', 400, "image 1 is not base64"),
            ("a link", b'{"images": ["http://localhost/x"]}', 400, "image 1 is not base64"),
            ("many", json.dumps({"images": [""] * 5}).encode(), 400, "the request has more than 4 pictures"),
        ]
    ),
    *(
        (name, "/predict", body, {"Content_Type": kind}, status, words)
        for name, kind, body, status, words in [
            ("no boundary", "multipart/form-data", b"x", 400, "the content type has no boundary"),
            ("no form", "multipart/form-data; boundary=b", b"x", 400, "the form is broken"),
            ("empty form", "multipart/form-data; boundary=b", b"", 400, "the request has no pictures"),
            (
                "cut form",
                form({"a": picture(1)})[0],
                form({"a": picture(1)})[1][:-10],
                400,
                "the form is broken",
            ),
            (
                "field",
                *form({"a": picture(1)}, "photo"),
                400,
                "the form has a field that is not named 'file'",
            ),
            ("files", *form({str(number): b"x" for number in range(5)}), 400, "more than 4 pictures"),
        ]
    ),
]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_what_is_wrong_is_said(
    client: Client, path: str, body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    answer = client.ask("POST", path, body, **headers)
    assert answer.status == status
    assert words in answer.json["error"] and "\n" not in answer.json["error"]


def test_pages_that_are_not_there(client: Client) -> None:
    assert client.get("/nothing").json == {"error": "no such page: /nothing"}
    answer = client.get("/predict")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.json == {"error": "GET is not for this page"}


def test_info_says_what_is_served(client: Client, locked: Client) -> None:
    info = client.get("/info").json
    assert info == {
        "model": "VisionTransformer",
        "architecture": "ViT",
        "num_classes": 7,
        "multi_label": False,
        "image_size": [32, 32],
        "key_required": False,
        "attention": {"layers": 2, "heads": 3},
        "attention_reason": None,
        "search": None,
        "max_bytes": 400_000,
        "max_images": 4,
        "latency_ms": 5000.0,
    }
    assert locked.get("/info").json["key_required"] is True


def test_it_is_healthy_and_ready(client: Client) -> None:
    assert client.get("/healthz").json == {"status": "ok"}
    assert client.get("/readyz").json == {"status": "ready"}


def test_keys_are_asked_for(locked: Client) -> None:
    assert locked.post("/predict", {"a": picture(1)}).status == 200
    for given in ("", "Bearer ", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", KEY):
        answer = locked.post("/predict", {"a": picture(1)}, Authorization=given)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert locked.get("/metrics", Authorization="").status == 401
    for path in (
        "/",
        "/page.css",
        "/page.js",
        "/ways.js",
        "/info",
        "/docs",
        "/openapi.json",
        "/healthz",
        "/readyz",
    ):
        assert locked.get(path, Authorization="").status == 200


def test_other_hosts_are_refused(client: Client) -> None:
    assert client.get("/info", Host="attacker.example").status == 421
    assert client.get("/info", Host=f"localhost:{client.port}").status == 200
    assert b" 421 " in client.raw(b"GET /info HTTP/1.0\r\n\r\n")
    assert b" 421 " in client.raw(b"GET /info HTTP/1.0\r\nHost: localhost\r\nHost: other\r\n\r\n")


def test_pages_of_other_sites_are_refused(client: Client) -> None:
    assert client.post("/predict", {"a": picture(1)}, Origin="http://attacker.example").status == 403
    assert client.post("/predict", {"a": picture(1)}, Origin="null").status == 403
    assert client.post("/predict", {"a": picture(1)}, Origin=f"http://127.0.0.1:{client.port}").status == 200


def test_every_answer_has_its_policy_and_none_lets_other_sites_in(client: Client) -> None:
    for path in ("/", "/info", "/nothing", "/docs"):
        headers = client.get(path, Origin=f"http://127.0.0.1:{client.port}").headers
        assert headers["x-content-type-options"] == "nosniff"
        assert not [name for name in headers if name.startswith("access-control")]
        policy = headers["content-security-policy"]
        assert policy == POLICY or (path == "/docs" and "script-src" not in policy)
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy


def test_docs_need_no_script_and_nothing_from_elsewhere(client: Client) -> None:
    text = client.get("/docs").content.decode()
    assert "<script" not in text and not re.search(r'(src|href)="(?!data:)', text)
    for path in ("/predict", "/embed", "/attention", "/info", "/healthz", "/readyz", "/metrics"):
        assert f" {path}</h2>" in text


def test_openapi_says_which_pages_need_a_key(client: Client, locked: Client) -> None:
    assert "security" not in client.get("/openapi.json").json["paths"]["/predict"]["post"]
    paths = locked.get("/openapi.json").json["paths"]
    assert paths["/predict"]["post"]["security"] == [{"key": []}]
    assert "security" not in paths["/info"]["get"]


def test_openapi_says_what_each_page_takes_and_answers(client: Client) -> None:
    paths = client.get("/openapi.json").json["paths"]

    def most(path: str) -> set[int]:
        [form, document, _] = paths[path]["post"]["requestBody"]["content"].values()
        return {
            form["schema"]["properties"]["file"]["maxItems"],
            document["schema"]["properties"]["images"]["maxItems"],
        }

    assert most("/predict") == most("/embed") == {4} and most("/attention") == most("/search") == {1}
    for operations in paths.values():
        for operation in operations.values():
            answers = operation["responses"]
            assert {"403", "413", "421"} < answers.keys() and "422" not in answers
            assert len(answers["200"]["content"]) == 1
    assert "Retry-After" in paths["/predict"]["post"]["responses"]["503"]["headers"]


def test_refusals_say_when_to_come_back(
    client: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        raise Refused("too busy to answer in time", 0.25)

    monkeypatch.setattr(engine.batcher, "check", check)
    before = engine.metrics.total("vit_images_total", "refused")
    answer = client.post("/predict", {"a": picture(1)})
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json == {"error": "too busy to answer in time", "retry_after": 0.25}
    assert engine.metrics.total("vit_images_total", "refused") == before + 1
    assert client.get("/info").status == 200


def test_metrics_count_what_was_answered(client: Client, engine: Engine) -> None:
    def total(outcome: str) -> int:
        text = client.get("/metrics").content.decode()
        [number] = re.findall(rf'vit_images_total\{{outcome="{outcome}"\}} (\d+)', text)
        return int(number)

    answered, unreadable = total("answered"), total("unreadable")
    client.post("/predict", {"a": picture(1), "b": b"text", "c": picture(2)})
    assert (total("answered"), total("unreadable")) == (answered + 2, unreadable + 1)
    assert total("late") == 0
    assert engine.metrics.total("vit_body_bytes") == 0


def test_slow_requests_are_ended(engine: Engine) -> None:
    with running(engine, head_seconds=0.2, body_seconds=0.2) as client:
        start = time.monotonic()
        assert client.raw(b"") == b""
        assert client.raw(b"GET /info HTTP/1.1\r\nHost: loc") == b""
        assert time.monotonic() - start < 3
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length: 100\r\n\r\n"
        answer = client.raw(head + b"slow")
        assert b" 408 " in answer and b"took longer than 0.2 s to arrive" in answer


def test_heads_and_bodies_without_end_are_cut(client: Client) -> None:
    assert client.raw(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 100_000) == b""
    head = b"POST /predict HTTP/1.1\r\nHost: other\r\nContent-Type: image/jpeg\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = client.raw(head + b"4000\r\n" + b"x" * 0x4000 + (b"\r\n4000\r\n" + b"x" * 0x4000) * 60)
    assert answer.count(b"HTTP/1.1") <= 1


def test_what_is_no_http_gets_an_answer_of_its_own(client: Client) -> None:
    assert b"this is not HTTP" in client.raw(b"\x16\x03\x01 TLS\r\n\r\n")


def test_too_many_large_requests_wait_outside(engine: Engine) -> None:
    with running(engine, max_memory=50_000) as client:
        answer = client.post("/predict", {"a": b"x" * 60_000})
        assert (answer.status, answer.json["error"]) == (503, "too many large requests at once")
        assert client.post("/predict", {"a": picture(1)}).status == 200


def test_a_server_that_stops_answers_what_it_accepted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, before = engine.batcher._compute, engine.batcher.counts().accepted

    def slow(works: Sequence[Work]) -> Sequence[Answer]:
        time.sleep(0.3)
        return compute(works)

    monkeypatch.setattr(engine.batcher, "_compute", slow)
    with ThreadPoolExecutor(4) as threads:
        with running(engine) as client:
            asked = [threads.submit(client.post, "/predict", {"a": picture(number)}) for number in range(4)]
            while engine.batcher.counts().accepted < before + 4:
                time.sleep(0.005)
        assert [answer.result().status for answer in asked] == [200] * 4
        with pytest.raises(ConnectionError):
            client.get("/info")
