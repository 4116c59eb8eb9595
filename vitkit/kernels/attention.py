"""Attention for short sequences on a GPU: packed qkv in, packed gradient out, with cheap dropout."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitkit.kernels import runs_triton

MAX_TOKENS = 512
SIZES = (32, 64)


class Tiles(NamedTuple):
    """Tile sizes of a kernel: a program holds `block` tokens and loops over all tokens, `step` at a time."""

    block: int
    step: int
    warps: int
    stages: int
    registers: int | None = None  # per thread, at most


# With at most 128 registers, 16 warps fit on a multiprocessor: half of them do the softmax while half multiply.
FORWARD = Tiles(block=128, step=64, warps=8, stages=3, registers=128)
# One block holds all keys of a usual image. Their gradients fill half of the registers, and d_q is written once.
# Tested on an H200 only. With block 64 or 128, step 32, 4 warps and 2 stages, 256 tokens gave wrong results there
# (torch 2.11's Triton).
BACKWARD = Tiles(block=256, step=32, warps=8, stages=3)


def can_use(qkv: Tensor) -> bool:
    """Return whether `short_attention` supports this packed qkv."""
    return (
        qkv.dtype in (torch.bfloat16, torch.float16)
        and qkv.shape[1] <= MAX_TOKENS
        and qkv.shape[4] in SIZES
        and runs_triton(qkv)
    )


def short_attention(qkv: Tensor, dropout: float = 0.0) -> Tensor:
    """Return softmax(q k^T / sqrt(size)) v, with dropout on the weights and heads concatenated.

    `qkv` is (batch, tokens, 3, heads, size); the result is (batch, tokens, heads * size). Dropout draws one
    number per call from the device's default generator; the kernels derive the mask from it.
    """
    seed = torch.randint(2**62, (1,), device=qkv.device) if dropout > 0.0 else None
    return _forward(qkv.contiguous(), seed, dropout)[0]


def keep_mask(seed: Tensor, num_heads: int, tokens: int, dropout: float) -> Tensor:
    """Return the weights that dropout keeps, (heads of all images, queries, keys), as the kernels compute them."""
    low, high = seed & 0xFFFFFFFF, seed >> 32
    base_q = _scramble(torch.arange(num_heads, device=seed.device) ^ _scramble(low))
    base_k = _scramble(base_q ^ _scramble(high))
    drawn = _token_codes(base_q, tokens)[:, :, None] * _token_codes(base_k, tokens)[:, None, :]
    return drawn & 0xFFFFFFFF >= _threshold(dropout)


# These mirror functions of attention_triton; int64 with a mask stands in for uint32.
def _scramble(x: Tensor) -> Tensor:
    x = ((x ^ x >> 16) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ x >> 15) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ x >> 16


def _token_codes(base: Tensor, tokens: int) -> Tensor:
    x = (torch.arange(tokens, device=base.device) * 0x9E3779B1 + base[:, None]) & 0xFFFFFFFF
    return x ^ x >> 15 | 1


def _threshold(dropout: float) -> int:
    return min(round(dropout * 2**32), 2**32 - 1)


@torch.library.custom_op("vitkit::short_attention", mutates_args=())
def _forward(qkv: Tensor, seed: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """Return the output and the base-2 log-sum-exp of the logits, (batch, heads, tokens)."""
    if not is_right(qkv, dropout):
        out, lse = plain_forward(qkv.float(), seed, dropout)
        return out.to(qkv.dtype), lse
    return _run_forward(qkv, seed, dropout)


@_forward.register_fake
def _forward_shapes(qkv: Tensor, seed: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    batch, tokens, _, heads, size = qkv.shape
    lse = qkv.new_empty(batch, heads, tokens, dtype=torch.float32)
    return qkv.new_empty(batch, tokens, heads * size), lse


@torch.library.custom_op("vitkit::short_attention_backward", mutates_args=())
def _backward(
    d_out: Tensor, qkv: Tensor, seed: Tensor | None, out: Tensor, lse: Tensor, dropout: float
) -> Tensor:
    """Return the gradient of the packed qkv."""
    if not is_right(qkv, dropout):
        return plain_backward(d_out.float(), qkv.float(), seed, dropout).to(qkv.dtype)
    return _run_backward(d_out, qkv, seed, out, lse, dropout)


@_backward.register_fake
def _backward_shape(
    d_out: Tensor, qkv: Tensor, seed: Tensor | None, out: Tensor, lse: Tensor, dropout: float
) -> Tensor:
    return torch.empty_like(qkv)


def _keep_for_backward(
    ctx: Any, inputs: tuple[Tensor, Tensor | None, float], output: tuple[Tensor, Tensor]
) -> None:
    qkv, seed, ctx.dropout = inputs
    ctx.save_for_backward(qkv, seed, *output)


def _differentiate(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Tensor, None, None]:
    return _backward(d_out, *ctx.saved_tensors, ctx.dropout), None, None


_forward.register_autograd(_differentiate, setup_context=_keep_for_backward)


def is_right(qkv: Tensor, dropout: float) -> bool:
    """Return whether the kernels agree with plain PyTorch for this shape: some compiled ones are wrong on some GPUs."""
    _, tokens, _, heads, size = qkv.shape
    return not qkv.is_cuda or _compare(tokens, heads, size, dropout, qkv.dtype, qkv.device)


@functools.cache
def _compare(
    tokens: int, heads: int, size: int, dropout: float, dtype: torch.dtype, device: torch.device
) -> bool:
    own = torch.Generator(device).manual_seed(0)  # so the comparison doesn't change training's random numbers
    qkv = torch.randn(2, tokens, 3, heads, size, generator=own, device=device).to(dtype)
    d_out = torch.randn(2, tokens, heads * size, generator=own, device=device).to(dtype)
    seed = torch.randint(2**62, (1,), generator=own, device=device) if dropout > 0.0 else None
    out, lse = _run_forward(qkv, seed, dropout)
    d_qkv = _run_backward(d_out, qkv, seed, out, lse, dropout)
    expected, _ = plain_forward(qkv.double(), seed, dropout)
    d_expected = plain_backward(d_out.double(), qkv.double(), seed, dropout)
    right = all(
        (found.double() - wanted).abs().max() <= 0.05 * wanted.abs().max()  # rounding errors reach 0.01
        for found, wanted in ((out, expected), (d_qkv, d_expected))
    )
    if not right:
        shape = f"{tokens} tokens, {heads} heads of {size}, dropout {dropout:g}"
        warnings.warn(
            f"the attention kernel gives wrong results on this GPU ({shape}); using plain PyTorch instead, which is slower",
            stacklevel=2,
        )
    return right


def plain_forward(qkv: Tensor, seed: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """Return the same as `_forward`, in the precision of qkv."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (batch, heads, tokens, size)
    logits = q @ k.transpose(-2, -1) / math.sqrt(qkv.shape[4])
    weights = logits.softmax(dim=-1) * _kept(qkv, seed, dropout)
    lse = logits.logsumexp(dim=-1) * math.log2(math.e)
    return (weights @ v).transpose(1, 2).flatten(2), lse


def plain_backward(d_out: Tensor, qkv: Tensor, seed: Tensor | None, dropout: float) -> Tensor:
    """Return the same as `_backward`, in the precision of qkv."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    d_y = d_out.unflatten(2, qkv.shape[3:]).transpose(1, 2)  # shaped like q
    scale, kept = 1.0 / math.sqrt(qkv.shape[4]), _kept(qkv, seed, dropout)
    p = (q @ k.transpose(-2, -1) * scale).softmax(dim=-1)
    d_p = d_y @ v.transpose(-2, -1) * kept
    # The gradient of the softmax, p * (d_p - sum(d_p * p)), times the scale of the logits.
    d_logits = p * (d_p - (d_p * p).sum(dim=-1, keepdim=True)) * scale
    d_q, d_k, d_v = d_logits @ k, d_logits.transpose(-2, -1) @ q, (p * kept).transpose(-2, -1) @ d_y
    return torch.stack([d_q, d_k, d_v]).permute(1, 3, 0, 2, 4).contiguous()


def _kept(qkv: Tensor, seed: Tensor | None, dropout: float) -> Tensor | float:
    """Return the factors by which dropout multiplies the weights, (batch, heads, queries, keys)."""
    if seed is None:
        return 1.0
    batch, tokens, _, heads, _ = qkv.shape
    mask = keep_mask(seed, batch * heads, tokens, dropout)
    return mask.reshape(batch, heads, tokens, tokens).to(qkv.dtype) / (1.0 - dropout)


def _run_forward(qkv: Tensor, seed: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    from vitkit.kernels import attention_triton as kernels

    out, lse = _forward_shapes(qkv, seed, dropout)
    _launch(kernels.forward, FORWARD, dropout, qkv, seed, out, lse, 0.0)
    return out, lse


def _run_backward(
    d_out: Tensor, qkv: Tensor, seed: Tensor | None, out: Tensor, lse: Tensor, dropout: float
) -> Tensor:
    from vitkit.kernels import attention_triton as kernels

    tiles = _backward_tiles(qkv)
    d_qkv = torch.empty_like(qkv)
    delta = partial = None
    if qkv.shape[1] > tiles.block:
        delta, partial = torch.empty_like(lse), lse.new_empty(*lse.shape, qkv.shape[4])
    tensors = (seed, out, lse, d_out.contiguous(), d_qkv, delta, partial)
    _launch(kernels.backward, tiles, dropout, qkv, *tensors, whole_heads=True)
    return d_qkv


def _backward_tiles(qkv: Tensor) -> Tiles:
    """Return BACKWARD, or half its block on GPUs with less shared memory per program than Hopper."""
    if qkv.is_cuda and torch.cuda.get_device_properties(qkv.device).shared_memory_per_block_optin < 200_000:
        return BACKWARD._replace(block=BACKWARD.block // 2)
    return BACKWARD


def _launch(
    kernel: Any,
    tiles: Tiles,
    dropout: float,
    qkv: Tensor,
    *arguments: Tensor | float | None,
    whole_heads: bool = False,
) -> None:
    """Run a kernel with one program per head, or per block of tokens of each head."""
    batch, tokens, _, heads, size = qkv.shape
    # A half-empty block would multiply zeros: halve it, and the warps that hold it.
    while tokens <= tiles.block // 2 and tiles.block > 64:
        tiles = tiles._replace(block=tiles.block // 2, warps=max(tiles.warps // 2, 4))
    if (
        whole_heads and tokens <= tiles.step
    ):  # one step with 4 warps is wrong on an H200 (torch 2.11's Triton)
        tiles = tiles._replace(warps=8)
    blocks = 1 if whole_heads else -(-tokens // tiles.block)
    with torch.cuda.device_of(qkv):
        kernel[(blocks * batch * heads,)](
            qkv,
            *arguments,
            TOKENS=tokens,
            HEADS=heads,
            SIZE=size,
            LOG_SCALE=math.log2(math.e) / math.sqrt(size),
            THRESHOLD=_threshold(dropout),
            KEPT=1.0 - dropout,
            BLOCK=tiles.block,
            STEP=tiles.step,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            maxnreg=tiles.registers,
            enable_fp_fusion=True,
        )
