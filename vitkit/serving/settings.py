"""What a server allows: addresses, hosts, keys and limits; how they are read from texts, files and the environment."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitkit.errors import InputError
from vitkit.files import read_text

KEYS_VARIABLE = "VIT_KEYS"
"Environment variable with keys, separated by commas."
KEY_LENGTH = 16
"Characters of a key at least."
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0}
_SIZES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True)
class Limits:
    """What one client, and all of them together, may ask for."""

    max_bytes: int = 32_000_000
    "Of one request's body."
    max_images: int = 32
    "Of one request."
    max_pixels: int = 50_000_000
    "Of one image."
    max_waiting: int = 1024
    "Images in line."
    max_connections: int = 512
    max_memory: int = 512_000_000
    "Of all bodies that are being read or answered, in bytes."
    head_seconds: float = 10.0
    "For the head of a request to arrive, once its connection is open."
    body_seconds: float = 30.0
    "For the body of a request to arrive, and for an answer to be taken."
    idle_seconds: int = 15
    "Between two requests of a connection."


class Keys:
    """API keys, of which only digests are kept."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accept(self, key: str) -> bool:
        """Return whether it is one of them, in a time that says nothing about them."""
        given, found = _digest(key), False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, given)
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(file: str | os.PathLike[str] | None) -> Keys:
    """Return the keys in a file, one per line, and those in the environment."""
    lines = [*os.environ.get(KEYS_VARIABLE, "").split(",")]
    if file is not None:
        lines += read_text(file, "the keys in").splitlines()
    keys = [line.strip() for line in lines]
    keys = [key for key in keys if key and not key.startswith("#")]
    if file is not None and not keys:
        raise InputError(f"{os.fspath(file)} has no keys: write one per line")
    for key in keys:
        if len(key) < KEY_LENGTH or not re.fullmatch(r"[!-~]+", key):
            raise InputError(
                f"a key has {len(key)} characters; expected at least {KEY_LENGTH}, ASCII without spaces: "
                "`openssl rand -hex 24` makes one"
            )
    return Keys(keys)


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_public(host: str, keys: Keys, public: bool) -> None:
    """Raise InputError for a server that anyone could use, unless that was asked for."""
    if not is_loopback(host) and not keys and not public:
        raise InputError(
            f"--host {host} lets other machines in, and there are no API keys: give --keys FILE or set {KEYS_VARIABLE}, "
            "or give --public to let everyone in"
        )


class Hosts:
    """Which Host headers are right: a page of another site that points its name to this machine sends a wrong one."""

    def __init__(self, bound: str, allowed: Sequence[str] = ()) -> None:
        """bound: the address that the server listens on. allowed: further names."""
        self._names = {"localhost", bound.lower(), *(name.lower() for name in allowed)}
        self._takes_addresses = not is_loopback(bound)
        if self._takes_addresses:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def accept(self, header: str) -> bool:
        """Return whether a Host header, with or without a port, names this server."""
        match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]@/\\\s]+)(:\d{1,5})?", header.lower())
        if not match:
            return False
        name = match[1].strip("[]").rstrip(".")
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._takes_addresses  # an address can't be pointed elsewhere


def parse_seconds(text: str | float, name: str) -> float:
    """Return the seconds of '100ms', '2s' or a number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|)", str(text).strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds <= 0:
        raise InputError(f"{name} is {text!r}; expected a time such as 100ms or 2s")
    return seconds


def parse_bytes(text: str | int, name: str) -> int:
    """Return the bytes of '32MB' or a number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(KB|MB|GB|)", str(text).strip().upper())
    size = int(float(match[1]) * _SIZES[match[2]]) if match else 0
    if size <= 0:
        raise InputError(f"{name} is {text!r}; expected a size such as 500KB or 32MB")
    return size
