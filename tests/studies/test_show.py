"""What a study's figures and tables hold, number by number; the page itself is opened in test_study_page.py."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reports.pages import read
from tests.studies.finished import SIZES, TEXT, write_run, write_study
from vitkit import show_study
from vitkit.errors import InputError
from vitkit.figures.chart import as_csv
from vitkit.studies.charts import draw, table_of
from vitkit.studies.config import StudyRun, read_study
from vitkit.studies.records import Measured
from vitkit.studies.results import StudyRow, collect, means_of, measures_of

MEASURE = "CIFAR-10 5-shot"
A, B, C = 0.2, 0.5, 0.05


def law(run: StudyRun, exaflops: float) -> float:
    """Return the error of a run: the ViTs' follows a law, the ResNets' is twice as high; the larger, the better."""
    seed = 0.002 * (int(run.labels["seed"]) - 0.5)
    return (A * exaflops**-B + C) * (2 if run.labels["model"] == "ResNet" else 1) * 0.5 + seed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("study")
    (root / "mine.yaml").write_text(TEXT)
    write_study(read_study(root / "mine.yaml"), root / "runs" / "mine", law)
    return root


@pytest.fixture
def study(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the study, in which a test may change things."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.yaml"


@pytest.fixture
def rows(folder: Path) -> list[StudyRow]:
    found, unfinished = collect(read_study(folder / "mine.yaml"), folder / "runs" / "mine")
    assert unfinished == []
    return found


def config_of(folder: Path) -> Any:
    return read_study(folder / "mine.yaml").config


def test_rows_are_what_runs_recorded(rows: list[StudyRow]) -> None:
    assert len(rows) == 48
    row = rows[0]
    assert (row.name, row.model, row.groups) == ("ViT_S_duration-100_seed-0", "Ti/16", ("ViT",))
    assert (row.images, row.seen, row.exaflops, row.parameters) == (1000, 100 * 128, 0.1, 1000)
    assert (row.device_hours, row.images_per_second) == (0.01, 500.0)
    assert measures_of(rows) == [MEASURE, "CIFAR-100 fine-tuning"]


def test_means_are_over_seeds_with_their_deviation(rows: list[StudyRow]) -> None:
    means = means_of(rows, MEASURE)
    assert len(means) == 24
    assert (means[0].labels, means[0].runs) == ({"model": "ViT", "size": "S", "duration": "100"}, 2)
    assert means[0].accuracy == pytest.approx(1 - 0.5 * (A * 0.1**-B + C))
    assert means[0].spread == pytest.approx(0.002 / np.sqrt(2))


def test_compute_has_a_series_for_each_group(folder: Path, rows: list[StudyRow]) -> None:
    charts, _ = draw(config_of(folder), rows, MEASURE)
    chart = next(chart for chart in charts if chart.file == "compute")
    assert [(series.name, series.look, len(series.spots)) for series in chart.series] == [
        ("ViT", "points", 12),
        ("ResNet", "points", 12),
    ]
    spot = chart.series[0].spots[-1]
    assert (spot.x, spot.name, spot.runs) == (12.8, "ViT, L, 800", 2)
    assert spot.y == pytest.approx(1 - 0.5 * (A * 12.8**-B + C))


def test_laws_are_those_of_the_points(folder: Path, rows: list[StudyRow]) -> None:
    charts, laws = draw(config_of(folder), rows, MEASURE, at=100.0)
    found = next(law for law in laws if (law.of, law.group) == ("compute", "ViT"))
    assert (found.b, found.c) == (pytest.approx(B, rel=0.02), pytest.approx(C / 2, rel=0.02))
    assert (found.at, found.predicted) == (100.0, pytest.approx(0.5 * (A * 100**-B + C), rel=0.01))
    assert found.low <= found.predicted <= found.high
    everything = next(law for law in laws if (law.of, law.group) == ("compute", "all"))
    assert everything.b == pytest.approx(found.b, rel=1e-3)  # ViTs are the frontier
    chart = next(chart for chart in charts if chart.file == "laws-compute")
    looks = [(series.look, series.name.partition(":")[0]) for series in chart.series]
    assert looks[:3] == [("points", "ViT"), ("curve", "ViT"), ("level", "ViT saturates at 2.50%")]
    curve = chart.series[1]
    assert curve.spots[0].x == 0.1 and curve.spots[-1].x == 100.0
    assert curve.color == chart.series[0].color


def test_a_law_that_points_cannot_determine_is_a_note(folder: Path, rows: list[StudyRow]) -> None:
    few = [row for row in rows if row.labels["size"] == "S" and row.labels["duration"] in ("100", "800")]
    charts, laws = draw(config_of(folder), few, MEASURE)
    assert laws == []
    [chart] = [chart for chart in charts if chart.file == "laws-compute"]
    assert chart.notes[0].startswith("ViT: no law: 2 points of different compute can't determine a, b")
    assert {series.look for series in chart.series} == {"points"}


def test_images_seen_to_an_error_lie_between_durations(folder: Path, rows: list[StudyRow]) -> None:
    [chart] = [chart for chart in draw(config_of(folder), rows, MEASURE)[0] if chart.file == "images"]
    assert chart.series and all(
        spot.x in {1000.0 * size for size in SIZES.values()} for one in chart.series for spot in one.spots
    )
    series = next(one for one in chart.series if one.name.startswith("ViT"))
    level = float(series.name.split()[-1].rstrip("%")) / 100
    for spot in series.spots:
        exact = ((level / 0.5 - C) / A) ** (-1 / B) / (spot.x / 1000) * 1000 * 128
        assert spot.y == pytest.approx(exact, rel=0.05)


def test_data_has_a_line_for_each_model(tmp_path: Path) -> None:
    path = tmp_path / "sets.yaml"
    path.write_text(
        "# Sets.\nrecipe: digits\nfigures: [data]\ngrid:\n  seed: [0]\n  model: {small: {}, large: {model.width: 128}}\n"
        "  set: {part: {data.train: './a'}, whole: {data.train: './b'}}\n"
        "measure: [{by: knn, data: digits}]\ndata_images: 10\nsettings: {duration: 10}\n"
    )
    found = read_study(path)
    for place, run in enumerate(found.runs):
        images = 100 if run.labels["set"] == "part" else 1000
        measures = found.config.measure
        write_run(
            tmp_path / run.name, run, measures, (0.5 + place / 10,), exaflops=1, parameters=1, images=images
        )
    rows, _ = collect(found, tmp_path)
    [chart], _ = draw(found.config, rows, "digits kNN")
    assert [(one.name, [(spot.x, spot.y) for spot in one.spots]) for one in chart.series] == [
        ("small", [(100.0, 0.5), (1000.0, 0.6)]),
        ("large", [(100.0, 0.7), (1000.0, 0.8)]),
    ]
    assert rows[0].groups == ("ViT",)  # of the model, as the study names none


def test_the_papers_points_come_on_request(folder: Path, rows: list[StudyRow]) -> None:
    charts, _ = draw(config_of(folder), rows, MEASURE, with_paper=True)
    compute = next(chart for chart in charts if chart.file == "compute")
    published = {series.name: series.spots for series in compute.series if series.look == "published"}
    assert {name: len(spots) for name, spots in published.items()} == {
        "ViT, paper": 6,
        "ResNet, paper": 7,
        "Hybrid, paper": 5,
    }
    assert (published["ViT, paper"][-1].x, published["ViT, paper"][-1].y) == (
        4262.0,
        0.9950,
    )  # CIFAR-10 of H/14
    assert compute.notes == ("Hollow: table 6 of the ViT paper, CIFAR-10.",)
    laws = next(chart for chart in charts if chart.file == "laws-compute")
    assert min(
        spot.y for one in laws.series if one.look == "published" for spot in one.spots
    ) == pytest.approx(0.005)


def test_there_is_no_overlay_of_what_the_paper_did_not_measure(folder: Path, rows: list[StudyRow]) -> None:
    config = replace(config_of(folder), figures=("compute", "laws", "data"))

    def published(measure: str, shown: list[StudyRow]) -> dict[str, int]:
        charts, _ = draw(config, shown, measure, with_paper=True)
        return {chart.file: sum(one.look == "published" for one in chart.series) for chart in charts}

    # Figure 4 is of few-shot accuracy on ImageNet, table 5 of fine-tuning: the measure that is drawn decides.
    assert published(MEASURE, rows) == {"compute": 3, "laws-compute": 3, "laws-parameters": 0, "data": 0}
    assert published("CIFAR-100 fine-tuning", rows)["data"] == 5
    other = [replace(row, measured=(Measured("digits kNN", 0.5, None, 1.0),)) for row in rows]
    assert set(published("digits kNN", other).values()) == {0}


def test_images_seen_are_of_the_most_images(folder: Path, rows: list[StudyRow]) -> None:
    few = [
        replace(
            row,
            images=100,
            measured=(Measured(MEASURE, 0.2, None, 1.0), *row.measured[1:]),
            labels=row.labels | {"images": "100"},
        )
        for row in rows
    ]
    [whole], [mixed] = (
        [chart for chart in draw(config_of(folder), each, MEASURE)[0] if chart.file == "images"]
        for each in (rows, [*few, *rows])
    )
    assert mixed.series == whole.series


def test_points_of_laws_have_names(folder: Path, rows: list[StudyRow]) -> None:
    chart = next(chart for chart in draw(config_of(folder), rows, MEASURE)[0] if chart.file == "laws-compute")
    assert "ViT, L, 800" in as_csv(chart)


def test_tables_have_rows_and_columns_of_two_axes(rows: list[StudyRow]) -> None:
    means = means_of(rows, MEASURE)
    table = table_of(("duration",), means, MEASURE)
    assert (table.columns, [row[0] for row in table.rows]) == (
        ("duration", MEASURE),
        ["100", "200", "400", "800"],
    )
    one = [mean for mean in means if mean.labels["duration"] == "800"]
    two = table_of(("model", "size"), one, MEASURE)
    assert two.columns == ("model", "S", "M", "L")
    best = 1 - 0.5 * (A * 12.8**-B + C)
    assert two.rows[0][-1] == f"{best:.2%} ± {0.002 / np.sqrt(2):.2%}"


def test_table_8_next_to_ours() -> None:
    from vitkit.studies import paper

    assert paper.cell("learned", "every_layer", "imagenet 5-shot") == 0.63964
    assert paper.cell("learned", "every_layer", "cifar10 5-shot") is None
    assert paper.cell("learned", "every_layer", "x") is None and paper.column_of("x") is None
    assert paper.cell("R50", "sgd", "CIFAR-100 fine-tuning") == 0.8517
    assert paper.cell("other", "sgd", "CIFAR-100") is None
    assert paper.column_of("./cifar100 fine-tuning") == "CIFAR-100"
    assert paper.data_points("CIFAR-10", is_fewshot=False)["H/14"] == [
        (14_197_087.0, pytest.approx(0.9927)),
        (303_000_000.0, pytest.approx(0.995)),
    ]
    assert paper.data_points("ImageNet", is_fewshot=True)["b/32"][0] == (9_000_000.0, 0.375)


def test_files_hold_the_numbers_that_are_drawn(study: Path, vit: Any) -> None:
    answer = vit("study", "show", "mine.yaml", "figures=[compute, images]", "--at", "100")
    assert answer.status == 0, answer.err
    target = Path("runs/mine/report")
    assert answer.out == f"{target / 'index.html'}\n"
    names = {path.name for path in target.iterdir()}
    kinds = ("compute", "images")
    assert names == {
        *("index.html", "runs.csv", "results.json", "table-model-size.csv", "table-duration.csv"),
        *(f"{name}.{ending}" for name in kinds for ending in ("png", "svg", "csv")),
    }
    with open(target / "runs.csv") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 48 and float(lines[0]["exaFLOPs"]) == 0.1
    found = read_study(study)
    rows, _ = collect(found, Path("runs/mine"))
    charts, _ = draw(found.config, rows, MEASURE, at=100.0)
    assert (target / "compute.csv").read_text() == as_csv(charts[0])
    document = json.loads((target / "results.json").read_text())
    assert document["exaflops"] == pytest.approx(sum(row.exaflops for row in rows))
    reader = read(str(target / "index.html"))
    assert "48 of 48" in reader.text and "ViT_L_duration-800_seed-1" in reader.text
    assert (target / "compute.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (target / "compute.svg").read_bytes()
    again = vit("study", "show", "mine.yaml", "figures=[]")
    assert again.err == f"error: {target / 'index.html'} exists; --force overwrites it\n"
    other = ("--force", "--measure", "CIFAR-100 fine-tuning", "--json")
    answer = vit("study", "show", "mine.yaml", "figures=[]", *other)
    assert json.loads(answer.out)["measure"] == "CIFAR-100 fine-tuning"


def test_the_command_says_what_its_laws_predict(study: Path, vit: Any) -> None:
    only_vits = ("grid.model={ViT: {group: ViT, model.name: Ti/16}}", "figures=[laws]")
    answer = vit("study", "show", "mine.yaml", *only_vits, "--at", "100")
    exact = 0.5 * (A * 100**-B + C)
    assert re.fullmatch(rf"ViT: error {exact:.2%} \(.*\) predicted at 100 EFLOPs\n", answer.err)
    names = {path.name for path in Path("runs/mine/report").iterdir()}
    assert {"laws-compute.csv", "laws-parameters.svg"} <= names


def test_a_prediction_is_kept_and_compared_with_the_run_that_comes_later(study: Path, vit: Any) -> None:
    # The largest ViT isn't run yet: its error is predicted from the others.
    found, later = read_study(study), Path("later")
    later.mkdir()
    for run in found.runs:
        if (run.labels["model"], run.labels["size"], run.labels["duration"]) == ("ViT", "L", "800"):
            shutil.move(Path("runs/mine", run.name), later / run.name)
    figures = ("figures=[laws]", "--force")
    answer = vit("study", "show", "mine.yaml", *figures, "--at", "12.8")
    assert answer.status == 0 and "ViT: error" in answer.err and "the predicted" not in answer.err
    kept = json.loads(Path("runs/mine/predictions.json").read_text())["predictions"]
    assert [one["group"] for one in kept] == ["ViT", "ResNet", "all"]
    for path in later.iterdir():
        shutil.move(path, Path("runs/mine", path.name))
    vit("study", "show", "mine.yaml", *figures, "--at", "12.8")  # now it is known, and isn't predicted again
    assert json.loads(Path("runs/mine/predictions.json").read_text())["predictions"] == kept
    report = show_study(study, ["figures=[laws]"], force=True)
    inside = {one.group: (one.run, one.is_inside) for one in report.predictions}
    assert inside == {"ViT": ("ViT, L, 800", True), "ResNet": ("", None), "all": ("ViT, L, 800", True)}
    assert report.predictions[0].error == pytest.approx(0.5 * (A * 12.8**-B + C))
    assert "Predictions" in read(report.html).text and "not run yet" in read(report.html).text
    answer = vit("study", "show", "mine.yaml", *figures)
    assert "ViT: ViT, L, 800 has error" in answer.err and ", inside the predicted" in answer.err


def test_groups_without_a_law_are_named(study: Path, vit: Any) -> None:
    changes = ("grid.duration=[100, 800]", "grid.size={S: {optimizer.weight_decay: 0.1}}", "tables=[]")
    answer = vit("study", "show", "mine.yaml", "figures=[laws]", *changes)
    assert "ViT: no law: 2 points of different compute can't determine a, b" in answer.err


def test_the_table_of_listed_runs_has_each_column_once(study: Path) -> None:
    text = TEXT.replace("grid:\n", "runs: [{name: a}]\ngrid:\n")
    study.write_text(text)
    for path in Path("runs/mine").iterdir():
        path.rename(path.with_name(f"a_{path.name}"))
    report = show_study(study, ["figures=[]"])
    columns = Path(report.html).with_name("runs.csv").read_text().splitlines()[0].split(",")
    assert len(set(columns)) == len(columns) and columns[:4] == ["run", "run label", "model label", "size"]


def test_what_is_not_finished_is_named(study: Path) -> None:
    found = read_study(study)
    shutil.rmtree(Path("runs/mine", found.runs[0].name))
    failed = Path("runs/mine", found.runs[1].name)
    record = json.loads((failed / "run.json").read_text())
    (failed / "run.json").write_text(
        json.dumps({**record, "status": "failed", "message": "loss is not finite"})
    )
    report = show_study(study, ["figures=[compute]"])
    assert [(state.name, state.status) for state in report.unfinished] == [
        (found.runs[0].name, "waiting"),
        (found.runs[1].name, "failed"),
    ]
    assert "loss is not finite" in read(report.html).text


def test_bad_input_is_one_line(study: Path) -> None:
    for options, message in [
        ({"measure": "CIFAR-10 5shot"}, "nothing finished was measured as 'CIFAR-10 5shot'; did you mean"),
        ({"at": 0.0}, "at must be above 0"),
        ({"run": "other"}, "no run of mine is finished in runs/other; start it with: vit study run "),
    ]:
        with pytest.raises(InputError) as error:
            show_study(study, **options)  # type: ignore[arg-type]
        assert str(error.value).startswith(message) and "\n" not in str(error.value)
