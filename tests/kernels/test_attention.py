"""Short attention equals plain attention with the same mask, forward and backward; its mask looks random.

Without a GPU the kernels run in Triton's interpreter: test_interpreter.py.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vitkit.kernels import attention
from vitkit.kernels.attention import BACKWARD, Tiles, can_use, is_right, keep_mask, short_attention

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
compiled = pytest.mark.skipif(INTERPRETED, reason="kernels are interpreted here")


def plain_attention(qkv: Tensor, keep: Tensor, dropout: float) -> Tensor:
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
    weights = weights * keep.reshape(weights.shape) / (1.0 - dropout)
    return (weights @ v).transpose(1, 2).flatten(2)


def random_qkv(batch: int, tokens: int, heads: int, size: int, **options: object) -> tuple[Tensor, Tensor]:
    """Return a packed qkv and a gradient for the output."""
    torch.manual_seed(0)
    qkv = torch.randn(batch, tokens, 3, heads, size).to(**options)
    return qkv.requires_grad_(), torch.randn(batch, tokens, heads * size).to(**options)


def check_against_plain(qkv: Tensor, d_out: Tensor, dropout: float, tolerance: float) -> None:
    """Compare the output and all gradients with float64."""
    batch, tokens, _, heads, _ = qkv.shape
    torch.manual_seed(1)
    out = short_attention(qkv, dropout)
    (d_qkv,) = torch.autograd.grad(out, qkv, d_out)
    torch.manual_seed(1)
    keep = keep_mask(torch.randint(2**62, (1,), device=qkv.device), batch * heads, tokens, dropout)
    exact = qkv.detach().double().requires_grad_()
    expected = plain_attention(exact, keep, dropout)
    (d_expected,) = torch.autograd.grad(expected, exact, d_out.double())
    assert out.dtype == qkv.dtype and d_qkv.shape == qkv.shape and d_qkv.is_contiguous()
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(d_qkv.double(), d_expected, atol=tolerance, rtol=tolerance)


if INTERPRETED:

    @pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5])
    @pytest.mark.parametrize(
        ("tokens", "heads", "size"),
        [
            (1, 2, 32),
            (50, 3, 64),
            (64, 1, 32),
            (65, 2, 64),
            (197, 1, 64),
            (256, 1, 32),
            (300, 1, 64),
            (512, 1, 32),
        ],
    )
    def test_interpreted_equals_plain(tokens: int, heads: int, size: int, dropout: float) -> None:
        batch = 2 if tokens < 100 else 1
        check_against_plain(*random_qkv(batch, tokens, heads, size), dropout, 3e-6)

    @pytest.mark.parametrize("cut", [Tiles(64, 32, 4, 1), Tiles(64, 64, 4, 1)])
    @pytest.mark.parametrize(
        ("tokens", "heads", "size", "dropout"), [(130, 2, 32, 0.1), (192, 1, 64, 0.0), (300, 1, 64, 0.1)]
    )
    def test_interpreted_blocks_of_keys_add_up(
        tokens: int, heads: int, size: int, dropout: float, cut: Tiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attention, "BACKWARD", cut)
        check_against_plain(*random_qkv(1, tokens, heads, size), dropout, 3e-6)

    def test_interpreted_half_precision() -> None:
        check_against_plain(*random_qkv(1, 130, 1, 64, dtype=torch.float16), 0.1, 3e-3)

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the infinities
    @pytest.mark.parametrize("tokens", [50, 300])
    def test_interpreted_extreme_logits(tokens: int) -> None:
        """Far below zero the weights of keys past the end would be infinite, were they not masked."""
        qkv, d_out = random_qkv(1, tokens, 1, 32)
        with torch.no_grad():
            qkv[:, :, 0], qkv[:, :, 1] = 5.0, -5.0
        check_against_plain(qkv, d_out, 0.1, 3e-5)

    def test_interpreted_mask_is_keep_mask() -> None:
        """With equal logits and the identity as values, the output is the mask itself."""
        batch, tokens, heads, dropout = 2, 64, 3, 0.3
        qkv = torch.zeros(batch, tokens, 3, heads, 64)
        qkv[:, :, 2] = torch.eye(tokens)[:, None]
        torch.manual_seed(5)
        kept = (
            short_attention(qkv, dropout).reshape(batch, tokens, heads, tokens).transpose(1, 2).flatten(0, 1)
            > 0
        )
        torch.manual_seed(5)
        assert torch.equal(kept, keep_mask(torch.randint(2**62, (1,)), batch * heads, tokens, dropout))

    def test_interpreted_gradient_is_the_slope() -> None:
        qkv, d_out = random_qkv(1, 5, 1, 32)

        def loss(x: Tensor) -> Tensor:
            torch.manual_seed(1)
            return (short_attention(x, 0.2) * d_out).sum(dtype=torch.float64)

        (d_qkv,) = torch.autograd.grad(loss(qkv), qkv)
        direction = torch.randn_like(qkv)
        step = 1e-2 * direction
        slope = (loss(qkv.detach() + step) - loss(qkv.detach() - step)) / 2e-2
        torch.testing.assert_close((d_qkv * direction).sum(dtype=torch.float64), slope, rtol=1e-3, atol=1e-3)

    def test_interpreted_takes_a_strided_gradient() -> None:
        qkv, _ = random_qkv(1, 8, 1, 32)
        (d_expanded,) = torch.autograd.grad(short_attention(qkv).sum(), qkv)
        (d_contiguous,) = torch.autograd.grad((short_attention(qkv) * torch.ones(1, 8, 32)).sum(), qkv)
        assert torch.equal(d_expanded, d_contiguous)

    @pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf"
    )  # opcheck's own doing
    @pytest.mark.parametrize("dropout", [0.0, 0.1])
    def test_interpreted_op_contract(dropout: float) -> None:
        qkv, _ = random_qkv(1, 6, 2, 32)
        seed = torch.tensor([7]) if dropout else None
        torch.library.opcheck(torch.ops.vitkit.short_attention.default, (qkv, seed, dropout))

    @pytest.fixture
    def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Compare as on a GPU, of which nothing is known yet."""

        def is_right(qkv: Tensor, dropout: float) -> bool:
            _, tokens, _, heads, size = qkv.shape
            return attention._compare(tokens, heads, size, dropout, qkv.dtype, qkv.device)

        attention._compare.cache_clear()
        monkeypatch.setattr(attention, "is_right", is_right)
        yield
        attention._compare.cache_clear()

    @pytest.mark.usefixtures("compared")
    @pytest.mark.parametrize("dropout", [0.0, 0.1])
    def test_interpreted_wrong_kernels_are_found_and_replaced(
        dropout: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = attention._run_backward

        def half_wrong(*arguments: Any) -> Tensor:
            d_qkv = right(*arguments)
            d_qkv[:, 16:, 0] = 0.0
            return d_qkv

        monkeypatch.setattr(attention, "_run_backward", half_wrong)
        qkv, d_out = random_qkv(2, 20, 3, 64)
        with pytest.warns(UserWarning, match="wrong results on this GPU .20 tokens, 3 heads of 64, dropout"):
            check_against_plain(qkv, d_out, dropout, 3e-6)
        check_against_plain(qkv, d_out, dropout, 3e-6)  # told once

    @pytest.mark.usefixtures("compared")
    def test_interpreted_comparing_leaves_no_trace() -> None:
        """Neither in the numbers drawn, nor in what checkpoints of activations save."""
        qkv, d_out = random_qkv(1, 6, 2, 32)
        results = []
        for _ in range(2):  # compared, then known
            torch.manual_seed(3)
            out = checkpoint(short_attention, qkv, 0.4, use_reentrant=False)
            results.append((out, *torch.autograd.grad(out, qkv, d_out)))
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))

    def test_interpreted_compiles() -> None:
        qkv, d_out = random_qkv(1, 6, 2, 32)
        compiled = torch.compile(short_attention, backend="aot_eager", fullgraph=True)
        results = []
        for function in (short_attention, compiled):
            torch.manual_seed(1)
            out = function(qkv, 0.4)
            results.append((out, *torch.autograd.grad(out, qkv, d_out)))
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_plain_pytorch_in_the_place_of_a_wrong_kernel(
    dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "is_right", lambda qkv, dropout: False)
    qkv, d_out = random_qkv(2, 20, 3, 32)
    check_against_plain(qkv, d_out, dropout, 3e-6)
    logits = torch.einsum("bqhs,bkhs->bhqk", qkv[:, :, 0], qkv[:, :, 1]) / 32**0.5
    _, lse = attention._forward(qkv, None, 0.0)
    torch.testing.assert_close(lse, logits.exp().sum(-1).log2())


def test_a_processor_is_refused() -> None:
    assert not can_use(torch.zeros(1, 8, 3, 1, 64, dtype=torch.bfloat16))


def unlike_independence(scores: Tensor) -> float:
    """Return how far normalised sums are from variance 1, in standard errors."""
    return abs(scores.var().item() - 1.0) / (2.0 / scores.numel()) ** 0.5


@pytest.mark.parametrize("dropout", [0.1, 0.5])
@pytest.mark.parametrize("number", [0, 3234567890123456789])
def test_mask_looks_random(number: int, dropout: float) -> None:
    heads, tokens = 24, 256
    keep = keep_mask(torch.tensor([number]), heads, tokens, dropout)
    x = (keep.float() - (1.0 - dropout)) / (dropout * (1.0 - dropout)) ** 0.5  # mean 0, variance 1
    assert abs(x.sum() / x.numel() ** 0.5) < 5.0
    flat = x.flatten(1)
    rises, falls = torch.triu_indices(heads, heads, 1)
    assert ((flat @ flat.T)[rises, falls] / tokens).abs().max() < 5.0
    pairs = torch.triu_indices(tokens, tokens, 1)
    for rows in (x, x.transpose(1, 2)):  # rows, then columns
        assert unlike_independence(rows.sum(2) / tokens**0.5) < 5.0
        products = (rows @ rows.transpose(1, 2))[:, pairs[0], pairs[1]] / tokens**0.5
        assert products.abs().max() < 9.0
        assert products.var() == pytest.approx(1.0, abs=0.03)
        triples = [
            rows[:, :, : -2 * lag] * rows[:, :, lag:-lag] * rows[:, :, 2 * lag :] for lag in range(1, 40)
        ]
        assert max(abs(t.sum().item()) / t.numel() ** 0.5 for t in triples) < 5.0
    rectangles = [
        x[:, :-down, :-right] * x[:, down:, :-right] * x[:, :-down, right:] * x[:, down:, right:]
        for down in (1, 2, 8, 64, 128)
        for right in (1, 2, 8, 64, 128)
    ]
    assert max(abs(r.sum().item()) / r.numel() ** 0.5 for r in rectangles) < 5.0
    power = torch.fft.rfft2(x).abs().square()[:, 1:, 1:-1] / tokens**2
    assert power.max() < 25.0  # an exponential's largest of 800,000 is about 14


def test_masks_of_near_seeds_are_unlike() -> None:
    masks = (
        torch.cat([keep_mask(torch.tensor([n]), 2, 128, 0.5) for n in range(32)]).float().flatten(1) * 2.0
        - 1.0
    )
    first, second = torch.triu_indices(64, 64, 1)
    assert ((masks @ masks.T)[first, second] / 128).abs().max() < 5.0


def test_mask_depends_on_the_head_alone() -> None:
    """A smaller batch or a shorter sequence sees the beginning of the same mask."""
    whole = keep_mask(torch.tensor([9]), 6, 40, 0.2)
    assert torch.equal(whole[:2, :17, :17], keep_mask(torch.tensor([9]), 2, 17, 0.2))


@compiled
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tokens", "size", "dropout"),
    [
        (1, 64, 0.1),
        (17, 64, 0.0),
        (32, 64, 0.1),
        (50, 32, 0.6),
        (65, 64, 0.1),
        (130, 64, 0.1),
        (197, 64, 0.0),
        (256, 64, 0.1),
        (300, 64, 0.1),
        (512, 64, 0.5),
    ],
)
def test_gpu_equals_plain(tokens: int, size: int, dropout: float) -> None:
    qkv, d_out = random_qkv(3, tokens, 2, size, device="cuda", dtype=torch.bfloat16)
    assert can_use(qkv) and is_right(qkv, dropout)
    check_against_plain(qkv, d_out, dropout, 3e-2)


@compiled
@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "size"), [(130, 32), (256, 64), (300, 64), (512, 64)])
def test_gpu_equals_plain_in_the_blocks_of_smaller_gpus(
    tokens: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "BACKWARD", BACKWARD._replace(block=BACKWARD.block // 2))
    qkv, d_out = random_qkv(48, tokens, 4, size, device="cuda", dtype=torch.bfloat16)
    for dropout in (0.0, 0.1):
        check_against_plain(qkv, d_out, dropout, 3e-2)


@compiled
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tokens", "size", "dtype"),
    [(513, 64, torch.bfloat16), (8, 48, torch.bfloat16), (8, 64, torch.float32)],
)
def test_gpu_refuses_what_the_kernels_cannot_read(tokens: int, size: int, dtype: torch.dtype) -> None:
    assert not can_use(torch.zeros(1, tokens, 3, 1, size, dtype=dtype, device="cuda"))


@compiled
@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [197, 512])
def test_gpu_gives_the_same_bits_each_time(tokens: int) -> None:
    qkv, d_out = random_qkv(64, tokens, 4, 64, device="cuda", dtype=torch.bfloat16)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        out = short_attention(qkv, 0.1)
        results.append((out, *torch.autograd.grad(out, qkv, d_out)))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


# PyTorch 2.11 says so of the pool that its own graphs are kept in.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@compiled
@pytest.mark.gpu
def test_gpu_graphs_draw_new_masks() -> None:
    qkv, d_out = random_qkv(2, 256, 4, 64, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(short_attention, mode="reduce-overhead", fullgraph=True)
    outs = []
    for _ in range(5):
        out = compiled(qkv, 0.5)
        (d_qkv,) = torch.autograd.grad(out, qkv, d_out)
        assert d_qkv.isfinite().all()
        outs.append(out.detach().clone())
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(outs))
