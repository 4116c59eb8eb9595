"""What a server allows, and how it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitkit.errors import InputError
from vitkit.serving.settings import (
    KEYS_VARIABLE,
    Hosts,
    Keys,
    check_public,
    is_loopback,
    parse_bytes,
    parse_seconds,
    read_keys,
)

KEY = "0123456789abcdef"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)


def test_times() -> None:
    assert [parse_seconds(text, "latency") for text in ("100ms", "2s", "1.5 s", 0.25, "3")] == [
        0.1,
        2,
        1.5,
        0.25,
        3,
    ]
    for wrong in ("", "0", "-1s", "soon", "1h", "nan"):
        with pytest.raises(InputError, match="expected a time such as 100ms or 2s"):
            parse_seconds(wrong, "latency")


def test_sizes() -> None:
    assert [parse_bytes(text, "max_bytes") for text in ("500KB", "32mb", "1.5 GB", 7)] == [
        500_000,
        32_000_000,
        1_500_000_000,
        7,
    ]
    for wrong in ("", "0", "-1", "1TB"):
        with pytest.raises(InputError, match="expected a size such as 500KB or 32MB"):
            parse_bytes(wrong, "max_bytes")


def test_keys_come_from_a_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{KEY}\n\n")
    monkeypatch.setenv(KEYS_VARIABLE, f"{KEY[::-1]}, {KEY}x")
    keys = read_keys(file)
    assert keys and all(keys.accept(key) for key in (KEY, KEY[::-1], f"{KEY}x"))
    assert not any(keys.accept(key) for key in ("", KEY[:-1], "ü" * 16, "# ours"))
    monkeypatch.delenv(KEYS_VARIABLE)
    assert not read_keys(None) and not Keys().accept("")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no keys: write one per line"),
        ("short", "a key has 5 characters; expected at least 16"),
        (f"{KEY} {KEY}", "ASCII without spaces"),
    ],
)
def test_wrong_keys_are_refused_and_not_repeated(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(InputError, match=words) as error:
        read_keys(file)
    assert not text or text not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the keys in"):
        read_keys(tmp_path / "none")


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.8.8.8")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com")))


def test_an_open_server_must_be_asked_for() -> None:
    check_public("127.0.0.1", Keys(), False)
    check_public("0.0.0.0", Keys([KEY]), False)
    check_public("0.0.0.0", Keys(), True)
    with pytest.raises(InputError, match="--host 0.0.0.0 lets other machines in, and there are no API keys"):
        check_public("0.0.0.0", Keys(), False)


def test_hosts_of_a_local_server() -> None:
    hosts = Hosts("127.0.0.1", ["Photos.example"])
    for right in (
        "localhost",
        "LOCALHOST:8000",
        "127.0.0.1:1",
        "[::1]:8000",
        "photos.example:443",
        "localhost.",
    ):
        assert hosts.accept(right), right
    for wrong in (
        "",
        "example",
        "localhost.example",
        "10.0.0.1",
        "a b",
        "localhost:x",
        "localhost@example",
        "[::1",
        "::1",
    ):
        assert not hosts.accept(wrong), wrong


def test_hosts_of_a_public_server() -> None:
    hosts = Hosts("0.0.0.0")
    assert hosts.accept("10.0.0.1:8000") and hosts.accept("localhost")
    assert not hosts.accept("attacker.example")
