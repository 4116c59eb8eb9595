"""The page on Python and PyTorch, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitkit

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
PAGE = PAGE.replace("@pretrained", "@weights.safetensors")  # nothing is downloaded


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that the page names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    vitkit.save(vitkit.create_model("Ti/16"), "weights.safetensors", "timm")
    for place, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            colour = (200 * place, 10 * number, 0)
            Image.new("RGB", (40, 30), colour).save(tmp_path / "photos" / name / f"{number}.jpg")


@pytest.mark.slow
@pytest.mark.usefixtures("desk")
def test_the_page_runs() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    torch.manual_seed(0)
    for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        exec(compile(code, "docs/python.md", "exec"), names)
    assert names["vectors"].shape == (2, 192) and names["tokens"].shape == (2, 65, 192)
    assert names["run"].status == names["tuned"].status == names["own"].status == "done"
    assert names["trained"].model.module.fc.weight.shape == (10, 16)
    assert names["record"].tokens[0].shape == (2, 64, 16) and names["record"].features.shape == (2, 16)
    assert Path("my-digits/model.safetensors").is_file()
    assert names["result"].num_train == 32 and names["result"].num_test == 8
    assert vitkit.open_data(names["Scans"]()).class_names == ("empty", "full")
    images, labels = next(iter(names["batches"]))
    assert images.shape == (4, 3, 224, 224) and len(labels) == 4
