"""The parameters of every listed model: published exact counts, or the papers' formulas on plain shape numbers.

Nothing here comes from the package. A literal is an exact published count; a call evaluates the formula of ViT, BiT or
Compact Transformers.
"""

from __future__ import annotations


def vit(width: int, depth: int, mlp: int, patch: int, *, size: int = 224, classes: int = 1000) -> int:
    """ViT: patch embedding, class token, positions, blocks, final LayerNorm, head."""
    tokens = (size // patch) ** 2 + 1
    block = 4 * width**2 + 4 * width + 2 * width * mlp + mlp + width + 4 * width
    embedding = patch * patch * 3 * width + width
    return embedding + width + tokens * width + depth * block + 2 * width + width * classes + classes


def bit(units: tuple[int, ...], factor: int, *, classes: int = 1000) -> int:
    """BiT: standardised convolutions without bias, GroupNorm before each, a 1x1 head with bias."""
    channels = 64 * factor
    total = 7 * 7 * 3 * channels
    for stage, count in enumerate(units):
        middle = 64 * factor * 2**stage
        for unit in range(count):
            total += 2 * channels + 2 * middle + 2 * middle
            total += channels * middle + 9 * middle * middle + middle * 4 * middle
            total += channels * 4 * middle if unit == 0 else 0
            channels = 4 * middle
    return total + 2 * channels + channels * classes + classes


def lite(layers: int, patch: int, *, class_token: bool, size: int = 32, classes: int = 10) -> int:
    """Compact Transformers: ViT-Lite (class token) and CVT (SeqPool); qkv has no bias."""
    width, mlp = {2: (128, 128), 4: (128, 128), 6: (256, 512), 7: (256, 512), 8: (256, 512)}[layers]
    tokens = (size // patch) ** 2 + int(class_token)
    block = 4 * width**2 + width + 2 * width * mlp + mlp + width + 4 * width
    pool = width if class_token else width + 1
    embedding = patch * patch * 3 * width + width
    return embedding + tokens * width + pool + layers * block + 2 * width + width * classes + classes


R26, R50, R101, R152, R200 = (2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3), (3, 24, 36, 3)

PARAMETERS: dict[str, int] = {
    # 1.3, shapes of 1.2
    "mu/16": vit(32, 1, 128, 16),
    "s/28": vit(256, 6, 1024, 28),
    "s/16": vit(256, 6, 1024, 16),
    "Ti/16": 5_717_416,
    "S/32": 22_878_952,
    "S/16": 22_050_664,
    "M/32": vit(512, 12, 2048, 32),
    "M/16": vit(512, 12, 2048, 16),
    "b/32": vit(384, 12, 1536, 32),
    "B/32": 88_224_232,
    "B/28": vit(768, 12, 3072, 28),
    "B/16": 86_567_656,
    "B/8": 86_576_872,
    "L/32": 306_535_400,
    "L/16": 304_326_632,
    "So400m/14": vit(1152, 27, 4304, 14),
    "H/14": 632_045_800,
    "g/14": vit(1408, 40, 6144, 14),
    "g-opt/16": vit(1536, 40, 6144, 16),
    "G/14": vit(1664, 48, 8192, 14),
    "G-opt/16": vit(1536, 48, 8192, 16),
    "e/14": vit(1792, 56, 15360, 14),
    # 1.9
    "R+Ti/16": 6_337_704,
    "R26+S/32": 36_431_912,
    "R26+B/32": 101_383_976,
    "R50+B/32": 110_945_832,
    "R50+B/16": 98_659_112,
    "R50+L/32": 328_994_856,
    "R50+L/16": 316_483_624,
    # 1.10
    "BiT-R26x1": bit(R26, 1),
    "BiT-R26x2": bit(R26, 2),
    "BiT-R26x3": bit(R26, 3),
    "BiT-R26x4": bit(R26, 4),
    "BiT-R50x1": 25_549_352,
    "BiT-R50x2": 97_988_712,
    "BiT-R50x3": 217_319_080,
    "BiT-R50x4": bit(R50, 4),
    "BiT-R101x1": 44_541_480,
    "BiT-R101x2": bit(R101, 2),
    "BiT-R101x3": 387_934_888,
    "BiT-R101x4": bit(R101, 4),
    "BiT-R152x1": 60_185_128,
    "BiT-R152x2": 236_335_208,
    "BiT-R152x3": bit(R152, 3),
    "BiT-R152x4": 936_533_224,
    "BiT-R200x1": bit(R200, 1),
    "BiT-R200x2": bit(R200, 2),
    "BiT-R200x3": 568_633_000,
    "BiT-R200x4": bit(R200, 4),
    # 4.2, at the published image size and classes
    "ViT-Lite-2/4": 214_666,
    "ViT-Lite-4/4": 413_066,
    "ViT-Lite-6/4": 3_190_538,
    "ViT-Lite-6/8": lite(6, 8, class_token=True),
    "ViT-Lite-6/16": lite(6, 16, class_token=True),
    "ViT-Lite-7/4": 3_716_874,
    "ViT-Lite-7/8": 3_741_450,
    "ViT-Lite-7/16": 3_885_834,
    "CVT-2/4": 214_539,
    "CVT-4/4": 412_939,
    "CVT-6/4": 3_190_283,
    "CVT-6/8": lite(6, 8, class_token=False),
    "CVT-7/4": 3_716_619,
    "CVT-7/8": lite(7, 8, class_token=False),
    "CVT-8/4": lite(8, 4, class_token=False),
    "CCT-2/3x2": 283_723,
    "CCT-4/3x2": 482_123,
    "CCT-6/3x1": 3_233_803,
    "CCT-6/3x2": 3_326_923,
    "CCT-7/3x1": 3_760_139,
    "CCT-7/3x2": 3_853_259,
    "CCT-7/7x2": 4_573_735,
    "CCT-14/7x2": 22_367_273,
}
