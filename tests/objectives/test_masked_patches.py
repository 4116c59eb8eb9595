"""Masked patch prediction: colours by hand, what is corrupted and how, what the loss reads, and that it learns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from vitkit.data.draws import Draw
from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.models import create_model
from vitkit.models.configs import Preprocessing
from vitkit.models.vit import cut_patches
from vitkit.objectives import ObjectiveConfig, build_objective
from vitkit.objectives.masked_patches import MASK, MaskedPatches, color_classes, paint_colors
from vitkit.objectives.patches import paste_patches

SHAPE = {"image_size": 16, "patch": 4, "width": 32, "depth": 2, "heads": 2, "mlp_width": 64}


def objective(target: Any = "mean_color", share: float = 0.5, **settings: Any) -> MaskedPatches:
    torch.manual_seed(0)
    model = create_model("Ti/16", num_classes=0, **{**SHAPE, **settings})
    config = ObjectiveConfig("masked_patches", corrupt_share=share, target=target)
    built = build_objective(config, model, Preprocessing(image_size=model.config.size), False)
    assert isinstance(built, MaskedPatches)
    return built


def batch(built: MaskedPatches, images: torch.Tensor, step: int = 0) -> dict[str, torch.Tensor]:
    positions = step * len(images) + np.arange(len(images))
    return built.prepare({"image": images}, Draw(0, step, positions))


def pixels(count: int = 4, height: int = 16, width: int = 16) -> torch.Tensor:
    shape = (count, 3, height, width)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.manual_seed(1))


def test_mean_colours_by_hand() -> None:
    """ViT, section 4.6 and appendix B.1.2: floor(mean / 32) of each channel, 64 red + 8 green + blue."""
    colors = {(0, 0, 0): 0, (255, 255, 255): 511, (255, 0, 0): 448, (0, 255, 0): 56, (0, 0, 255): 7}
    colors |= {(31, 32, 64): 8 + 2, (33, 100, 200): 64 + 3 * 8 + 6}
    image = torch.cat(
        [torch.tensor(color, dtype=torch.uint8).view(3, 1, 1).expand(3, 4, 4) for color in colors], dim=2
    )
    assert color_classes(image[None], 4, 1)[0, :, 0].tolist() == list(colors.values())
    half = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    half[:, :, :2] = 63  # the mean is 31.5
    assert color_classes(half, 4, 1).item() == 0
    half[:, :, :2] = 64  # 32
    assert color_classes(half, 4, 1).item() == 64 + 8 + 1


def test_colours_of_cells_by_hand() -> None:
    image = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    image[0, 0, 0, 0] = 128  # red: a quarter of the first cell
    image[0, 2, 2:4, 6:8] = 255  # blue: all of the last cell in the second row
    expected = torch.zeros(16, dtype=torch.long)
    expected[0], expected[7] = 64, 7
    assert torch.equal(color_classes(image, 8, 4)[0, 0], expected)


def test_a_cell_that_cuts_pixels_weighs_them_by_area() -> None:
    """Six pixels in four cells: the first cell is the first pixel and half of the second."""
    image = torch.zeros(1, 3, 6, 6, dtype=torch.uint8)
    image[0, 1, :, 0] = 47
    assert color_classes(image, 6, 4)[0, 0].tolist() == [0] * 16  # 47 / 1.5 is below 32
    image[0, 1, :, 0] = 48
    assert color_classes(image, 6, 4)[0, 0].tolist() == [8, 0, 0, 0] * 4


@given(st.integers(1, 9), st.sampled_from([1, 4]), st.integers(0, 2**31))
def test_cells_are_means_over_area(patch: int, cells: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    image = generator.integers(0, 256, (3, patch, patch))
    edges = np.arange(cells + 1) * patch / cells
    places = np.arange(patch)
    shares = np.minimum(places + 1, edges[1:, None]) - np.maximum(places, edges[:-1, None])
    shares = shares.clip(0) * cells / patch  # (cells, pixels) of an axis
    levels = np.floor(shares @ image @ shares.T / 32 + 1e-9).astype(int)
    expected = (64 * levels[0] + 8 * levels[1] + levels[2]).flatten()
    images = torch.from_numpy(image[None].astype(np.uint8))
    assert color_classes(images, patch, cells)[0, 0].tolist() == expected.tolist()


@given(st.integers(0, 2**31), st.sampled_from([(4, 1), (4, 4), (8, 4), (16, 1)]))
def test_painted_colours_have_their_class(seed: int, shape: tuple[int, int]) -> None:
    patch, cells = shape
    colors = torch.randint(512, (2, 3, cells**2), generator=torch.manual_seed(seed))
    painted = paint_colors(colors, 3, patch, cells).reshape(6, 3, patch, patch)
    assert torch.equal(color_classes(painted, patch, cells).flatten(), colors.flatten())


@given(st.integers(0, 2**40), st.integers(0, 1000), st.sampled_from([0.15, 0.5, 0.9]))
def test_what_is_corrupted(seed: int, step: int, share: float) -> None:
    built = objective(share=share)
    found = built.prepare({"image": pixels(8)}, Draw(seed, step, np.arange(8) + 8 * step))
    corrupted, source = found["corrupted"], found["source"]
    assert corrupted.shape == (8, round(16 * share))
    for row in range(8):
        places = set(corrupted[row].tolist())
        assert len(places) == round(16 * share)
        assert all(source[row, place] == place for place in set(range(16)) - places)
    assert int(source.min()) >= MASK and int(source.max()) < 16
    # The same choices in parts, as ranks and micro-batches make them.
    half = built.prepare({"image": pixels(4)}, Draw(seed, step, np.arange(4, 8) + 8 * step))
    assert torch.equal(half["source"], source[4:]) and torch.equal(half["corrupted"], corrupted[4:])


def test_shares_of_corruption() -> None:
    """ViT, section 4.6 and appendix B.1.2: 80% mask, 10% another, 10% kept, within five binomial deviations; others are any others."""
    built = objective(image_size=32)
    images = torch.zeros(1, dtype=torch.uint8).expand(4000, 3, 32, 32)
    found = batch(built, images)
    taken = found["source"].gather(1, found["corrupted"])
    count = taken.numel()
    assert count == 4000 * 32
    kinds = {0.8: taken == MASK, 0.1: taken == found["corrupted"]}
    other = ~kinds[0.8] & ~kinds[0.1]
    for share, is_kind in (*kinds.items(), (0.1, other)):
        assert abs(int(is_kind.sum()) - share * count) < 5 * math.sqrt(count * share * (1 - share))
    distances = ((taken - found["corrupted"]) % 64)[other]
    counts = torch.bincount(distances, minlength=64)
    assert counts[0] == 0 and counts[1:].min() > 0.5 * counts[1:].float().mean()
    places = torch.bincount(found["corrupted"].flatten(), minlength=64)
    assert abs(places / 4000 - 0.5).max() < 5 * math.sqrt(0.25 / 4000)


def test_choices_are_a_function_of_the_step() -> None:
    built = objective()
    first, again, other = (batch(built, pixels(), step)["source"] for step in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_embeddings_are_replaced_before_positions_are_added() -> None:
    built = objective()
    images = built.normalize(pixels(2))
    source = torch.arange(16).repeat(2, 1)
    source[0, 3], source[1, 5] = MASK, 9
    model: Any = built.model
    tokens = model.embed(images, lambda tokens: built.corruption(tokens, source))[:, 1:]
    patches, positions = model.patch_embed(images), model.pos_embed[:, 1:]
    expected = (patches + positions).clone()
    expected[0, 3] = built.corruption.mask[0, 0] + positions[0, 3]
    expected[1, 5] = patches[1, 9] + positions[0, 5]
    torch.testing.assert_close(tokens, expected)


@pytest.mark.parametrize("target", ["mean_color", "colors_4x4", "pixels"])
def test_the_loss_is_that_of_corrupted_patches_alone(target: str) -> None:
    built = objective(target).eval()
    linear = built.predict[-1]
    torch.nn.init.normal_(linear.weight)
    given = batch(built, pixels())
    changes = torch.zeros(4, 17, 32)
    handle = built.model.norm.register_forward_hook(lambda module, inputs, output: output + changes)
    plain, _ = built(given)
    left = torch.ones(4, 16, dtype=torch.bool).scatter(1, given["corrupted"], False)
    changes[:, 1:][left] = 3.0
    changes[:, 0] = 3.0
    assert torch.equal(built(given)[0], plain)
    changes[0, 1 + given["corrupted"][0, 0]] = 3.0
    assert not torch.equal(built(given)[0], plain)
    handle.remove()


@torch.no_grad()
def test_the_loss_by_hand() -> None:
    built = objective().eval()
    images = pixels()
    images[:2] = 200  # every patch of two images is 438, of the others whatever
    given = batch(built, images)
    loss, metrics = built(given)
    assert float(loss) == pytest.approx(math.log(512))  # the head begins at zero
    assert metrics.keys() == {"color_accuracy"} == set(built.metric_names) - {"loss", "gradient_norm"}
    built.predict[-1].bias.data[438] = 9.0
    classes = color_classes(images, 4, 1).squeeze(2)
    right = classes.gather(1, given["corrupted"]) == 438
    share = float(right.float().mean())
    loss, metrics = built(given)
    assert share >= 0.5 and float(metrics["color_accuracy"]) == pytest.approx(share)
    assert float(loss) == pytest.approx(math.log(511 + math.e**9) - 9 * share, rel=1e-5)


@torch.no_grad()
def test_pixels_are_normalised_ones() -> None:
    built = objective("pixels").eval()
    given = batch(built, pixels())
    loss, metrics = built(given)
    wanted = cut_patches(built.normalize(given["image"]), 4)
    rows = [wanted[row, given["corrupted"][row]] for row in range(4)]
    assert float(loss) == pytest.approx(float(torch.stack(rows).square().mean()))
    assert metrics == {} and built.metric_names == ("loss", "gradient_norm")


def test_the_mask_embedding_learns() -> None:
    built = objective()
    before = built.corruption.mask.detach().clone()
    optimizer = torch.optim.SGD(built.parameters(), 0.1)
    for step in range(2):  # the head is zero until the first is done
        loss, _ = built(batch(built, pixels(), step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert not torch.allclose(built.corruption.mask, before, atol=1e-7)


ANY_VIT: dict[str, dict[str, Any]] = {
    "token": {},
    "mean": {"pool": "mean"},
    "map": {"pool": "map"},
    "registers": {"registers": 3},
    "sines": {"positions": "sincos_2d", "pool": "mean"},
    "relative": {"positions": "relative"},
    "every layer": {"positions_at": "every_layer"},
    "norm of the pool": {"pool": "mean", "final_norm": "pooled"},
    "odd": {"image_size": (10, 15), "patch": 3},
    "hidden layer": {"pre_logits": 8},
}


@pytest.mark.parametrize("name", ANY_VIT)
@pytest.mark.parametrize("target", ["mean_color", "colors_4x4", "pixels"])
def test_any_vit(name: str, target: str) -> None:
    """What learns has a gradient, which DDP wants of every parameter; in bfloat16 much the same."""
    built = objective(target, **ANY_VIT[name])
    torch.nn.init.normal_(built.predict[-1].weight, std=0.02)
    given = batch(built, pixels(4, *built.config.size))
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        built.dtype = dtype
        built.zero_grad()
        loss, _ = built(given)
        loss.backward()
        losses.append(float(loss.detach()))
        for name, parameter in built.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad is not None, name
                assert parameter.grad.dtype == torch.float32 and parameter.grad.isfinite().all()
    assert losses[1] == pytest.approx(losses[0], rel=0.03)


@pytest.mark.parametrize(
    "target",
    ["mean_color", *(pytest.param(name, marks=pytest.mark.slow) for name in ("colors_4x4", "pixels"))],
)
def test_it_learns_what_no_constant_does(target: str) -> None:
    """On shapes, whose colours differ from image to image: the best constant is the mean, or the marginal's entropy."""
    rendered = open_data("shapes:train[:32,size=16]").render(np.arange(32))
    assert rendered is not None
    images = torch.from_numpy(rendered).permute(0, 3, 1, 2).contiguous()
    built = objective(target)
    if target == "pixels":
        constant = float(built.normalize(images).var())
    else:
        counts = torch.bincount(color_classes(images, 4, built.cells).flatten()).float()
        shares = counts[counts > 0] / counts.sum()
        constant = -float((shares * shares.log()).sum())
    optimizer = torch.optim.AdamW(built.parameters(), 5e-3)
    losses = []
    for step in range(60):
        loss, _ = built(batch(built, images, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-5:]) < 0.8 * constant


def test_its_own_parameters_are_no_part_of_the_model() -> None:
    built = objective()
    names = {name for name, _ in built.named_parameters() if not name.startswith("model.")}
    assert names == {"corruption.mask", "predict.0.weight", "predict.0.bias"}
    assert {key.split(".")[0] for key in built.state_dict()} == {"model", "corruption", "predict"}


@pytest.mark.parametrize("size", [(16, 16), (18, 23)])
def test_pictures(size: tuple[int, int]) -> None:
    """The input; grey where masked, the other patch where replaced; then the predicted colour, wherever corrupted."""
    built = objective(image_size=size).eval()
    built.predict[-1].bias.data[64 * 7 + 8 * 3] = 1.0
    images, draw = pixels(8, *size), Draw(5, 0, np.arange(8))
    given = built.prepare({"image": images}, draw)
    with torch.no_grad():
        found = built.pictures({"image": images}, draw)
    assert found.dtype == torch.uint8 and found.shape == (8, 3, 3, *size)
    assert torch.equal(found[:, 0], images)
    assert torch.equal(paste_patches(images, cut_patches(images, 4), 4), images)
    before, left, after = (cut_patches(found[:, column], 4) for column in range(3))
    colour = torch.tensor([240, 112, 16], dtype=torch.uint8).repeat_interleave(16)
    kinds = set()
    for row, place in np.ndindex(8, built.config.num_patches):
        taken = int(given["source"][row, place])
        kinds.add("mask" if taken == MASK else "same" if taken == place else "other")
        grey = torch.full((48,), 128, dtype=torch.uint8)
        assert torch.equal(left[row, place], grey if taken == MASK else before[row, taken])
        is_corrupted = place in given["corrupted"][row]
        assert torch.equal(after[row, place], colour if is_corrupted else before[row, place])
    assert kinds == {"mask", "same", "other"}
    rows, columns = (side // 4 * 4 for side in size)
    assert torch.equal(found[:, 2, :, rows:, columns:], images[:, :, rows:, columns:])


def test_pictures_of_pixels() -> None:
    """A head that says zero paints the mean of the normalisation; 0.5 is between 127 and 128."""
    built = objective("pixels").eval()
    images, draw = pixels(), Draw(5, 0, np.arange(4))
    corrupted = built.prepare({"image": images}, draw)["corrupted"]
    with torch.no_grad():
        painted = cut_patches(built.pictures({"image": images}, draw)[:, 2], 4)
    assert all(bool((painted[row, corrupted[row]] - 127 <= 1).all()) for row in range(4))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("CCT-2/3x2", "come from a convolutional stem, so patches can't be masked"),
        ("R+Ti/16", "come from a convolutional stem, so patches can't be masked"),
        ("BiT-R50x1", "a ResNet has no tokens to hide"),
    ],
)
def test_other_models_are_refused(name: str, reason: str) -> None:
    model = create_model(name, num_classes=0)
    with pytest.raises(InputError, match=f"needs a plain ViT, a ViT-Lite or a CVT: .*{reason}"):
        build_objective(ObjectiveConfig("masked_patches"), model, Preprocessing(), False)


@pytest.mark.parametrize("name", ["ViT-Lite-2/4", "CVT-2/4"])
@pytest.mark.parametrize("target", ["mean_color", "colors_4x4", "pixels"])
def test_compact_transformers_of_patches_learn(name: str, target: Any) -> None:
    """Their own patch embedding makes the tokens, and all that is trained has a gradient, as DDP wants."""
    torch.manual_seed(0)
    model = create_model(name, image_size=(16, 20), num_classes=0, attention_dropout=0.0)
    config = ObjectiveConfig("masked_patches", target=target)
    built = build_objective(config, model, Preprocessing(image_size=(16, 20)), False)
    assert isinstance(built, MaskedPatches) and built.num_hidden == 10
    images, losses = pixels(8, 16, 20) // 4 * 3, []
    optimizer = torch.optim.AdamW(built.parameters(), 2e-3)
    for step in range(12):
        loss, _ = built(batch(built, images, step % 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        for name, parameter in built.named_parameters():
            assert not parameter.requires_grad or parameter.grad is not None, name
    assert losses[-1] < 0.8 * losses[0]
    with torch.no_grad():
        found = built.eval().pictures({"image": images}, Draw(0, 0, np.arange(8)))
    assert found is not None and found.shape == (8, 3, 3, 16, 20)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(batch(built, images))
    assert built.cost(0, 0)[0] == counter.get_total_flops() // 2 // 8


def test_settings_are_checked() -> None:
    with pytest.raises(
        InputError, match="objective masked_patches selects patches itself: set model.patch_dropout=0"
    ):
        objective(patch_dropout=0.5)
    with pytest.raises(InputError, match="corrupt_share 0.01 hides 0 of 16 patches: it must hide some"):
        objective(share=0.01)
    with pytest.raises(InputError, match="corrupt_share must be above 0 and below 1, not 1"):
        ObjectiveConfig("masked_patches", corrupt_share=1.0)
    with pytest.raises(InputError, match="mask_share does not apply to objective 'masked_patches'"):
        ObjectiveConfig("masked_patches", mask_share=0.5)
    with pytest.raises(InputError, match="target does not apply to objective 'mae'"):
        ObjectiveConfig("mae", target="pixels")
