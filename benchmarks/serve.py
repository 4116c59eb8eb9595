"""Load on `vit serve` and on its peers: the tables of docs/results/serve.md.

    python benchmarks/serve.py bench --model Ti/16@weights.safetensors
    python benchmarks/serve.py run ours --model Ti/16@weights.safetensors --latency 100ms --images ./photos --rate 400
    python benchmarks/serve.py run litserve --model Ti/16@weights.safetensors --images ./photos --rate 400
    python benchmarks/serve.py show

`bench` measures the model alone. `run` starts one server on core 0 with one thread and asks it from core 1: requests come at a
fixed rate, whatever the answers; a request that finds all connections busy waits. Every image has one known answer. Results go
to docs/results/serve.json, from which `show` prints the tables.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import datetime
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from PIL import Image

from vitkit.machine import cpu_name

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "serve.json"
PEERS = ("ours", "litserve", "ray")
SIDE = 224
WARM_UP = 3.0
"Seconds of load before anything is counted."


@dataclass
class Seen:
    """What the client saw."""

    sent: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    wrong: int = 0
    lost: int = 0
    "Connections that ended without an answer."
    waits: list[float] = field(default_factory=list)
    "From the last byte out to the first byte in, of status 200."
    refusals: list[float] = field(default_factory=list)


def photos(folder: Path, count: int) -> list[bytes]:
    """Return JPEGs of 224 px, cut from photos as a client would."""
    found = []
    for path in sorted(folder.rglob("*.[jJ][pP]*[gG]"))[:count]:
        with Image.open(path) as image:
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            square = image.convert("RGB").crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
        file = io.BytesIO()
        square.save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


def request(data: bytes, port: int) -> bytes:
    """Return a request that all peers take: JSON with a picture in base64."""
    body = json.dumps({"images": [base64.b64encode(data).decode()]}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def ask(
    port: int, requests: list[bytes], answers: list[int], rate: float, seconds: float, connections: int
) -> Seen:
    """Send requests at a fixed rate over so many connections, and note what comes back."""
    seen, turn = Seen(), 0
    start = time.perf_counter()
    end = start + seconds

    async def connect() -> None:
        nonlocal turn
        reader = writer = None
        while True:
            mine, turn = turn, turn + 1
            due = start + mine / rate
            if due > end or time.perf_counter() > end:
                break
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            place = mine % len(requests)
            counted = time.perf_counter() > start + WARM_UP
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(requests[place])
                await writer.drain()
                out = time.perf_counter()
                first = await reader.readexactly(12)
                wait = time.perf_counter() - out
                head = first + await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else await chunks(reader)
            except (OSError, asyncio.IncompleteReadError):
                seen.lost += counted
                seen.sent += counted
                reader = writer = None
                continue
            if b"connection: close" in head.lower():
                writer.close()
                reader = writer = None
            if not counted:
                continue
            status = first[9:].decode()
            seen.sent += 1
            seen.statuses[status] = seen.statuses.get(status, 0) + 1
            if status == "200":
                seen.waits.append(wait)
                seen.wrong += best(body) != answers[place]
            else:
                seen.refusals.append(wait)
        if writer is not None:
            writer.close()

    await asyncio.gather(*(connect() for _ in range(connections)))
    return seen


async def chunks(reader: asyncio.StreamReader) -> bytes:
    """Return a body that comes in chunks."""
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body


def best(body: bytes) -> int:
    """Return the likeliest class of an answer."""
    document = json.loads(body)
    if "predictions" in document:
        return int(document["predictions"][0]["classes"][0]["index"])
    return int(document["index"])


def quantile(values: list[float], share: float) -> float | None:
    """Return the value that a share of all don't exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else None


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def command(peer: str, arguments: argparse.Namespace, port: int) -> list[str]:
    """Return the command of a server."""
    if peer == "ours":
        flags = ["--port", str(port), "--threads", "1", "--latency", arguments.latency]
        return [
            sys.executable,
            "-m",
            "vitkit",
            "serve",
            arguments.model,
            *flags,
            "--batch-size",
            str(arguments.batch_size),
        ]
    script = str(Path(__file__).with_name("serve_peers.py"))
    return [sys.executable, script, peer, arguments.model, str(port), str(arguments.batch_size)]


@contextlib.contextmanager
def started(peer: str, arguments: argparse.Namespace, sample: bytes) -> Iterator[tuple[int, int]]:
    """Start a server on core 0, wait until it answers, and yield its port and process."""
    port = free_port()
    words = ["taskset", "-c", "0", *command(peer, arguments, port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VIT_KEYS": ""}
    process = subprocess.Popen(words, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 180
        while True:
            assert process.poll() is None, f"{peer} has ended"
            assert time.monotonic() < deadline, f"{peer} does not answer"
            if is_up(port, sample):
                break
            time.sleep(0.5)
        yield port, process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def is_up(port: int, sample: bytes) -> bool:
    """Return whether a server answers with status 200."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as opened:
            opened.sendall(request(sample, port))
            return b" 200 " in opened.recv(64)
    except OSError:
        return False


def memory(session: int) -> int:
    """Return the resident memory of all processes of a session, in bytes."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((path / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                total += int((path / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def run(arguments: argparse.Namespace) -> None:
    import vitkit

    pictures = photos(Path(arguments.images), 64)
    predictor = vitkit.load(arguments.model)
    answers = [rows[0].index for rows in predictor.predict(pictures, top=1)]
    os.sched_setaffinity(0, {1})
    with started(arguments.peer, arguments, pictures[0]) as (port, session):
        requests = [request(data, port) for data in pictures]
        before = memory(session)
        seen = asyncio.run(
            ask(port, requests, answers, arguments.rate, arguments.seconds + WARM_UP, arguments.connections)
        )
        after = memory(session)
        metrics = ""
        if arguments.peer == "ours":
            with socket.create_connection(("127.0.0.1", port)) as opened:
                opened.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
                while part := opened.recv(65536):
                    metrics += part.decode()
    bound = None
    if arguments.peer == "ours":
        from vitkit.serving.settings import parse_seconds

        bound = parse_seconds(arguments.latency, "latency")
    row = {
        "peer": arguments.peer,
        "model": arguments.name or arguments.model,
        "latency": bound,
        "rate": arguments.rate,
        "seconds": arguments.seconds,
        "connections": arguments.connections,
        "images_per_second": len(seen.waits) / arguments.seconds,
        "p50": quantile(seen.waits, 0.5),
        "p99": quantile(seen.waits, 0.99),
        "p99.9": quantile(seen.waits, 0.999),
        "slowest": max(seen.waits, default=None),
        "over_the_bound": None if bound is None else sum(wait > bound for wait in seen.waits),
        "refused_p99": quantile(seen.refusals, 0.99),
        "memory_before": before,
        "memory_after": after,
        **{name: value for name, value in asdict(seen).items() if name not in ("waits", "refusals")},
        **machine(),
    }
    if metrics:
        row["late"] = int(re.findall(r'outcome="late"\} (\d+)', metrics)[0])
        sizes = re.findall(r'vit_batch_images_bucket\{le="(\S+)"\} (\d+)', metrics)
        row["batches"] = {size: int(count) for size, count in sizes}
    print(json.dumps(row, indent=1))
    store(f"{row['model']}, {arguments.peer}, {arguments.rate:g}/s", row)


def bench(arguments: argparse.Namespace) -> None:
    """Measure a model alone on core 0, with one thread, as servers have it."""
    words = [
        sys.executable,
        "-m",
        "vitkit",
        "bench",
        arguments.model,
        "--threads",
        "1",
        "--device",
        "cpu",
        "--json",
    ]
    words += ["--batch-size", ",".join(str(size) for size in arguments.batch_sizes), "--no-memory"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        ["taskset", "-c", "0", *words], env=environment, stdout=subprocess.PIPE, check=True
    )
    name = arguments.name or arguments.model
    for row in json.loads(answer.stdout)["rows"]:
        size, rate = row["infer_batch_size"], row["infer_samples_per_sec"]
        print(f"{name}, batch {size}: {rate:.1f} images/s")
        store(
            f"{name}, alone, batch {size}",
            {"model": name, "batch": size, "images_per_second": rate, **machine()},
        )


def show(_: argparse.Namespace) -> None:
    """Print the tables."""
    document = json.loads(RESULTS.read_text())
    for model in dict.fromkeys(row["model"] for row in document.values()):
        rows = [row for row in document.values() if row["model"] == model]
        alone = {row["batch"]: row["images_per_second"] for row in rows if "batch" in row}
        print(
            f"\n{model} alone: "
            + ", ".join(f"{rate:.1f} images/s in batches of {size}" for size, rate in alone.items())
        )
        print(
            "\n| server | requests/s | images/s | p50 ms | p99 ms | p99.9 ms | slowest ms | over the bound | refused | "
            "wrong | lost | memory MB |\n|---|" + "---:|" * 11
        )
        for row in rows:
            if "batch" in row:
                continue
            times = " | ".join(f"{1000 * row[name]:.0f}" for name in ("p50", "p99", "p99.9", "slowest"))
            over = "" if row["over_the_bound"] is None else row["over_the_bound"]
            refused = row["sent"] - row["lost"] - row["statuses"].get("200", 0)
            grown = f"{row['memory_before'] / 1e6:.0f} to {row['memory_after'] / 1e6:.0f}"
            bound = f", {1000 * row['latency']:.0f} ms" if row["latency"] else ""
            print(
                f"| {row['peer']}{bound} | {row['rate']:g} | {row['images_per_second']:.1f} | {times} | {over} | {refused} | "
                f"{row['wrong']} | {row['lost']} | {grown} |"
            )


def machine() -> dict[str, Any]:
    versions = {}
    for name in ("torch", "openvino", "fastapi", "uvicorn", "litserve", "ray"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {"cpu": cpu_name(), "versions": versions, "date": datetime.date.today().isoformat()}


def store(key: str, row: dict[str, Any]) -> None:
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    document[key] = row
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("peer", choices=PEERS)
    running.add_argument("--model", required=True)
    running.add_argument("--name", help="of the model in the tables")
    running.add_argument("--images", required=True, help="a folder of photos")
    running.add_argument("--latency", default="100ms")
    running.add_argument("--batch-size", type=int, default=8)
    running.add_argument("--rate", type=float, required=True, help="requests per second")
    running.add_argument("--seconds", type=float, default=60)
    running.add_argument("--connections", type=int, default=64)
    running.set_defaults(do=run)
    alone = verbs.add_parser("bench")
    alone.add_argument("--model", required=True)
    alone.add_argument("--name", help="of the model in the tables")
    alone.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 8])
    alone.set_defaults(do=bench)
    verbs.add_parser("show").set_defaults(do=show)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are ended too
    arguments.do(arguments)


if __name__ == "__main__":
    main()
