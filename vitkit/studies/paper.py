"""The ViT paper's own results, to draw next to a study's: tables 5 to 8 and figure 4 of arXiv 2010.11929v2."""

from __future__ import annotations

from vitkit.published import JFT_IMAGES, PUBLISHED_SCALING

# Columns of tables 5 to 7, each with the word by which a measure's data is told.
COLUMNS = {
    "cifar100": "CIFAR-100",
    "cifar10": "CIFAR-10",
    "real": "ImageNet ReaL",
    "imagenet": "ImageNet",
    "pet": "Oxford-IIIT Pets",
    "flowers": "Oxford Flowers-102",
}
# Images of the sets that table 5 and figure 3 pre-train on.
PRETRAINING = {"ImageNet": 1_281_167, "ImageNet-21k": 14_197_087, "JFT-300M": JFT_IMAGES}
_MODELS = ("B/16", "B/32", "L/16", "L/32", "H/14")
# Table 5 (figure 3): accuracy in percent by pre-training set, column and model, fine-tuned at 384.
_TABLE_5: dict[str, dict[str, tuple[float | None, ...]]] = {
    "ImageNet": {
        "CIFAR-10": (98.13, 97.77, 97.86, 97.94, None),
        "CIFAR-100": (87.13, 86.31, 86.35, 87.07, None),
        "ImageNet": (77.91, 73.38, 76.53, 71.16, None),
        "ImageNet ReaL": (83.57, 79.56, 82.19, 77.83, None),
        "Oxford Flowers-102": (89.49, 85.43, 89.66, 86.36, None),
        "Oxford-IIIT Pets": (93.81, 92.04, 93.64, 91.35, None),
    },
    "ImageNet-21k": {
        "CIFAR-10": (98.95, 98.79, 99.16, 99.13, 99.27),
        "CIFAR-100": (91.67, 91.97, 93.44, 93.04, 93.82),
        "ImageNet": (83.97, 81.28, 85.15, 80.99, 85.13),
        "ImageNet ReaL": (88.35, 86.63, 88.40, 85.65, 88.70),
        "Oxford Flowers-102": (99.38, 99.11, 99.61, 99.19, 99.51),
        "Oxford-IIIT Pets": (94.43, 93.02, 94.73, 93.09, 94.82),
    },
    "JFT-300M": {
        "CIFAR-10": (99.00, 98.61, 99.38, 99.19, 99.50),
        "CIFAR-100": (91.87, 90.49, 94.04, 92.52, 94.55),
        "ImageNet": (84.15, 80.73, 87.12, 84.37, 88.04),
        "ImageNet ReaL": (88.85, 86.27, 89.99, 88.28, 90.33),
        "Oxford Flowers-102": (99.56, 99.27, 99.56, 99.45, 99.68),
        "Oxford-IIIT Pets": (95.80, 93.40, 97.11, 95.83, 97.56),
    },
}
# Table 6 (figure 5): accuracy in percent of each run of published.PUBLISHED_SCALING, in its order.
_TABLE_6_COLUMNS = (
    *("ImageNet", "ImageNet ReaL", "CIFAR-10", "CIFAR-100", "Oxford-IIIT Pets", "Oxford Flowers-102"),
)
_TABLE_6 = (
    (80.73, 86.27, 98.61, 90.49, 93.40, 99.27),
    (84.15, 88.85, 99.00, 91.87, 95.80, 99.56),
    (84.37, 88.28, 99.19, 92.52, 95.83, 99.45),
    (86.30, 89.43, 99.38, 93.46, 96.81, 99.66),
    (87.12, 89.99, 99.38, 94.04, 97.11, 99.56),
    (88.08, 90.36, 99.50, 94.71, 97.11, 99.71),
    (77.54, 84.56, 97.67, 86.07, 91.11, 94.26),
    (82.12, 87.94, 98.29, 89.20, 93.43, 97.02),
    (80.67, 87.07, 98.48, 89.17, 94.08, 95.95),
    (81.88, 87.96, 98.82, 90.22, 94.17, 96.94),
    (84.97, 89.69, 99.06, 92.05, 95.37, 98.62),
    (85.56, 89.89, 99.24, 91.92, 95.75, 98.75),
    (87.22, 90.15, 99.34, 93.53, 96.32, 99.04),
    (84.90, 89.15, 99.01, 92.24, 95.75, 99.46),
    (85.58, 89.65, 99.14, 92.63, 96.65, 99.40),
    (85.68, 89.04, 99.24, 92.93, 96.97, 99.43),
    (86.60, 89.72, 99.18, 93.64, 97.03, 99.40),
    (87.12, 89.76, 99.31, 93.89, 97.36, 99.11),
)
# Table 7: accuracy in percent of ResNets pre-trained with Adam and with SGD.
_TABLE_7 = {
    "ImageNet": {"R50": (77.54, 78.24), "R152x2": (84.97, 84.37)},
    "CIFAR-10": {"R50": (97.67, 97.46), "R152x2": (99.06, 99.07)},
    "CIFAR-100": {"R50": (86.07, 85.17), "R152x2": (92.05, 91.06)},
    "Oxford-IIIT Pets": {"R50": (91.11, 91.00), "R152x2": (95.37, 94.79)},
    "Oxford Flowers-102": {"R50": (94.26, 92.06), "R152x2": (98.62, 99.32)},
}
# Table 8: 5-shot accuracy on ImageNet of ViT-B/16 by positions and where they are added.
_TABLE_8 = {
    "none": {"stem": 0.61382},
    "learned": {"stem": 0.64206, "every_layer": 0.63964, "every_layer_shared": 0.64292},
    "learned_2d": {"stem": 0.64001, "every_layer": 0.64046, "every_layer_shared": 0.64022},
    "relative": {"stem": 0.64032},
}
# Figure 4: 5-shot accuracy on ImageNet in percent by images of JFT, read off the plot to about 0.7.
FIGURE_4_IMAGES = (9_000_000, 30_000_000, 90_000_000, JFT_IMAGES)
_FIGURE_4 = {
    "L/16": (42, 58, 70, 71.6),
    "L/32": (36, 53.5, 64, 65.3),
    "B/32": (38, 53, 54.7, 55.2),
    "b/32": (37.5, 40.7, 41.2, 42),
    "R50x1": (47.9, 50.8, 51.9, 52),
    "R152x2": (52.7, 66.9, 69, 69.3),
}


def column_of(measure: str) -> str | None:
    """Return the column of the paper's tables that a measure's name points to; None if none does."""
    text = measure.lower().replace("-", "")
    return next((column for word, column in COLUMNS.items() if word in text), None)


def compute_points(column: str) -> dict[str, list[tuple[float, float, str]]]:
    """Return table 6 by family: exaFLOPs, accuracy and the run's name."""
    place = _TABLE_6_COLUMNS.index(column)
    found: dict[str, list[tuple[float, float, str]]] = {}
    for (name, epochs, exaflops), accuracies in zip(PUBLISHED_SCALING, _TABLE_6, strict=True):
        family = "ResNet" if name.startswith("BiT") else "Hybrid" if "+" in name else "ViT"
        found.setdefault(family, []).append(
            (float(exaflops), accuracies[place] / 100, f"{name}, {epochs} epochs")
        )
    return found


def data_points(column: str, is_fewshot: bool) -> dict[str, list[tuple[float, float]]]:
    """Return accuracy by pre-training images and model: figure 4 for few-shot on ImageNet, table 5 for fine-tuning."""
    if is_fewshot and column != "ImageNet":
        return {}
    if is_fewshot:
        return {
            model: [
                (float(images), value / 100) for images, value in zip(FIGURE_4_IMAGES, values, strict=True)
            ]
            for model, values in _FIGURE_4.items()
        }
    found: dict[str, list[tuple[float, float]]] = {}
    for data, columns in _TABLE_5.items():
        for model, value in zip(_MODELS, columns[column], strict=True):
            if value is not None:
                found.setdefault(model, []).append((float(PRETRAINING[data]), value / 100))
    return found


def cell(row: str, column: str, measure: str) -> float | None:
    """Return the accuracy that table 8 (positions by place) or table 7 (a ResNet by optimiser) has for labels of a study."""
    data = column_of(measure)
    if data is None:
        return None
    if row in _TABLE_8:
        return _TABLE_8[row].get(column) if data == "ImageNet" else None
    optimizers = {"adam": 0, "sgd": 1}
    known = _TABLE_7.get(data, {}).get(row)
    return known[optimizers[column]] / 100 if known and column in optimizers else None
