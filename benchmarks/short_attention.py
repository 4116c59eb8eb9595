"""Short attention compared with PyTorch's fused kernels, from packed qkv to packed gradient, on one GPU.

Times are microseconds per call inside a CUDA graph, including random numbers. Errors are those of the output and of the
gradient, relative in norm, against float32 with the same mask. The last tables try other tile sizes of the kernels; they
are the basis for the constants in `vitkit/kernels/attention.py`.

    python benchmarks/short_attention.py
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitkit.kernels import attention as ours
from vitkit.kernels.attention import Tiles

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SHAPES = [
    (256, 256, 4, 64),
    (128, 256, 4, 64),
    (256, 197, 12, 64),
    (512, 197, 3, 64),
]  # batch, tokens, heads, size
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
FORWARD = [
    ours.FORWARD,
    Tiles(128, 64, 8, 2, 128),
    Tiles(128, 32, 8, 2, 128),
    Tiles(128, 128, 8, 2),
    Tiles(128, 64, 4, 2),
    Tiles(64, 64, 4, 2, 128),
    Tiles(256, 64, 8, 2),
    Tiles(256, 64, 16, 2, 128),
]
BACKWARD = [
    ours.BACKWARD,
    Tiles(256, 32, 8, 2),
    Tiles(256, 32, 8, 4),
    Tiles(256, 32, 16, 3),
    Tiles(128, 64, 8, 2),
    Tiles(128, 64, 8, 3),
    Tiles(128, 32, 8, 3),
    Tiles(128, 32, 8, 2, 128),
    Tiles(128, 32, 8, 3, 128),
]


def microseconds(call: Callable[[], object], calls: int = 10, rounds: int = 7) -> float:
    """Return the median time of one call in a graph of several."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            call()
    graph.replay()
    times = []
    for _ in range(rounds):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(1e3 * began.elapsed_time(ended) / calls)
    return statistics.median(times)


def fused(qkv: Tensor, dropout: float, backend: SDPBackend) -> Tensor:
    """Return PyTorch's attention for the packed qkv."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).transpose(1, 2).flatten(2)


def inputs(batch: int, tokens: int, heads: int, size: int) -> tuple[Tensor, Tensor]:
    """Return a packed qkv and a gradient of the output."""
    options: dict[str, Any] = dict(device="cuda", dtype=torch.bfloat16)
    qkv = torch.randn(batch, tokens, 3, heads, size, **options).requires_grad_()
    return qkv, torch.randn(batch, tokens, heads * size, **options)


def compare(shape: tuple[int, int, int, int], dropout: float) -> dict[str, dict[str, float]]:
    """Return the times of our kernels and PyTorch's, forward and with backward."""
    qkv, d_out = inputs(*shape)
    peers: dict[str, Callable[[], Tensor]] = {"vitkit": lambda: ours.short_attention(qkv, dropout)}
    for name, backend in BACKENDS.items():
        peers[name] = lambda backend=backend: fused(qkv, dropout, backend)  # type: ignore[misc]
    times = {}
    for name, peer in peers.items():
        try:
            forward = microseconds(peer)
            both = microseconds(lambda peer=peer: torch.autograd.grad(peer(), qkv, d_out))  # type: ignore[misc]
        except RuntimeError as problem:  # a backend that this GPU or build doesn't have
            print(f"{name}: {problem}", file=sys.stderr)
            continue
        times[name] = {"forward": forward, "forward_backward": both}
    line = ", ".join(f"{name} {t['forward']:.0f} / {t['forward_backward']:.0f}" for name, t in times.items())
    print(f"{shape} dropout {dropout}: forward / with backward, us: {line}", file=sys.stderr)
    return times


def errors(shape: tuple[int, int, int, int], dropout: float) -> dict[str, float]:
    """Return the relative errors of the output and gradient, and whether a second run gives the same bits."""
    batch, tokens, heads, size = shape
    qkv, d_out = inputs(*shape)
    runs = []
    for _ in range(2):
        torch.manual_seed(1)
        out = ours.short_attention(qkv, dropout)
        runs.append((out, *torch.autograd.grad(out, qkv, d_out)))
    torch.manual_seed(1)
    seed = torch.randint(2**62, (1,), device="cuda")
    exact = qkv.detach().float().requires_grad_()
    q, k, v = exact.permute(2, 0, 3, 1, 4).unbind(0)
    keep = ours.keep_mask(seed, batch * heads, tokens, dropout).reshape(batch, heads, tokens, tokens)
    weights = (q @ k.transpose(-2, -1) / size**0.5).softmax(-1) * keep / (1.0 - dropout)
    expected = (weights @ v).transpose(1, 2).flatten(2)
    (d_expected,) = torch.autograd.grad(expected, exact, d_out.float())
    result: dict[str, float] = {"same_bits": all(torch.equal(*pair) for pair in zip(*runs, strict=True))}
    result["out"] = ((runs[0][0] - expected).norm() / expected.norm()).item()
    for index, name in enumerate(("d_q", "d_k", "d_v")):
        part = d_expected[:, :, index]
        result[name] = ((runs[0][1][:, :, index] - part).norm() / part.norm()).item()
    print(f"{shape} dropout {dropout}: relative errors {result}", file=sys.stderr)
    return result


def try_tiles(shape: tuple[int, int, int, int], dropout: float) -> dict[str, list[dict[str, Any]]]:
    """Return the time of each kernel with each of its tile sizes."""
    qkv, d_out = inputs(*shape)
    qkv = qkv.detach()
    seed = torch.randint(2**62, (1,), device="cuda")
    out, lse = ours._forward(qkv, seed, dropout)
    table: dict[str, tuple[list[Tiles], Callable[[], object]]] = {
        "forward": (FORWARD, lambda: ours._forward(qkv, seed, dropout)),
        "backward": (BACKWARD, lambda: ours._backward(d_out, qkv, seed, out, lse, dropout)),
    }
    results: dict[str, list[dict[str, Any]]] = {}
    for name, (cuts, call) in table.items():
        results[name], expected = [], call()
        for tiles in cuts:
            setattr(ours, name.upper(), tiles)
            try:
                torch.testing.assert_close(call(), expected, atol=1e-2, rtol=1e-2)
                time = microseconds(call)
            except Exception as problem:  # tiles that don't fit this GPU, or are compiled wrongly
                print(f"{name} {tuple(tiles)}: {problem}", file=sys.stderr)
                continue
            results[name].append({**tiles._asdict(), "microseconds": time})
            print(f"{name} {tuple(tiles)}: {time:.1f} us", file=sys.stderr)
        setattr(ours, name.upper(), cuts[0])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rates = (0.0, 0.1)
    result = {
        "command": "python benchmarks/short_attention.py " + " ".join(sys.argv[1:]),
        "date": datetime.date.today().isoformat(),
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "errors": {
            f"{shape} dropout {rate}": errors(shape, rate)
            for shape in [(16, 256, 4, 64), (16, 197, 12, 64)]
            for rate in rates
        },
        "microseconds": {
            f"{shape} dropout {rate}": compare(shape, rate) for shape in SHAPES for rate in rates
        },
        "tiles": try_tiles(SHAPES[1], 0.1),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "short_attention.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
