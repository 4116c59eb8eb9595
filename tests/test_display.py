"""How results look in Python: a short repr, and in notebooks a table with pictures, in which names are escaped."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

import vitkit
from vitkit.display import MOST_BYTES, MOST_PICTURES, MOST_ROWS, pictures
from vitkit.evaluation.measured import ClassScore
from vitkit.evaluation.run import Evaluation
from vitkit.models.configs import Preprocessing
from vitkit.predictor import PredictedImage, PredictedImages, Prediction, Predictor
from vitkit.results import Result
from vitkit.runs import Evaluated
from vitkit.training.run import TrainResult
from vitkit.transfer.finetune import FinetuneRequest, FinetuneResult

SCRIPT = "<script>alert(1)</script>"


def embedded(page: str) -> list[Image.Image]:
    """The pictures in a piece of HTML."""
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


def evaluation(*names: str, files: tuple[str, ...] = ()) -> Evaluation:
    return Evaluation(
        accuracy=0.83421,
        loss=0.5,
        per_class=tuple(ClassScore(name, 1_234, 0.5, None, 0.25) for name in names),
        confusion={name: {name: 3, names[0]: 1} for name in names},
        model="Ti/16",
        image_size=(224, 224),
        precision="float32",
        merge=0,
        data="./photos:test",
        images=12,
        left_out=0,
        classes=len(names),
        notes=("a note",),
        files=files,
    )


@dataclass(frozen=True)
class Row(Result):
    name: str
    score: float


@dataclass(frozen=True)
class Table(Result):
    name: str
    rows: tuple[Row, ...]
    counts: Mapping[str, int]
    best: Row | None = None


def test_a_repr_is_short() -> None:
    table = Table("x" * 100, tuple(Row(str(n), n / 3) for n in range(50)), {"a": 1}, Row("b", 0.123456))
    assert repr(table) == (
        f"Table(name='{'x' * 57}...', rows=[Row(name='0', score=0), +49], counts=1 entries, "
        "best=Row(name='b', score=0.1235))"
    )
    assert repr(Table("a", (), {})) == "Table(name='a')"
    assert (
        repr(Prediction("tabby", 281, 0.8312345)) == "Prediction(name='tabby', index=281, probability=0.8312)"
    )


def test_the_repr_of_an_evaluation_has_its_numbers_and_no_lists() -> None:
    assert repr(evaluation("cat", "dog")) == (
        "Evaluation(accuracy=0.8342, loss=0.5, model='Ti/16', data='./photos:test', images=12, left_out=0, classes=2)"
    )


def test_an_evaluation_in_a_notebook_has_tables_and_its_confusion() -> None:
    page = evaluation("cat", SCRIPT)._repr_html_()
    assert "0.8342" in page and "per class" in page and "1,234" in page
    assert "<script>" not in page and "&lt;script&gt;" in page
    [confusion] = embedded(page)
    assert confusion.width > 300


def test_pictures_that_were_written_are_shown_instead(tmp_path: Path) -> None:
    for name in ("confusion.png", "mistakes.png"):
        Image.new("RGB", (7, 5)).save(tmp_path / name)
    files = tuple(
        str(tmp_path / name) for name in ("confusion.png", "mistakes.png", "gone.png", "results.json")
    )
    result = evaluation("cat", "dog", files=files)
    assert [picture.size for picture in embedded(result._repr_html_())] == [(7, 5)] * 2
    request = FinetuneRequest("Ti/16", "./photos")
    tuned = FinetuneResult(
        request, "done", "runs/a", accuracy=0.75, std=0.01, values=(0.74, 0.76), evaluation=result
    )
    assert "accuracy=0.75, std=0.01, values=(0.74, 0.76)" in repr(tuned)
    assert len(embedded(tuned._repr_html_())) == 2


def test_a_training_run_shows_its_best_and_its_last_metrics() -> None:
    result = TrainResult(
        *("digits", "done", 20, 20, 3.25, Evaluated("test/accuracy", 0.9, 10), {}, {}),
        {"test/accuracy": 0.875, "loss": None},
        *("runs/digits", "runs/digits/model", (), 10, "mean", ()),
    )
    assert repr(result) == (
        "TrainResult(status='done', step=20, steps=20, best=Evaluated(metric='test/accuracy', value=0.9, step=10), "
        "seconds=3.25, run='runs/digits', model='runs/digits/model')"
    )
    assert "test/accuracy" in result._repr_html_() and "0.875" in result._repr_html_()


def test_long_tables_and_many_or_large_pictures_are_cut() -> None:
    names = [str(number) for number in range(MOST_ROWS + 3)]
    assert "3 more rows" in evaluation(*names)._repr_html_()
    file = io.BytesIO()
    Image.new("RGB", (2, 2)).save(file, "PNG")
    assert len(embedded(pictures([("a", file.getvalue())] * 20))) == MOST_PICTURES
    assert not pictures([("large", file.getvalue() + b"\0" * MOST_BYTES)])


def test_predicted_images_are_a_list_with_thumbnails(tmp_path: Path) -> None:
    Image.new("RGB", (300, 200), (200, 0, 0)).save(tmp_path / "a.jpg")
    row = PredictedImage(str(tmp_path / "a.jpg"), (Prediction(SCRIPT, 0, 0.9), Prediction("dog", 1, 0.1)))
    rows = PredictedImages([row, PredictedImage("b.jpg", error="cannot read b.jpg")])
    for page in (row._repr_html_(), rows._repr_html_()):
        assert [picture.size for picture in embedded(page)] == [(96, 64)]
        assert "<script>" not in page and "&lt;script&gt;" in page
    assert "cannot read b.jpg" in rows._repr_html_() and rows[:1] == [row]


def test_predict_returns_such_a_list(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    found = vitkit.predict(predictor("cat", "dog"), tmp_path)
    assert isinstance(found, PredictedImages) and isinstance(found, list) and len(found) == 1


def predictor(*names: str) -> Predictor:
    torch.manual_seed(0)
    net = vitkit.create_model("mu/16", patch=4, image_size=8, num_classes=len(names))
    return Predictor(net, Preprocessing(image_size=8), names, "mu/16", notes=("its note",))


def test_a_predictor_says_what_it_is() -> None:
    model = predictor("cat", SCRIPT)
    assert repr(model) == "Predictor('mu/16', 2 classes, images of 8x8, on cpu)"
    page = model._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page
    for words in ("mu/16", "the whole image resized to 8x8", "2: cat", "cpu", "its note"):
        assert words in page
    assert repr(predictor()) == "Predictor('mu/16', no head, images of 8x8, on cpu)"


def test_a_source_says_what_it_is() -> None:
    source = vitkit.open_data("digits:val[:50]")
    source.class_names = (SCRIPT, *source.class_names[1:])
    page = source._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "digits:val[:50]" in page and "10: " in page and "and 5 more" in page


def test_results_import_no_torch() -> None:
    code = "import sys, vitkit.results; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_result_shows_itself() -> None:
    """Fields that repr and notebooks name are there, whatever the class."""

    found = [Result]
    for kind in found:
        found += kind.__subclasses__()
        for name in (*kind._leads, *kind._tables):
            assert hasattr(kind, name) or name in kind.__dataclass_fields__, f"{kind.__name__} has no {name}"
        assert kind.__repr__ is Result.__repr__
