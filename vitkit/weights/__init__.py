"""Weights: model folders, public weights, and files in other libraries' formats, whose names are here. Needs no torch."""

from typing import Literal

Format = Literal["vitkit", "npz", "timm", "hf", "torchvision"]
"Formats that can be written; `formats.FORMATS` says how."
