"""The Triton kernels of short attention: a program reads one head straight out of the packed qkv.

`qkv` and `d_qkv` are (batch, tokens, 3, heads, size), `out` and `d_out` (batch, tokens, heads, size), `lse` and `delta`
(batch, heads, tokens) in float32. LOG_SCALE is log2(e) / sqrt(size), so that weights are powers of two; THRESHOLD / 2**32
is the dropout rate and KEPT what it leaves. A program owns BLOCK tokens and passes over all of its head's, STEP at a time.
`zero` is 0.0 at run time: were it a constant, the compiler would drop weights after packing two in a register, unpack
and pack again.
"""

from __future__ import annotations

import triton
import triton.language as tl

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def scramble(x: tl.tensor) -> tl.tensor:
    """Mix the bits of 32-bit numbers well (constants: lowbias32 of C. Wellons' hash prospector)."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def token_codes(base: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """Return one odd number per token. Three instructions, for each tile computes its own.

    The product of a query's and a key's code, modulo 2**32, is the random number of their weight.
    """
    x = tokens.to(tl.uint32) * 0x9E3779B1 + base
    return (x ^ (x >> 15)) | 1


@triton.jit
def draw_bases(seed: tl.tensor, head: tl.tensor, THRESHOLD: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return what the codes of a head's queries and of its keys start from."""
    base_q = head.to(tl.uint32)
    base_k = base_q
    if THRESHOLD > 0:
        state = tl.load(seed)
        base_q = scramble(base_q ^ scramble(state.to(tl.uint32)))
        base_k = scramble(base_q ^ scramble((state >> 32).to(tl.uint32)))
    return base_q, base_k


@triton.jit
def load(
    start: tl.tensor,
    tokens: tl.tensor,
    STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Load (tokens, size) of one head, 0 beyond the last token."""
    pointers = start + tokens[:, None] * STRIDE + tl.arange(0, SIZE)[None, :]
    if TOKENS % BLOCK == 0:
        x = tl.load(pointers)
    else:
        x = tl.load(pointers, mask=tokens[:, None] < TOKENS, other=0.0)
    return x


@triton.jit
def store(
    start: tl.tensor,
    tokens: tl.tensor,
    x: tl.tensor,
    STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Store (tokens, size) of one head."""
    pointers = start + tokens[:, None] * STRIDE + tl.arange(0, SIZE)[None, :]
    x = x.to(start.dtype.element_ty)
    if TOKENS % BLOCK == 0:
        tl.store(pointers, x)
    else:
        tl.store(pointers, x, mask=tokens[:, None] < TOKENS)


@triton.jit
def forward(
    qkv: tl.tensor,
    seed: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    zero: tl.tensor,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LOG_SCALE: tl.constexpr,
    THRESHOLD: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """Attend from one block of a head's queries to all its keys."""
    WIDTH: tl.constexpr = HEADS * SIZE
    BLOCKS: tl.constexpr = (TOKENS + BLOCK - 1) // BLOCK
    head = tl.program_id(0) // BLOCKS
    image = (head // HEADS).to(tl.int64) * TOKENS
    within = head % HEADS * SIZE
    qkv += image * 3 * WIDTH + within
    queries = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    base_q, base_k = draw_bases(seed, head, THRESHOLD)
    codes_q = token_codes(base_q, queries)
    q = load(qkv, queries, 3 * WIDTH, SIZE, TOKENS, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    y = tl.zeros((BLOCK, SIZE), tl.float32)
    for start in range(0, TOKENS, STEP):
        keys = start + tl.arange(0, STEP)
        k = load(qkv + WIDTH, keys, 3 * WIDTH, SIZE, TOKENS, STEP)
        v = load(qkv + 2 * WIDTH, keys, 3 * WIDTH, SIZE, TOKENS, STEP)
        logits = tl.dot(q, tl.trans(k))
        if TOKENS % STEP != 0:
            logits = tl.where(keys[None, :] < TOKENS, logits, float("-inf"))
        new_top = tl.maximum(top, tl.max(logits, 1) * LOG_SCALE)
        p = tl.exp2(logits * LOG_SCALE - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        if THRESHOLD > 0:
            drawn = codes_q[:, None] * token_codes(base_k, keys)[None, :]
            p = tl.where(drawn >= THRESHOLD, p, zero)
        y = tl.dot(p.to(v.dtype), v, y * shrink[:, None])
        top = new_top
    store(out + image * WIDTH + within, queries, y / (total * KEPT)[:, None], WIDTH, SIZE, TOKENS, BLOCK)
    tl.store(lse + head * TOKENS + queries, top + tl.log2(total), mask=queries < TOKENS)


@triton.jit
def backward_queries(
    qkv: tl.tensor,
    seed: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    d_out: tl.tensor,
    d_qkv: tl.tensor,
    delta: tl.tensor,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LOG_SCALE: tl.constexpr,
    THRESHOLD: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """Write the gradient of one block of a head's queries, and `delta`, which `backward_keys` reads."""
    WIDTH: tl.constexpr = HEADS * SIZE
    BLOCKS: tl.constexpr = (TOKENS + BLOCK - 1) // BLOCK
    head = tl.program_id(0) // BLOCKS
    image = (head // HEADS).to(tl.int64) * TOKENS
    within = head % HEADS * SIZE
    qkv += image * 3 * WIDTH + within
    queries = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    base_q, base_k = draw_bases(seed, head, THRESHOLD)
    codes_q = token_codes(base_q, queries)
    q = load(qkv, queries, 3 * WIDTH, SIZE, TOKENS, BLOCK)
    d_y = load(d_out + image * WIDTH + within, queries, WIDTH, SIZE, TOKENS, BLOCK)
    y = load(out + image * WIDTH + within, queries, WIDTH, SIZE, TOKENS, BLOCK)
    # KEPT is taken out of the gradients of all weights here and put back once, at the end.
    inner = tl.sum(d_y.to(tl.float32) * y.to(tl.float32), 1) * KEPT
    tl.store(delta + head * TOKENS + queries, inner, mask=queries < TOKENS)
    log_sum = tl.load(lse + head * TOKENS + queries, mask=queries < TOKENS, other=float("inf"))
    d_q = tl.zeros((BLOCK, SIZE), tl.float32)
    for start in range(0, TOKENS, STEP):
        keys = start + tl.arange(0, STEP)
        k = load(qkv + WIDTH, keys, 3 * WIDTH, SIZE, TOKENS, STEP)
        v = load(qkv + 2 * WIDTH, keys, 3 * WIDTH, SIZE, TOKENS, STEP)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * LOG_SCALE - log_sum[:, None])
        if TOKENS % STEP != 0:
            p = tl.where(keys[None, :] < TOKENS, p, 0.0)
        d_p = tl.dot(d_y, tl.trans(v))
        if THRESHOLD > 0:
            drawn = codes_q[:, None] * token_codes(base_k, keys)[None, :]
            d_p = tl.where(drawn >= THRESHOLD, d_p, 0.0)
        d_q = tl.dot((p * (d_p - inner[:, None])).to(k.dtype), k, d_q)
    d_q *= LOG_SCALE * LN_2 / KEPT
    store(d_qkv + image * 3 * WIDTH + within, queries, d_q, 3 * WIDTH, SIZE, TOKENS, BLOCK)


@triton.jit
def backward_keys(
    qkv: tl.tensor,
    seed: tl.tensor,
    lse: tl.tensor,
    d_out: tl.tensor,
    d_qkv: tl.tensor,
    delta: tl.tensor,
    zero: tl.tensor,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LOG_SCALE: tl.constexpr,
    THRESHOLD: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """Write the gradients of one block of a head's keys and values."""
    WIDTH: tl.constexpr = HEADS * SIZE
    BLOCKS: tl.constexpr = (TOKENS + BLOCK - 1) // BLOCK
    head = tl.program_id(0) // BLOCKS
    image = (head // HEADS).to(tl.int64) * TOKENS
    within = head % HEADS * SIZE
    qkv += image * 3 * WIDTH + within
    d_qkv += image * 3 * WIDTH + within
    d_out += image * WIDTH + within
    keys = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    base_q, base_k = draw_bases(seed, head, THRESHOLD)
    codes_k = token_codes(base_k, keys)
    k = load(qkv + WIDTH, keys, 3 * WIDTH, SIZE, TOKENS, BLOCK)
    v = load(qkv + 2 * WIDTH, keys, 3 * WIDTH, SIZE, TOKENS, BLOCK)
    d_k = tl.zeros((BLOCK, SIZE), tl.float32)
    d_v = tl.zeros((BLOCK, SIZE), tl.float32)
    for start in range(0, TOKENS, STEP):
        queries = start + tl.arange(0, STEP)
        q = load(qkv, queries, 3 * WIDTH, SIZE, TOKENS, STEP)
        d_y = load(d_out, queries, WIDTH, SIZE, TOKENS, STEP)
        log_sum = tl.load(lse + head * TOKENS + queries, mask=queries < TOKENS, other=float("inf"))
        inner = tl.load(delta + head * TOKENS + queries, mask=queries < TOKENS, other=0.0)
        # Tiles stand as (keys, queries): so the next products take them from registers.
        p = tl.exp2(tl.dot(k, tl.trans(q)) * LOG_SCALE - log_sum[None, :])
        d_p = tl.dot(v, tl.trans(d_y))
        dropped = p
        if THRESHOLD > 0:
            drawn = codes_k[:, None] * token_codes(base_q, queries)[None, :]
            dropped = tl.where(drawn >= THRESHOLD, p, zero)
            d_p = tl.where(drawn >= THRESHOLD, d_p, 0.0)
        d_v = tl.dot(dropped.to(v.dtype), d_y, d_v)
        d_k = tl.dot((p * (d_p - inner[None, :])).to(k.dtype), q, d_k)
    d_k *= LOG_SCALE * LN_2 / KEPT
    store(d_qkv + WIDTH, keys, d_k, 3 * WIDTH, SIZE, TOKENS, BLOCK)
    store(d_qkv + 2 * WIDTH, keys, d_v / KEPT, 3 * WIDTH, SIZE, TOKENS, BLOCK)
