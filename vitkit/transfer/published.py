"""The ViT paper's results after fine-tuning, tables 2 and 5, and which of them stand beside a model."""

from __future__ import annotations

from vitkit.models.configs import ModelConfig, ViTConfig
from vitkit.models.names import model_config

ROWS = ("imagenet", "real", "cifar10", "cifar100", "pets", "flowers102", "vtab")
# In percent, in the order of ROWS. Table 5 has no VTAB.
TABLE_2: dict[tuple[str, str], tuple[float, ...]] = {
    ("H/14", "JFT"): (88.55, 90.72, 99.50, 94.55, 97.56, 99.68, 77.63),
    ("L/16", "JFT"): (87.76, 90.54, 99.42, 93.90, 97.32, 99.74, 76.28),
    ("L/16", "I21k"): (85.30, 88.62, 99.15, 93.25, 94.67, 99.61, 72.72),
}
# Standard deviations of three runs; table 5 has none.
TABLE_2_STD: dict[tuple[str, str], tuple[float, ...]] = {
    ("H/14", "JFT"): (0.04, 0.05, 0.06, 0.04, 0.03, 0.02, 0.23),
    ("L/16", "JFT"): (0.03, 0.03, 0.03, 0.05, 0.11, 0.00, 0.46),
    ("L/16", "I21k"): (0.02, 0.05, 0.03, 0.05, 0.15, 0.02, 0.21),
}
TABLE_5: dict[tuple[str, str], tuple[float, ...]] = {
    ("B/16", "ImageNet"): (77.91, 83.57, 98.13, 87.13, 93.81, 89.49),
    ("B/32", "ImageNet"): (73.38, 79.56, 97.77, 86.31, 92.04, 85.43),
    ("L/16", "ImageNet"): (76.53, 82.19, 97.86, 86.35, 93.64, 89.66),
    ("L/32", "ImageNet"): (71.16, 77.83, 97.94, 87.07, 91.35, 86.36),
    ("B/16", "I21k"): (83.97, 88.35, 98.95, 91.67, 94.43, 99.38),
    ("B/32", "I21k"): (81.28, 86.63, 98.79, 91.97, 93.02, 99.11),
    ("L/16", "I21k"): (85.15, 88.40, 99.16, 93.44, 94.73, 99.61),
    ("L/32", "I21k"): (80.99, 85.65, 99.13, 93.04, 93.09, 99.19),
    ("H/14", "I21k"): (85.13, 88.70, 99.27, 93.82, 94.82, 99.51),
    ("B/16", "JFT"): (84.15, 88.85, 99.00, 91.87, 95.80, 99.56),
    ("B/32", "JFT"): (80.73, 86.27, 98.61, 90.49, 93.40, 99.27),
    ("L/16", "JFT"): (87.12, 89.99, 99.38, 94.04, 97.11, 99.56),
    ("L/32", "JFT"): (84.37, 88.28, 99.19, 92.52, 95.83, 99.45),
    ("H/14", "JFT"): (88.04, 90.33, 99.50, 94.55, 97.56, 99.68),
}
SMALLEST = "B/16"
"Beside models that the paper doesn't have."
_SHAPE = ("width", "depth", "heads", "mlp_width", "patch")


def size_of(config: ModelConfig) -> str | None:
    """Return the paper's name of a model, from its shape; None for one that table 5 doesn't have."""
    if type(config) is not ViTConfig:
        return None
    for name in dict.fromkeys(size for size, _ in TABLE_5):
        known = model_config(name)
        if all(getattr(config, field) == getattr(known, field) for field in _SHAPE):
            return name
    return None


def beside(config: ModelConfig) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return all of table 2, and of table 5 the models of this size, by name: accuracy and std of each data set."""
    size = size_of(config) or SMALLEST
    rows = {f"{' '.join(key)}, table 2": _row(TABLE_2[key], TABLE_2_STD[key]) for key in TABLE_2}
    return rows | {f"{' '.join(key)}, table 5": _row(TABLE_5[key]) for key in TABLE_5 if key[0] == size}


def _row(means: tuple[float, ...], stds: tuple[float, ...] = ()) -> dict[str, dict[str, float | None]]:
    return {
        name: {"accuracy": mean / 100, "std": None if std is None else std / 100}
        for name, mean, std in zip(ROWS, means, stds or [None] * len(means), strict=False)
    }
