"""The Triton kernels of short attention: a program reads one head directly from the packed qkv.

`qkv` and `d_qkv` are (batch, tokens, 3, heads, size), `out` and `d_out` (batch, tokens, heads, size). `lse` and `delta`
(batch, heads, tokens) and `partial` (batch, heads, tokens, size) are in float32. LOG_SCALE is log2(e) / sqrt(size), since
softmax is computed with powers of two. THRESHOLD / 2**32 is the dropout rate; KEPT is 1 minus the rate. A program holds
BLOCK tokens and loops over all tokens of its head, STEP at a time.
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
    """Return one odd number per token, in only three instructions, since every tile computes it.

    The product of a query's and a key's code, modulo 2**32, is the random number for their attention weight.
    """
    x = tokens.to(tl.uint32) * 0x9E3779B1 + base
    return (x ^ (x >> 15)) | 1


@triton.jit
def draw_bases(seed: tl.tensor, head: tl.tensor, THRESHOLD: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return the base of the codes of a head's queries, and that of its keys."""
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
def load_row(start: tl.tensor, tokens: tl.tensor, TOKENS: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """Load one number per token, 0 beyond the last."""
    if TOKENS % BLOCK == 0:
        x = tl.load(start + tokens)
    else:
        x = tl.load(start + tokens, mask=tokens < TOKENS, other=0.0)
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
    """Attend from one block of a head's queries to all its keys.

    `zero` is 0.0, passed at run time. With a constant, the compiler would pack two weights into a register first, then
    unpack them for dropout and pack them again.
    """
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
        # Softmax in one pass over the keys (Milakov and Gimelshein 2018, as in FlashAttention): a larger logit rescales the
        # sums so far.
        new_top = tl.maximum(top, tl.max(logits, 1) * LOG_SCALE)
        p = tl.exp2(logits * LOG_SCALE - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        # Before dropout: the softmax's denominator includes dropped weights.
        total = total * shrink + tl.sum(p, 1)
        if THRESHOLD > 0:
            drawn = codes_q[:, None] * token_codes(base_k, keys)[None, :]
            p = tl.where(drawn >= THRESHOLD, p, zero)
        y = tl.dot(p.to(v.dtype), v, y * shrink[:, None])
        top = new_top
    # Inverted dropout divides by KEPT: here once per query, not once per weight.
    store(out + image * WIDTH + within, queries, y / (total * KEPT)[:, None], WIDTH, SIZE, TOKENS, BLOCK)
    tl.store(lse + head * TOKENS + queries, top + tl.log2(total), mask=queries < TOKENS)


@triton.jit
def backward(
    qkv: tl.tensor,
    seed: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    d_out: tl.tensor,
    d_qkv: tl.tensor,
    delta: tl.tensor,
    partial: tl.tensor,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LOG_SCALE: tl.constexpr,
    THRESHOLD: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """Write the gradients of one head, one block of keys at a time.

    With several blocks, `delta` and `partial` carry the queries' intermediate results from block to block.
    """
    WIDTH: tl.constexpr = HEADS * SIZE
    BLOCKS: tl.constexpr = (TOKENS + BLOCK - 1) // BLOCK
    head = tl.program_id(0)
    image = (head // HEADS).to(tl.int64) * TOKENS
    within = head % HEADS * SIZE
    qkv += image * 3 * WIDTH + within
    d_qkv += image * 3 * WIDTH + within
    out += image * WIDTH + within
    d_out += image * WIDTH + within
    lse += head * TOKENS
    if BLOCKS > 1:
        delta += head * TOKENS
        partial += head.to(tl.int64) * TOKENS * SIZE
    base_q, base_k = draw_bases(seed, head, THRESHOLD)
    for block in tl.static_range(BLOCKS):
        keys = block * BLOCK + tl.arange(0, BLOCK)
        codes_k = token_codes(base_k, keys)
        k = load(qkv + WIDTH, keys, 3 * WIDTH, SIZE, TOKENS, BLOCK)
        v = load(qkv + 2 * WIDTH, keys, 3 * WIDTH, SIZE, TOKENS, BLOCK)
        d_k = tl.zeros((BLOCK, SIZE), tl.float32)
        d_v = tl.zeros((BLOCK, SIZE), tl.float32)
        for start in range(0, TOKENS, STEP):
            queries = start + tl.arange(0, STEP)
            q = load(qkv, queries, 3 * WIDTH, SIZE, TOKENS, STEP)
            d_y = load(d_out, queries, WIDTH, SIZE, TOKENS, STEP)
            log_sum = load_row(lse, queries, TOKENS, STEP)
            # Gradients of the weights are multiplied by KEPT here and divided by it once, at the end.
            if block == 0:
                y = load(out, queries, WIDTH, SIZE, TOKENS, STEP)
                # FlashAttention's shortcut: sum(d_p * p) over the keys is d_y . y, one number per query.
                inner = tl.sum(d_y.to(tl.float32) * y.to(tl.float32), 1) * KEPT
                if BLOCKS > 1:
                    tl.store(delta + queries, inner, mask=queries < TOKENS)
            else:
                inner = load_row(delta, queries, TOKENS, STEP)
            # Tiles are (keys, queries), so the products for d_v and d_k read them from registers.
            logits = tl.dot(k, tl.trans(q))
            d_p = tl.dot(v, tl.trans(d_y))
            # Recompute the weights from the saved log-sum-exp: memory is linear in the number of tokens, not quadratic.
            p = tl.exp2(logits * LOG_SCALE - log_sum[None, :])
            if (block + 1) * BLOCK > TOKENS:
                p = tl.where(keys[:, None] < TOKENS, p, 0.0)
            dropped = p
            if THRESHOLD > 0:
                drawn = codes_k[:, None] * token_codes(base_q, queries)[None, :]
                dropped = tl.where(drawn >= THRESHOLD, p, 0.0)
            d_logits = (dropped * d_p - p * inner[None, :]).to(k.dtype)
            # Only after both tiles are computed: a product in flight occupies its registers.
            d_v = tl.dot(dropped.to(v.dtype), d_y, d_v)
            d_k = tl.dot(d_logits, q, d_k)
            # Hopper multiplies 64 rows at a time. With fewer queries, transpose: the rows are then the head's channels.
            d_q = tl.trans(tl.dot(tl.trans(k), d_logits)) if STEP < 64 else tl.dot(tl.trans(d_logits), k)
            if block > 0:
                d_q += load(partial, queries, SIZE, SIZE, TOKENS, STEP)
            if block < BLOCKS - 1:
                store(partial, queries, d_q, SIZE, SIZE, TOKENS, STEP)
            else:
                # LOG_SCALE * LN_2 is 1 / sqrt(size), the scale of the logits.
                d_q *= LOG_SCALE * LN_2 / KEPT
                store(d_qkv, queries, d_q, 3 * WIDTH, SIZE, TOKENS, STEP)
        d_k *= LOG_SCALE * LN_2 / KEPT
        store(d_qkv + WIDTH, keys, d_k, 3 * WIDTH, SIZE, TOKENS, BLOCK)
        store(d_qkv + 2 * WIDTH, keys, d_v / KEPT, 3 * WIDTH, SIZE, TOKENS, BLOCK)
        if block < BLOCKS - 1:
            tl.debug_barrier()  # the next block reads what other threads wrote
