"""What was measured of a run's model, and fine-tunings, on the report of runs."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.inspection import tiny_models
from tests.reports.pages import read
from tests.reports.run_folders import write_run
from vitkit.errors import InputError
from vitkit.figures.mistakes import Tile, mistake_sheet
from vitkit.models.configs import Preprocessing
from vitkit.reports.inspection import inspect_model
from vitkit.reports.outcomes import Accuracy, accuracy_of, read_measured
from vitkit.reports.runs import report

TESTS = Path(__file__).parents[1]
FEW: list[dict[str, Any]] = [{"step": 200, "loss": 1.0}, {"step": 400, "loss": 0.5, "seconds": 100.0}]
EVIL = "<script>alert(1)</script>"


def png(color: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), color).save(buffer, "PNG")
    return buffer.getvalue()


def write_evaluation(folder: Path, **changes: Any) -> None:
    """Write what `vit eval --out` does."""
    folder.mkdir(parents=True)
    results = {
        "model": "runs/a",
        "data": "digits:test",
        "images": 382,
        "accuracy": 0.75,
        "top_5_accuracy": None,
        "loss": 0.5,
        "per_class": [
            {"class": "good", "images": 10, "recall": 0.9},
            {"class": EVIL, "images": 20, "recall": 0.25},
        ],
        **changes,
    }
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "mistakes.png").write_bytes(png("red"))
    (folder / "confusion.png").write_bytes(png("blue"))


def write_finetuning(path: Path, seeds: int = 2, **changes: Any) -> Path:
    """Write what `vit finetune` leaves behind, models and evaluation apart."""
    path.mkdir(parents=True)
    for seed in range(seeds):
        write_run(path / f"seed-{seed}" / "run", FEW, config={"seed": seed}, name="run")
    result = {
        "request": {"model": "B/16@in21k", "data": "./pets"},
        "status": "done",
        "protocol": "paper",
        "kept": "all weights",
        "learning_rate": 0.003,
        "measured_on": "./pets:test",
        "metric": "accuracy",
        "accuracy": 0.8125,
        "std": 0.0125 if seeds > 1 else None,
        "values": [0.8125] * seeds,
        "sweep_results": [
            {"learning_rate": 0.001, "accuracy": 0.7},
            {"learning_rate": 0.003, "accuracy": 0.8},
        ],
        **changes,
    }
    (path / "finetune.json").write_text(json.dumps(result))
    return path


def write_model(path: Path, family: str = "cct") -> None:
    config = tiny_models.FAMILIES[family]
    vitkit.save(tiny_models.make(config), path, preprocessing=Preprocessing(config.size))


def test_measured_results_and_mistakes_are_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", FEW)
    write_evaluation(run / "evaluation")
    result = report([run])
    assert result.to_json()["runs"][0]["measured"] == {
        "data": "digits:test",
        "images": 382,
        "accuracy": 0.75,
        "loss": 0.5,
    }
    page = read(result.html)
    assert page.images == [png("red"), png("blue")]
    measured = page.text.split("Measured")[1]
    for words in ("75.00%", "382", "digits:test", f"{EVIL}2025.00%good1090.00%"):
        assert words in measured


def test_mistakes_have_their_files_and_are_cut_out_of_their_sheet(tmp_path: Path) -> None:
    """A page arranges them as it is wide, and writes their names in its own colours."""
    run = write_run(tmp_path / "a", FEW)
    mistakes = [
        {
            "image": f"photos/{EVIL.replace('/', '')}.jpg",
            "class": EVIL,
            "predicted": "dog",
            "probability": 0.94,
        },
        {"image": "photos/b.jpg", "class": "dog", "predicted": "cat", "probability": None},
    ]
    write_evaluation(run / "evaluation", mistakes=mistakes)
    tiles = [Tile(np.full((4, 4, 3), grey, np.uint8), "a", "b", 0.5) for grey in (10, 90)]
    mistake_sheet(tiles, run / "evaluation" / "mistakes.png", 2, 9)
    page = read(report([run]).html)
    assert f"{EVIL} predicted as dog 94%photos/" in page.text
    assert "dog predicted as catphotos/b.jpg" in page.text
    with Image.open(io.BytesIO(page.images[1])) as image:
        assert image.size == (176, 176) and image.convert("RGB").getpixel((9, 9)) == (90, 90, 90)


@pytest.mark.parametrize("listed", [7, [], [{}], ["x"], [{"image": 1}] * 24])
def test_a_sheet_of_which_no_list_is_known_is_shown_whole(tmp_path: Path, listed: Any) -> None:
    run = write_run(tmp_path / "a", FEW)
    write_evaluation(run / "evaluation", mistakes=listed)
    assert read(report([run]).html).images == [png("red"), png("blue")]


def test_the_confusion_matrix_is_drawn_from_its_numbers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", FEW)
    confusion = {EVIL: {EVIL: 11, "other classes": 2}, "b": {"b": 5, "z": 4}}
    write_evaluation(run / "evaluation", confusion=confusion)
    page = read(report([run]).html)
    assert png("blue") not in page.images
    text = page.text.split("Confusion matrix")[-1]
    for words in ("16 of 22 images correct", EVIL, "other classes"):
        assert words in text


@pytest.mark.parametrize("confusion", [7, {}, {"a": 3}, {"a": {"a": -1}}, {"a": {"a": "many"}}])
def test_a_confusion_matrix_that_makes_no_sense_is_the_picture(tmp_path: Path, confusion: Any) -> None:
    run = write_run(tmp_path / "a", FEW)
    write_evaluation(run / "evaluation", confusion=confusion)
    assert png("blue") in read(report([run]).html).images


def test_what_is_no_picture_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", FEW)
    write_evaluation(run / "evaluation", per_class=7, accuracy=float("nan"), images="x", data=[])
    (run / "evaluation" / "mistakes.png").write_bytes(b"<svg onload=alert(1)>")
    page = read(report([run]).html)
    assert page.images == [png("blue")]
    assert read_measured({"accuracy": "high"}) is None


def test_a_fine_tuning_is_its_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_finetuning(Path("runs/pets"))
    write_evaluation(path / "evaluation")
    write_model(path / "model")
    result = report([path])
    assert result.html == "runs/pets/report/index.html"
    assert [run.name for run in result.runs] == ["pets seed-0", "pets seed-1"]
    assert [bool(run.measured) for run in result.runs] == [True, False]
    text = read(result.html).text
    assert text.index("81.25% ± 1.25") < text.index("Summary")  # what it came to stands above how
    for words in (
        "81.25% ± 1.25",
        "on ./pets:test, 2 seeds",
        "B/16@in21k",
        "all weights",
        "Fine-tuning: petsAccuracy81.25%",
        "Measured: pets seed-0",
        "Inside pets seed-0",
        "80.00%",
    ):
        assert words in text
    measured = "81.25% accuracy on ./pets:test"
    assert f"Result{measured}{measured}seed01" in text.split("What differs")[1]
    assert accuracy_of("runs/pets") == Accuracy("accuracy", 0.75, measured_on="digits:test")


def test_fine_tunings_differ_in_the_weights_that_they_started_from(tmp_path: Path) -> None:
    """Their steps start from a head in their own folder, which says nothing."""
    for name in ("one", "two"):
        path = write_finetuning(tmp_path / name, seeds=1)
        write_run(path / "seed-0" / "run", FEW, config={"model": {"name": str(path / "head")}}, name="run")
    result = report([tmp_path / "one", tmp_path / "two"], out=tmp_path / "out")
    assert [run.model for run in result.runs] == ["B/16@in21k"] * 2
    assert "All runs have the same settings." in read(result.html).text


def test_a_fine_tuning_of_one_seed_has_its_name(tmp_path: Path) -> None:
    result = report([write_finetuning(tmp_path / "pets", seeds=1)])
    assert [run.name for run in result.runs] == ["pets"]
    text = read(result.html).text
    assert text.index("81.25% on ./pets:test") < text.index("Its run")


def test_a_fine_tuning_that_has_just_begun_is_told(tmp_path: Path) -> None:
    path = write_finetuning(tmp_path / "pets", seeds=0, status="running")
    with pytest.raises(InputError, match="pets is a fine-tuning whose runs have no metrics: wait"):
        report([path])
    write_run(path / "seed-0" / "run", FEW)
    (path / "finetune.json").write_text('{"request": {}, "status": "running"}')
    assert report([path]).runs[0].name == "pets"


def test_a_seed_that_failed_is_told_and_no_other_has_its_model(tmp_path: Path) -> None:
    path = write_finetuning(tmp_path / "pets")
    write_evaluation(path / "evaluation")
    run = write_run(path / "seed-0" / "run", [], status="failed", message="cannot read x.png", name="run")
    result = report([path])
    assert [run.name for run in result.runs] == ["pets seed-1"] and not result.runs[0].measured
    assert result.left_out == [f"{run} has no metrics: it failed: cannot read x.png"]
    (run / "metrics.jsonl").unlink()  # which the first line makes
    assert report([path], force=True).left_out == result.left_out
    write_run(path / "seed-1" / "run", [], status="failed", message="disk is full", name="run")
    with pytest.raises(InputError, match="seed-0/run has no metrics: it failed: cannot read x.png"):
        report([path], force=True)


def test_the_seeds_of_several_are_counted(tmp_path: Path) -> None:
    paths = [write_finetuning(tmp_path / name, seeds=6) for name in "ab"]
    with pytest.raises(InputError, match="12 runs were given; a report shows at most 10: give fewer"):
        report(paths, out=tmp_path / "out")


def test_the_model_of_a_run_is_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", FEW, config={"data": {"train": "digits:train", "evaluate": "digits:val"}})
    write_model(run / "model")
    page = read(report([run]).html)
    inside = page.text.split("Inside the model")[1]
    assert "Similarity of positions is not defined for this model" in inside
    assert len(page.images) == 1  # filters
    page = read(report([run], inspect=True, device="cpu", force=True).html)
    inside = page.text.split("Inside the model")[1]
    assert "Mean over 32 images" in inside and inside.count("Attention rollout: ") == 3
    assert len(page.images) == 1 + 3 * 7  # filters, and seven of each photo


def test_a_model_that_cannot_be_drawn_has_a_sentence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", FEW, config={"data": {"train": "nowhere:train"}})
    write_model(run / "model")
    page = read(report([run], inspect=True, device="cpu").html)
    assert "Attention is not drawn: unknown data source 'nowhere'" in page.text
    assert len(page.images) == 1
    (run / "model" / "config.json").write_text("{")
    result = report([run], force=True)
    text = read(result.html).text
    assert "The model can't be drawn: " in text and "config.json" in text
    [said] = result.left_out
    assert said.startswith("a: the model can't be drawn: ")


def test_a_run_without_labels_is_inspected_on_images_without_classes(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    for number in range(30):
        (loose / f"{number}.png").write_bytes(png(f"rgb({number}, 0, 0)"))
    config = {"data": {"train": str(loose)}, "objective": {"name": "mae"}}
    run = write_run(tmp_path / "a", FEW, config=config)
    write_model(run / "model")
    result = report([run], inspect=True, device="cpu")
    assert result.left_out == [] and "Mean over" in read(result.html).text


def test_a_seed_without_metrics_hides_no_other(tmp_path: Path) -> None:
    path = write_finetuning(tmp_path / "pets", seeds=2)
    (path / "seed-1" / "run" / "metrics.jsonl").write_text("")
    assert [run.name for run in report([path]).runs] == ["pets seed-0"]


def test_classes_with_multi_label_are_judged_by_their_average_precision(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", FEW)
    (run / "evaluation").mkdir()
    per_class = [{"class": "cat", "images": 3, "average_precision": 0.25}]
    results = {"mean_average_precision": 0.25, "images": 3, "per_class": per_class}
    (run / "evaluation" / "results.json").write_text(json.dumps(results))
    text = read(report([run]).html).text
    assert "Average precisioncat325.00%" in text.replace("\n", "")


def test_a_run_without_a_model_has_nothing_to_inspect(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a has no model to inspect yet: leave out --inspect"):
        report([write_run(tmp_path / "a", FEW)], inspect=True)


def test_what_was_measured_of_other_weights_is_not_the_models(tmp_path: Path) -> None:
    """A run that went on after `vit eval --out RUN/evaluation` has another model."""
    run = write_run(tmp_path / "a", FEW, best={"metric": "test/accuracy", "value": 0.5, "step": 400})
    write_model(run / "model")
    weights = run / "model" / "model.safetensors"
    write_evaluation(run / "evaluation", weights_sha256=hashlib.sha256(weights.read_bytes()).hexdigest())
    assert accuracy_of(run) == Accuracy("accuracy", 0.75, measured_on="digits:test")
    found = report([run], out=tmp_path / "before")
    assert (found.runs[0].measured.metrics["accuracy"], found.left_out) == (0.75, [])
    weights.write_bytes(weights.read_bytes()[:-4] + b"else")
    assert accuracy_of(run) == Accuracy("test/accuracy", 0.5, step=400)
    found = report([run], out=tmp_path / "after")
    assert found.runs[0].measured is None and "mistakes" not in read(found.html).text
    assert found.left_out == [
        f"{run / 'evaluation'} is of other weights or images than {run / 'model'} has now: repeat vit eval"
    ]
    results = run / "evaluation" / "results.json"
    sizes = {"accuracy": 0.75, "data": "digits:test", "image_size": [512, 512]}
    results.write_text(json.dumps(sizes))
    assert accuracy_of(run) == Accuracy("test/accuracy", 0.5, step=400)
    results.write_text("{}")
    assert report([run], out=tmp_path / "empty").left_out == []


def test_the_rate_that_was_taken_is_stressed(tmp_path: Path) -> None:
    """Of equals it is the middle one."""
    tried = [{"learning_rate": rate, "accuracy": 0.8} for rate in (0.001, 0.003, 0.01)]
    path = write_finetuning(
        tmp_path / "fine", 1, sweep_results=tried, metric="mean_average_precision", mean_average_precision=0.8
    )
    text = Path(report([path], out=tmp_path / "out").html).read_text()
    assert re.findall(r'<tr class="best">.*?(0\.\d+)', text) == ["0.003"]
    assert "Mean average precision on the dev split" in text


def test_the_accuracy_of_what_is_no_run_is_unknown(tmp_path: Path) -> None:
    assert accuracy_of("B/16") is None
    assert accuracy_of(tmp_path) is None
    assert accuracy_of(write_run(tmp_path / "a", FEW, best=None)) is None
    assert accuracy_of(f"{tmp_path / 'a'}@last") is None


def test_the_accuracy_of_the_last_weights_is_the_runs_own_metric(tmp_path: Path) -> None:
    lines = [
        {"step": 100, "knn_20/accuracy": 0.9},
        {"step": 200, "test/accuracy": 0.5, "test_ema/accuracy": 0.7},
        {"step": 400, "test/accuracy": 0.4, "test_ema/accuracy": 0.6},
        {"step": 400, "loss": 1.0},
        {"step": 450, "knn_20/accuracy": 0.95},
    ]
    best = {"metric": "test_ema/accuracy", "value": 0.7, "step": 200}
    run = write_run(tmp_path / "a", lines, best=best)
    assert accuracy_of(run) == Accuracy("test_ema/accuracy", 0.7, step=200)
    assert accuracy_of(f"{run}@last") == Accuracy("test/accuracy", 0.4, step=400)
    kept = write_run(
        tmp_path / "c", lines, {"select": "last"}, best=best
    )  # model/ has the last weights, averaged
    assert accuracy_of(kept) == Accuracy("test_ema/accuracy", 0.6, step=400)
    unlabelled = write_run(tmp_path / "b", lines[:1], best=None)
    assert accuracy_of(f"{unlabelled}@last") is None


def test_pictures_of_a_run_without_labels_are_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", FEW)
    (run / "pictures").mkdir()
    for step in (2, 400):
        (run / "pictures" / f"{step:08d}.png").write_bytes(png("red"))
    (run / "pictures" / "notes.png").write_bytes(b"no picture")
    page = read(report([run]).html)
    assert "Step 2: an image, what the model sees of it" in page.text and "Step 400: an image" in page.text
    assert len(page.images) == 2


@pytest.mark.slow
def test_photos_have_the_names_that_an_inspection_gives_them(tmp_path: Path) -> None:
    """With their folders, whichever are drawn: the report's three are of one class here."""
    for kind, count in (("sand", 9), ("sea", 1)):
        (tmp_path / "data" / "test" / kind).mkdir(parents=True)
        for number in range(count):
            image = png(f"rgb({number}, 0, 0)" if kind == "sand" else "blue")
            (tmp_path / "data" / "test" / kind / f"{number:03d}.png").write_bytes(image)
    data = f"{tmp_path / 'data'}:test"
    run = write_run(tmp_path / "a", FEW, config={"data": {"evaluate": data}})
    write_model(run / "model")
    reported = report([run], inspect=True, device="cpu")
    inspected = inspect_model(run, data, out=tmp_path / "out", device="cpu", num_photos=10)
    names, others = (
        re.findall("<article><h3>(.*?)</h3>", Path(result.html).read_text(encoding="utf-8"))
        for result in (reported, inspected)
    )
    assert names == ["sand/000.png", "sand/003.png", "sand/006.png"]
    assert others == [*(f"sand/{number:03d}.png" for number in range(9)), "sea/000.png"]
