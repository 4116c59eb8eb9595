"""What a fine-tuning will do: the paper's table, BiT-HyperRule, and what is refused before any compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitkit
from vitkit.data.open import open_data
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.sources.folder import open_folder
from vitkit.data.sources.source import Source
from vitkit.data.spec import DataSpec
from vitkit.errors import InputError
from vitkit.evaluation.features import load_frozen
from vitkit.models.configs import Preprocessing, write_size
from vitkit.models.names import model_config
from vitkit.notes import kind_of
from vitkit.training.build import build_model, resolve_periods
from vitkit.training.schedules import build_schedule
from vitkit.transfer.plan import TrainDev, cut_train, make_plan
from vitkit.transfer.protocols import PAPER, fitting_size, hyper_rule, in_proportion

TINY = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 16, "patch": 4, "image_size": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    vitkit.save(vitkit.create_model("Ti/16", num_classes=3, dropout=0.1, **TINY), folder)
    return str(folder)


@pytest.mark.parametrize(
    ("name", "steps", "grid", "dev"),
    [
        ("imagenet", 20_000, (0.003, 0.01, 0.03, 0.06), 1),
        ("cifar10", 10_000, (0.001, 0.003, 0.01, 0.03), 2),
        ("cifar100", 10_000, (0.001, 0.003, 0.01, 0.03), 2),
        ("pets", 500, (0.001, 0.003, 0.01, 0.03), 10),
        ("flowers102", 500, (0.001, 0.003, 0.01, 0.03), 10),
    ],
)
def test_the_papers_table_4(name: str, steps: int, grid: tuple[float, ...], dev: int) -> None:
    rule = PAPER[name]
    assert (rule.steps, rule.grid, rule.dev_percent, rule.image_size) == (steps, grid, dev, 384)


@pytest.mark.parametrize(
    ("images", "steps", "warmup"),
    [
        (1_000, 500, 100),
        (19_999, 500, 100),
        (20_000, 10_000, 500),
        (499_999, 10_000, 500),
        (500_000, 20_000, 500),
    ],
)
def test_hyper_rule_goes_by_the_number_of_images(images: int, steps: int, warmup: int) -> None:
    rule = hyper_rule(images, 300 * 300)
    assert (rule.steps, rule.warmup, rule.image_size) == (steps, warmup, 384)


@pytest.mark.parametrize(("side", "size"), [(32, 128), (95, 128), (96, 384), (500, 384)])
def test_hyper_rule_goes_by_the_size_of_images(side: int, size: int) -> None:
    assert hyper_rule(1_000, side * side).image_size == size


def test_a_size_fits_the_patch() -> None:
    assert fitting_size(model_config("B/16"), 384) == (384, 384)
    assert fitting_size(model_config("H/14"), 384) == (378, 378)
    assert fitting_size(model_config("R50+B/16"), (384, 200)) == (384, 192)
    assert fitting_size(model_config("BiT-R50x1"), 384) == (384, 384)


@pytest.mark.parametrize(
    ("name", "size", "side", "fitting"),
    [
        *[(name, 224, 384, (384, 384)) for name in ("B/16", "BiT-R50x1")],
        ("H/14", 224, 384, (378, 378)),
        ("B/16", (160, 320), 384, (272, 544)),
        ("Ti/16", (384, 96), 128, (256, 64)),
    ],
)
def test_another_resolution_keeps_proportions_and_pixels(
    name: str, size: int | tuple[int, int], side: int, fitting: tuple[int, int]
) -> None:
    assert in_proportion(model_config(name, image_size=size), side) == fitting


@pytest.mark.parametrize(
    ("changes", "size", "departures"),
    [
        (["protocol=quick"], (8, 16), ()),
        (["protocol=quick", "image_size=16x8"], (16, 8), ("image_size=16x8",)),
        (["protocol=quick", "image_size=[4,8]"], (4, 8), ("image_size=4x8",)),
        (["protocol=quick", "image_size=8"], (8, 8), ("image_size=8",)),
        (["protocol=paper"], (92, 180), ()),
    ],
)
def test_a_model_that_is_not_square_keeps_its_proportions(
    tmp_path: Path, changes: list[str], size: tuple[int, int], departures: tuple[str, ...]
) -> None:
    wide = {**TINY, "image_size": (8, 16)}
    vitkit.save(vitkit.create_model("Ti/16", num_classes=3, **wide), tmp_path / "wide")
    plan = make_plan(str(tmp_path / "wide"), "digits", [*changes, "duration=10"], "cpu")
    assert parse_pipeline(plan.config(plan.whole).data.pipeline).size == size
    assert plan.departures == (*departures, "duration=10")
    assert f", {write_size(size)} px" in plan.notes[-1]


def test_the_papers_protocol(model: str) -> None:
    plan = make_plan(model, "digits", ["protocol=paper", "image_size=8"], "cpu")
    config = plan.config(plan.whole)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.weight_decay, optimizer.clip_norm) == (
        "sgd",
        0.9,
        0,
        1,
    )
    assert (config.batch_size, config.micro_batch, config.duration, config.schedule.warmup) == (
        512,
        32,
        500,
        100,
    )
    assert (config.data.train, config.data.evaluate) == ("digits:train", "digits:test")
    assert (config.select, config.average, config.model["dropout"]) == ("last", None, 0.0)
    assert plan.notes[-1] == (
        "protocol paper, BiT-HyperRule for 1,157 images: 500 steps, warm-up 100, batch 512, learning rate 0.01 without the paper's sweep, 8 px; "
        "changed: image_size=8"
    )


def test_learning_rates_of_the_papers_schedule(model: str) -> None:
    changes = ["protocol=paper", "image_size=8", "duration=10000", "schedule.warmup=500"]
    config = make_plan(model, "digits", [*changes, "optimizer.learning_rate=0.03"], "cpu").config(
        TrainDev(open_data("digits:train"))
    )
    periods = resolve_periods(config, 1157)
    rate = build_schedule(config.schedule, 0.03, periods.total, periods.per_epoch)
    found = [rate(step) for step in (0, 250, 500, 2875, 5250, 10_000)]
    assert found == pytest.approx([0, 0.015, 0.03, 0.025607, 0.015, 0], abs=1e-6)  # computed by hand


def test_classes_that_test_lacks_are_named(model: str, tmp_path: Path) -> None:
    folder_of_photos(tmp_path / "train", cat=4, cow=4, dog=4)
    folder_of_photos(tmp_path / "test", cat=2, dog=2)
    notes = make_plan(model, str(tmp_path), ["protocol=paper", "image_size=8"], "cpu").notes
    [note] = [note for note in notes if "cow" in note and kind_of(note) == "warning"]
    assert note == f"{tmp_path}:test has no image of cow, so the result doesn't cover this class"
    folder_of_photos(tmp_path / "train", ant=4)
    notes = make_plan(model, str(tmp_path), ["protocol=paper", "image_size=8"], "cpu").notes
    assert f"{tmp_path}:test has no image of ant, cow, so the result doesn't cover these classes" in notes


@pytest.mark.parametrize(
    ("name", "advice"),
    [("Ti/16", "; Ti/16@pretrained starts from public ones"), ("Ti/17", ""), ("mu/16", "")],
)
def test_a_model_without_trained_weights_is_a_warning(name: str, advice: str) -> None:
    plan = make_plan(name, "digits:train", ["minutes=1"], "cpu")
    [warning] = [note for note in plan.start_notes if str(note).startswith(name)]
    assert warning == f"{name} has no trained weights, so training starts from scratch{advice}"
    assert kind_of(warning) == "warning"


def test_graphs_take_whole_batches(model: str) -> None:
    changes = ["protocol=paper", "compile=graphs", "image_size=32"]
    plan = make_plan(model, "digits", changes, "cpu")
    assert plan.config(plan.whole).micro_batch is None


def test_a_quick_run_chooses_by_val_and_reports_on_test(model: str) -> None:
    plan = make_plan(model, "digits", ["protocol=quick"], "cpu")
    assert (names(plan.whole), plan.test) == (("digits:train", "digits:val"), "digits:test")
    assert plan.head_first and not plan.has_duration
    named = make_plan(model, "digits", ["protocol=quick", "data.evaluate=digits:val"], "cpu")
    assert named.test == "digits:val"
    assert names(named.whole) == ("digits:train[:90%,seed=0]", "digits:train[90%:,seed=0]")


def names(data: TrainDev) -> tuple[str, str | None]:
    return data.train.data_name, None if data.dev is None else data.dev.data_name


def test_train_is_cut_by_class() -> None:
    parts = cut_train(open_data("digits:train"), 2)
    assert names(parts) == ("digits:train[:98%,seed=0]", "digits:train[98%:,seed=0]")
    for part in (parts.train, parts.dev):
        assert part is not None
        same = open_data(part.data_name)
        assert np.array_equal(part.images, same.images) and np.array_equal(part.labels, same.labels)


def folder_of_photos(root: Path, **classes: int) -> str:
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.random.default_rng([number, *name.encode()]).integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{name}{number}.png")
    return str(root)


def test_the_splits_of_a_folder_are_listed_once(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def opening(path: str, spec: DataSpec, *arguments: Any) -> Source:
        opened.append(spec.split or "")
        return open_folder(path, spec, *arguments)

    monkeypatch.setattr("vitkit.data.sources.folder.open_folder", opening)
    make_plan(model, folder_of_photos(tmp_path, ant=20, bee=20), ["minutes=1", "image_size=8"], "cpu")
    assert opened.count("all") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["protocol=papre"], "protocol in the changes is 'papre'; expected one of 'auto', 'paper', 'quick'"),
        (
            ["protocol=paper", "minutes=3"],
            "minutes is a setting of protocol=quick; with protocol=paper, give duration",
        ),
        (["minutes=0"], "minutes must be above 0, not 0"),
        (["data.train=digits"], "data.train is the argument DATA of finetune: leave it out here"),
        (["optimiser.name=sgd"], "unknown setting 'optimiser.name'; did you mean 'optimizer'?"),
        (["protocl=paper"], "unknown setting 'protocl'; did you mean 'protocol'?"),
        (
            ["data.evaluate=digits:train"],
            "1,157 images of digits:train would be both trained and measured on",
        ),
        (["data.evaluate=digits:training"], "1,157 images of digits:training would be both trained"),
        (["data.evaluate=digits:all"], "1,157 images of digits:all would be both trained"),
        (["data=foo"], "data is a section: change its settings one by one, as in data.workers=4"),
        (["model={name: Ti/16}"], "model is a section: change its settings one by one"),
        (["protocol=paper", "select=best"], "select=best has only the images of"),
        (["protocol=paper", "duration=4", "schedule.warmup=5"], "warmup and cooldown take 5 and 0 steps"),
        (["image_size=9"], "image_size 9 is not a multiple of the model's patch; 8 is"),
        (["image_size=8x15"], "image_size 8x15 is not a multiple of the model's patch; 8x16 is"),
        (["image_size=8x0"], "image_size must be at least 1, not 0"),
        (["image_size=8x"], "image_size in the changes is '8x'; expected a whole number or HEIGHTxWIDTH"),
        (["batch_size=0"], "batch_size must be at least 1, not 0"),
        (
            ["image_size=8", "data.pipeline=resize(20)|random_crop(16)"],
            "images are to be 8 pixels, but data.pipeline makes them 16x16: change that, or give image_size=16",
        ),
    ],
)
def test_bad_changes_are_refused(model: str, changes: list[str], message: str) -> None:
    with pytest.raises(InputError) as raised:
        make_plan(model, "digits", changes, "cpu")
    assert str(raised.value).startswith(message)


def test_classes_that_train_lacks_are_told_before_anything_is_computed(model: str) -> None:
    few = make_plan(model, "digits:train[:4]", ["protocol=paper", "image_size=8"], "cpu")
    [warning] = [note for note in few.notes if kind_of(note) == "warning" and "predicted as other" in note]
    missing = sorted(set(map(str, range(10))) - set(map(str, vitkit.open_data("digits:train[:4]").labels)))
    assert warning == (
        f"digits:train[:4] has no image of {', '.join(missing[:5])} and {len(missing) - 5} more: "
        "those in digits:test will be predicted as other classes"
    )


def test_a_test_set_with_unknown_classes_is_refused(model: str, tmp_path: Path) -> None:
    folder_of_photos(tmp_path / "train", cat=3, dog=3)
    folder_of_photos(tmp_path / "test", cat=2, eel=2)
    with pytest.raises(InputError, match="eel"):
        make_plan(model, str(tmp_path), ["protocol=quick"], "cpu")


@pytest.mark.parametrize("data", ["digits:test[:50%]", "digits:all", "digits:test[5shot]", "digits:training"])
def test_images_are_never_learned_from_and_reported_on(model: str, data: str) -> None:
    evaluate = [] if "training" not in data else ["data.evaluate=digits:train[:10]"]
    with pytest.raises(InputError, match="would be both trained and measured on"):
        make_plan(model, data, evaluate, "cpu")


@pytest.mark.parametrize("other", ["digits:validation", "digits:dev", "digits:val[:50]"])
def test_what_is_reported_on_is_not_chosen_by(model: str, other: str) -> None:
    plan = make_plan(model, "digits", ["protocol=quick", f"data.evaluate={other}"], "cpu")
    assert names(plan.whole) == ("digits:train[:90%,seed=0]", "digits:train[90%:,seed=0]")


def test_without_images_to_choose_by_the_last_weights_are_kept(model: str) -> None:
    plan = make_plan(
        model, "digits:train[5shot]", ["protocol=quick", "duration=3", "data.evaluate=digits:val"], "cpu"
    )
    assert plan.whole.dev is None
    assert plan.config(plan.whole).select == "last"


def test_a_sweep_of_a_quick_run_chooses_on_a_part_and_then_takes_all(model: str) -> None:
    dev = cut_train(open_data("digits:train"), 10)
    plan = make_plan(model, "digits", ["protocol=quick", "data.evaluate=digits:val"], "cpu", sweep=True)
    assert (names(plan.whole), names(plan.tuning)) == (("digits:train", None), names(dev))
    assert plan.config(dev, duration=3).select == "last"  # what the last run will keep
    plan = make_plan(model, "digits", ["protocol=quick"], "cpu", sweep=True)
    assert (names(plan.whole), names(plan.tuning)) == (("digits:train", "digits:val"), names(dev))
    assert plan.config(dev, duration=3).select == "best"


def test_a_dev_split_that_says_little_is_told(model: str, tmp_path: Path) -> None:
    folder_of_photos(tmp_path / "train", cat=1, dog=1)
    folder_of_photos(tmp_path / "test", cat=2, dog=2)
    changes = ["protocol=paper", "image_size=8"]
    notes = make_plan(model, str(tmp_path), changes, "cpu", sweep=True).notes
    dev = f"{tmp_path}:train[90%:,seed=0]"
    few = f"few images to measure on: 4 in {tmp_path}:test, 1 in {dev}; one mistake is 100.0%"
    assert [kind_of(note) for note in notes if note == few] == ["warning"]
    [unlearned] = [note for note in notes if f"those in {dev} will be predicted as other classes" in note]
    assert kind_of(unlearned) == "warning"
    assert not any(dev in note for note in make_plan(model, str(tmp_path), changes, "cpu").notes)
    changes = ["protocol=quick", "head_first=false", f"data.evaluate={tmp_path}:test"]
    notes = make_plan(model, str(tmp_path), changes, "cpu").notes  # it chooses by the same image
    assert few in notes


def test_too_few_images_for_a_head_are_told_before_anything_is_computed(model: str, tmp_path: Path) -> None:
    photos = folder_of_photos(tmp_path, cat=3, dog=3)  # one each to learn, to choose by and to report on
    with pytest.raises(InputError) as raised:
        make_plan(model, photos, ["protocol=quick"], "cpu")
    assert str(raised.value) == (
        f"no class of {photos}:train has two images, which fitting a head needs: add images, or set head_first=false"
    )
    assert not make_plan(model, photos, ["protocol=quick", "head_first=false"], "cpu").head_first


def test_changes_that_make_another_protocol_are_named(model: str) -> None:
    changes = [
        "protocol=paper",
        "image_size=8",
        "optimizer.name=adamw",
        "optimizer.momentum=0.9",
        "duration=50",
    ]
    plan = make_plan(model, "digits", [*changes, "data.workers=0", "seed=2"], "cpu")
    assert plan.departures == (
        "image_size=8",
        "optimizer.name=adamw",
        "optimizer.momentum=0.9",
        "duration=50",
    )
    assert plan.config(plan.whole).schedule.warmup == "20%"  # as 100 of 500 steps


def test_another_normalisation_than_the_weights_is_told(model: str) -> None:
    stored = make_plan(model, "digits", ["protocol=paper", "preprocessing.mean=[0.5,0.5,0.5]"], "cpu")
    other = make_plan(model, "digits", ["protocol=paper", "preprocessing.mean=[0.1,0.2,0.1]"], "cpu")
    line = "preprocessing.mean is 0.1, 0.2; the weights were trained with 0.5"
    assert line in other.notes and line not in stored.notes


def test_data_without_a_split_to_report_on_says_what_to_name(model: str, tmp_path: Path) -> None:
    folder_of_photos(tmp_path / "train", cat=3, dog=3)
    with pytest.raises(InputError, match=r"name them with data.evaluate=DATA \(evaluate= in Python\)$"):
        make_plan(model, str(tmp_path), ["protocol=quick"], "cpu")


def test_one_class_is_refused(model: str, tmp_path: Path) -> None:
    folder_of_photos(tmp_path / "train", cat=3)
    folder_of_photos(tmp_path / "test", cat=3)
    with pytest.raises(InputError, match="only has images of one class"):
        make_plan(model, str(tmp_path), ["protocol=quick"], "cpu")


def test_an_image_that_cannot_be_read_is_no_error_of_the_plan(model: str, tmp_path: Path) -> None:
    for number in range(40):
        folder = tmp_path / "photos" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (6 * number, 0, 0)).save(folder / f"{number}.png")
    data = f"{tmp_path / 'photos'}:train"
    Path(open_data(data).where(0)).write_bytes(b"no image")
    plan = make_plan(model, data, ["protocol=quick"], "cpu")
    assert plan.head_first and not plan.departures


def test_a_size_of_its_own_that_patches_do_not_fill_is_kept(tmp_path: Path) -> None:
    odd = vitkit.create_model("Ti/16", num_classes=0, **{**TINY, "image_size": 10})
    vitkit.save(odd, tmp_path / "odd")
    plan = make_plan(str(tmp_path / "odd"), "digits", ["protocol=quick", "duration=4"], "cpu")
    assert parse_pipeline(plan.config(plan.whole).data.pipeline).size == (10, 10)


@pytest.mark.parametrize("name", ["CCT-2/3x2", "CVT-6/4", "ViT-Lite-6/4"])
def test_the_papers_protocol_of_compact_transformers(name: str, tmp_path: Path) -> None:
    """A new head of zeros, and neither dropout nor stochastic depth: nothing departs from the paper."""
    vitkit.save(vitkit.create_model(name, num_classes=3, depth=1, width=16, heads=2), tmp_path / "model")
    plan = make_plan(str(tmp_path / "model"), "digits", ["protocol=paper"], "cpu")
    model, _, _ = build_model(plan.config(plan.whole), tuple("ab"))
    assert not any(getattr(model.config, rate) for rate in ("attention_dropout", "stochastic_depth"))
    assert not model.get_parameter("classifier.fc.weight").any()
    assert plan.departures == ()


def test_a_new_head_starts_without_the_bias_of_pre_training(tmp_path: Path) -> None:
    vitkit.save(vitkit.create_model("Ti/16", num_classes=3, head_bias=-10.0, **TINY), tmp_path / "model")
    plan = make_plan(str(tmp_path / "model"), "digits", ["protocol=paper"], "cpu")
    model, _, _ = build_model(plan.config(plan.whole), tuple("ab"))
    assert not model.get_parameter("head.bias").any()
    asked = make_plan(str(tmp_path / "model"), "digits", ["protocol=paper", "model.head_bias=-2"], "cpu")
    model, _, _ = build_model(asked.config(asked.whole), tuple("ab"))
    assert set(model.get_parameter("head.bias").tolist()) == {-2.0}


def test_a_model_of_other_channels_is_refused_in_one_line(tmp_path: Path) -> None:
    model = vitkit.create_model("Ti/16", num_classes=3, channels=1, **TINY)
    vitkit.save(model, tmp_path / "grey", preprocessing=Preprocessing(mean=(0.5,), std=(0.5,), image_size=8))
    message = rf"^{tmp_path}/grey takes 1-channel images; data has 3 channels \(RGB\)$"
    with pytest.raises(InputError, match=message):
        make_plan(str(tmp_path / "grey"), "digits", [], "cpu")
    with pytest.raises(InputError, match=message):
        load_frozen(str(tmp_path / "grey"), "cpu", None)
