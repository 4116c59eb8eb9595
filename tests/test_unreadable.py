"""A folder of photos with a corrupt, an empty and a cut-off file stops no verb; too many of them do, unless allowed."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from vitkit.data.open import open_data
from vitkit.data.sources.source import Source
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule, Skipped, skipped_notes
from vitkit.errors import InputError
from vitkit.evaluation.run import evaluate
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.runs import read_metrics, read_record
from vitkit.transfer.finetune import finetune
from vitkit.transfer.vtab.run import vtab

Vit = Callable[..., Any]
TINY: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 16, "patch": 4, "image_size": 8}
CLASSES = ("cat", "dog", "owl")
BAD = ("./photos/train/cat/00.jpg", "./photos/train/dog/01.jpg", "./photos/test/owl/30.jpg")
RECIPE = """\
model: {name: Ti/16, image_size: 8, patch: 4, width: 16, depth: 1, heads: 2, mlp_width: 16}
data: {train: './photos:train', evaluate: './photos:test', pipeline: 'resize(8)', workers: 0}
duration: 8
batch_size: 16
optimizer: {learning_rate: 1e-3}
frozen: {evaluators: [fewshot, knn], shots: 2, neighbours: 3}
"""


def write_photo(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 100, (12, 10, 3))
    pixels[..., CLASSES.index(path.parent.name)] += 150
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=95)


@pytest.fixture(autouse=True)
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty-four photos of each class to learn from and twelve to measure on, of which three in all can't be read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    for place, name in enumerate(CLASSES):
        for number in range(36):
            split = "train" if number < 24 else "test"
            write_photo(Path("photos", split, name, f"{number:02}.jpg"), 100 * place + number)
    Path(BAD[0]).write_bytes(b"no image at all")
    Path(BAD[1]).write_bytes(b"")
    whole = Path(BAD[2]).read_bytes()
    Path(BAD[2]).write_bytes(whole[: len(whole) // 2])
    torch.manual_seed(0)
    model = vitkit.create_model("Ti/16", num_classes=3, **TINY)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    vitkit.save(model, "model", class_names=CLASSES, preprocessing=Preprocessing(8))
    Path("tiny.yaml").write_text(RECIPE)
    return Path("photos")


VERBS = {
    "train": ["train", "tiny.yaml", "--run", "run"],
    "finetune": [
        "finetune",
        "model",
        "./photos",
        "protocol=quick",
        "duration=4",
        "data.workers=0",
        "--run",
        "run",
    ],
    "finetune without a head first": [
        *("finetune", "model", "./photos", "protocol=paper", "image_size=8", "duration=6", "batch_size=16"),
        *("schedule.warmup=1", "data.workers=0", "--run", "run"),
    ],
    "eval": ["eval", "model", "./photos", "--out", "results"],
    "fewshot": ["fewshot", "model", "./photos", "--shots", "1,23", "--seeds", "2"],
    "knn": ["knn", "model", "./photos"],
    "probe": ["probe", "model", "./photos"],
    "pack": ["pack", "./photos", "packed"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_does_its_work_and_names_what_it_skipped_once(
    vit: Vit, verb: str, recwarn: pytest.WarningsRecorder
) -> None:
    command = [*VERBS[verb], "--json", *([] if verb == "pack" else ["--device", "cpu"])]
    answer = vit(*command)
    assert answer.status == 0, answer.err
    met = BAD[2:] if verb == "eval" else BAD
    said = [line for line in answer.err.splitlines() if "unreadable" in line or "can't be read" in line]
    of = "./photos:test" if verb == "eval" else "./photos"
    assert len(said) == 1 and said[0].startswith(f"warning: skipped {len(met)} unreadable image")
    assert f" of {of}: " in said[0] and said[0].endswith("; `vit data ./photos` lists them all")
    document = json.loads(answer.out)
    assert {entry["image"] for entry in document["unreadable"]} == {*met}
    assert all(said[0].count(image) == 1 for image in met) and not recwarn.list


CALLS: dict[str, Callable[..., Any]] = {
    "evaluate": lambda **more: vitkit.evaluate("model", "./photos", **more),
    "knn": lambda **more: vitkit.knn("model", "./photos", **more),
    "inspect_model": lambda **more: vitkit.inspect_model("model", "photos/test", force=True, **more),
    "predict": lambda **more: vitkit.predict("model", "photos", **more),
    "embed": lambda **more: vitkit.embed("model", "./photos:test", "features.parquet", force=True, **more),
    "pack": lambda **more: vitkit.pack("./photos", "packed", force=True, **more),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_say_it_too_unless_progress_is_off(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = CALLS[name]()
    said = capsys.readouterr().err.splitlines()
    assert [
        line
        for line in said
        if line.startswith(f"warning: skipped {len(result.unreadable)} unreadable image")
    ]
    assert all(line.startswith("warning: ") for line in said), said
    CALLS[name](progress=False)
    assert not capsys.readouterr().err


def test_the_words_say_which_and_why(vit: Vit) -> None:
    [said] = [line for line in vit("knn", "model", "./photos").err.splitlines() if "unreadable" in line]
    assert re.fullmatch(
        r"warning: skipped 3 unreadable images of ./photos: ./photos/train/cat/00.jpg \(it is not an image in a known format\), "
        r"./photos/train/dog/01.jpg \(it is empty\), ./photos/test/owl/30.jpg \(.*[Tt]runcated.*\); `vit data ./photos` "
        r"lists them all",
        said,
    )


def spoil(*images: str) -> None:
    for image in images:
        Path(image).write_bytes(b"")


def leave_only(image: str) -> None:
    """Remove all other images of its class."""
    for path in [*Path(image).parent.iterdir()]:
        if path != Path(image):
            path.unlink()


SLOW = {"finetune", "finetune without a head first"}


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        pytest.param(verb, kind, marks=pytest.mark.slow if verb in SLOW and kind == "class" else ())
        for verb in VERBS
        for kind in ("many", "class")
    ],
)
def test_too_many_are_an_error_and_a_flag_continues(vit: Vit, verb: str, kind: str) -> None:
    """Of what is measured 4 of 36, or of one class, of which all others were removed, the only image left."""
    if kind == "many":
        spoil(*(f"./photos/test/cat/{number}.jpg" for number in (24, 25, 26)))
        what = "4 of 36 images of ./photos:test can't be read"
    else:
        leave_only(BAD[2])
        what = "no image of class 'owl' of ./photos:test can be read"
    command = [*VERBS[verb], *([] if verb == "pack" else ["--device", "cpu"])]
    answer = vit(*command)
    is_training = "finetune" in command or "train" in command
    flag = "data.bad_images=any" if is_training else "--bad-images any (bad_images='any' in Python)"
    [line] = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert answer.status == 2 and line.startswith(f"error: {what}, so results would mislead: ./photos/test/")
    assert f"; repair these files, or continue without them: {flag}" in line
    allowed = ["data.bad_images=any"] if is_training else ["--bad-images", "any"]
    answer = vit(*command, *allowed)  # the same run, which resumes
    assert answer.status == 0, answer.err
    assert f"skipped {6 if kind == 'many' else 3} unreadable" in answer.err or verb == "eval"


@pytest.mark.parametrize("verb", ["train", "finetune", "probe", "fewshot"])
def test_a_class_that_nothing_can_be_learned_of_is_an_error(vit: Vit, verb: str) -> None:
    leave_only(BAD[1])
    command = [*VERBS[verb], *(["frozen.shots=1"] if verb == "train" else []), "--device", "cpu"]
    answer = vit(*("1" if word == "1,23" else word for word in command))
    assert answer.status == 2 and "error: no image of class 'dog' of ./photos:train can be read" in answer.err


@pytest.mark.parametrize("verb", ["eval", "knn", "probe", "fewshot", "pack"])
def test_the_first_can_be_an_error(vit: Vit, verb: str) -> None:
    answer = vit(*VERBS[verb], "--bad-images", "error")
    first = "./photos/test/owl/30.jpg" if verb == "eval" else "./photos/train/cat/00.jpg"
    assert answer.status == 2 and f"error: cannot read {first}: " in answer.err
    assert "--bad-images skip (bad_images='skip' in Python) skips unreadable images" in answer.err


def test_a_training_run_stops_at_the_first_if_asked(vit: Vit) -> None:
    answer = vit(*VERBS["train"], "data.bad_images=error", "--device", "cpu")
    assert answer.status == 2 and "error: cannot read ./photos/train/" in answer.err
    assert "; data.bad_images=skip skips unreadable images" in answer.err


def test_what_is_measured_belongs_to_the_images_that_were_read(vit: Vit) -> None:
    """As if the unreadable file were not there: numbers, classes, confusion and the pictures of mistakes."""
    found = evaluate("model", "./photos", out="with", device="cpu")
    Path(BAD[2]).unlink()
    without = evaluate("model", "./photos", out="without", device="cpu")
    assert (found.images, found.left_out, len(found.unreadable)) == (35, 0, 1)
    for name in ("images", "accuracy", "loss", "per_class", "confusion", "calibration_error"):
        assert getattr(found, name) == getattr(without, name), name
    for name in ("confusion.png", "mistakes.png"):
        assert Path("with", name).read_bytes() == Path("without", name).read_bytes()


def test_shots_are_the_next_readable_images_of_their_class() -> None:
    train = open_data("./photos:train")
    from vitkit.data.sources.source import choose_shots

    plain = choose_shots(train.labels, 3, 0, train.class_names)
    lost = int(plain[1])
    chosen = choose_shots(train.labels, 3, 0, train.class_names, unreadable={lost})
    assert chosen[0] == plain[0] and chosen[1] == plain[2] and chosen[3:].tolist() == plain[3:].tolist()
    assert lost not in chosen and train.labels[chosen[2]] == train.labels[lost]
    spoil(train.where(lost))
    result = vitkit.fewshot("model", "./photos", shots=[3], seeds=1, device="cpu")
    assert train.where(lost) in {entry.image for entry in result.unreadable}


class Answers(Source):
    name, split, class_names = "answers", "all", ("a", "b")

    def __init__(self, count: int, single: bool = False) -> None:
        self.labels = np.zeros(count, np.int64) if single else np.arange(count) % 2


@pytest.mark.parametrize(
    ("images", "bad", "message"),
    [
        (5, 1, None),
        (20, 2, None),
        (20, 3, "3 of 20 images of answers:all can't be read"),
        (2, 1, "no image of class 'a' of answers:all can be read"),
        (2, 2, "no image of answers:all can be read"),
    ],
)
def test_the_rule(images: int, bad: int, message: str | None) -> None:
    found = {number: Unreadable(f"{number}.jpg", "it is empty") for number in range(bad)}
    skipped = Skipped(Answers(images), BadImageRule("skip", "option"))
    if message is None:
        skipped.add(found)
        return
    for _ in range(2):  # each time that it is asked
        with pytest.raises(InputError, match=f"^{re.escape(message)}"):
            skipped.add(found)
    if bad < images:
        Skipped(Answers(images), BadImageRule("any")).add(found)


def test_many_labels_count_each() -> None:
    source = Answers(40)
    source.labels = np.zeros((40, 2), bool)
    source.labels[:, 0] = source.labels[:2, 1] = True
    skipped = Skipped(source, BadImageRule())
    skipped.add({0: Unreadable("0.jpg", "it is empty")})
    with pytest.raises(InputError, match="no image of class 'b' of answers:all"):
        skipped.add({1: Unreadable("1.jpg", "it is empty")})


def test_a_line_for_each_data_set_names_a_few_images_each_once() -> None:
    entries = [Unreadable(f"./a b/{number}.jpg", "it is empty", "./a b:train") for number in range(5)]
    lines = skipped_notes(
        [*entries, *entries[:2], Unreadable("other.jpg", "no bytes (at all)", "digits:test")]
    )
    assert lines == [
        "skipped 5 unreadable images of ./a b:train: ./a b/0.jpg (it is empty), ./a b/1.jpg (it is empty), ./a b/2.jpg "
        "(it is empty) and 2 more; `vit data './a b'` lists them all",
        "skipped 1 unreadable image of digits:test: other.jpg (no bytes); `vit data digits` lists them all",
    ]
    assert {line.kind for line in lines} == {"warning"} and not skipped_notes([])


def test_vtab_skips_them_too(tmp_path: Path) -> None:
    task = tmp_path / "vtab" / "dtd"
    (task / "images").mkdir(parents=True)
    for number in range(4):
        write_photo(Path("photos", "train", "cat", "60.jpg"), number)
        Path("photos/train/cat/60.jpg").rename(task / "images" / f"{number}.jpg")
    for name in ("bad.jpg", "worse.jpg"):
        (task / "images" / name).write_bytes(b"")
    lines = [f"images/{number // 1000}.jpg {number % 47}\n" for number in range(1100)]
    lines[5], lines[1005] = "images/bad.jpg 5\n", "images/worse.jpg 5\n"
    for split, part in {
        "train800": lines[:800],
        "val200": lines[800:1000],
        "train800val200": lines[:1000],
        "test": lines[1000:],
    }.items():
        (task / f"{split}.txt").write_text("".join(part))
    heard: list[str] = []
    result = vtab("model", str(tmp_path / "vtab"), protocol="fewshot", device="cpu", listener=Heard(heard))
    [row] = [row for row in result.tasks if row.status == "done"]
    assert [Path(entry.image).name for entry in row.unreadable] == ["bad.jpg", "worse.jpg"]
    assert heard[-1].startswith("skipped 2 unreadable images of vtab/dtd[root=")
    assert not [line for line in heard[:-1] if "unreadable" in line]
    again = vtab("model", str(tmp_path / "vtab"), protocol="fewshot", device="cpu")
    assert again.tasks == result.tasks


class Heard:
    """Hears the notes of a run, and stops it at a step."""

    def __init__(self, notes: list[str], stop: int = 0) -> None:
        self.notes, self.at = notes, stop

    def note(self, line: str) -> None:
        self.notes.append(line)

    def stepped(self, step: int) -> None:
        if step == self.at:
            signal.raise_signal(signal.SIGTERM)

    def start(self, step: int, total: int) -> None: ...
    def metrics(self, line: object) -> None: ...
    def stop(self) -> None: ...


QUICK = ["protocol=quick", "duration=6", "checkpoint_every=2", "data.workers=0"]


@pytest.mark.slow
def test_a_fine_tuning_resumes_after_a_file_is_removed() -> None:
    options: dict[str, Any] = {"run": "run", "device": "cpu"}
    assert finetune("model", "./photos", QUICK, listener=Heard([], stop=4), **options).status == "stopped"
    Path(BAD[0]).unlink()
    with pytest.raises(InputError) as error:
        finetune("model", "./photos", QUICK, **options)
    assert str(error.value) == (
        "the data has 71 images, and runs/run started with 72: --accept data (accept='data' in Python) resumes with the "
        "current images, --force (force=True) starts over"
    )
    result = finetune("model", "./photos", QUICK, accept=("data",), **options)
    assert result.status == "done" and result.train_images == 70
    learned = open_data("./photos:train[:90%,seed=0]")
    readable = sum(learned.where(place) not in BAD for place in range(len(learned)))
    assert readable < len(learned)
    for card in (result.model, "runs/run/seed-0/head"):
        text = f"./photos:train[:90%,seed=0]`, {readable} images, starting from `model`"
        assert text in Path(card, "README.md").read_text()
    assert {entry.image for entry in result.unreadable} >= {*BAD[1:]}
    steps = [line["step"] for line in read_metrics("runs/run/seed-0/run") if "loss" in line]
    assert steps == sorted({*steps}) and steps[-1] == 6
    assert read_record("runs/run", "finetune")["data"]["images"] == 71
    assert finetune("model", "./photos", QUICK, force=True, **options).status == "done"


def test_a_head_that_nothing_was_trained_from_is_fitted_to_the_images_that_are_left() -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"run": "run", "device": "cpu"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.transfer.finetune.train_config", stop)
        assert finetune("model", "./photos", QUICK, **options).status == "stopped"
    fitted = Path("runs/run/seed-0/head/fitted.json")
    before = json.loads(fitted.read_text())
    Path(BAD[0]).unlink()
    assert finetune("model", "./photos", QUICK, accept="data", **options).status == "done"
    after = json.loads(fitted.read_text())
    assert before["data"]["images"] - after["data"]["images"] in (0, 1) and after != before


@contextmanager
def counted_images() -> Iterator[list[int]]:
    """Count the images that pass through any model in evaluation mode."""
    seen: list[int] = []

    def count(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, Model) and not module.training:
            seen.append(len(inputs[0]))

    hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
    try:
        yield seen
    finally:
        hook.remove()


def test_verbs_share_the_features_of_an_image() -> None:
    """70 images to learn from and 35 to measure on can be read."""
    with counted_images() as seen:
        vitkit.fewshot("model", "./photos", shots=[2], seeds=1, device="cpu")
        few = sum(seen)
        assert 35 + 6 <= few <= 35 + 6 + 2
        vitkit.probe("model", "./photos", l2=0.1, device="cpu")
        assert sum(seen) == 105
        vitkit.knn("model", "./photos", device="cpu")
        vitkit.fewshot("model", "./photos", shots=[1, 5], seeds=2, device="cpu")
        vitkit.probe("model", "./photos:train[:50%,seed=1]", l2=0.1, device="cpu")
        assert sum(seen) == 105


@pytest.mark.parametrize("first", ["probe", "finetune"])
def test_fine_tuning_and_a_probe_share_features(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitkit.transfer.finetune.train_config", stop)  # all that follows the head
    monkeypatch.setattr("vitkit.transfer.outlook.seconds_per_image", lambda *_: 0.01)  # before it
    work: dict[str, Callable[[], object]] = {
        "probe": lambda: vitkit.probe("model", "./photos", l2=0.1, device="cpu"),
        "finetune": lambda: finetune("model", "./photos", QUICK, run="run", device="cpu"),
    }
    second = "finetune" if first == "probe" else "probe"
    with counted_images() as seen:
        work[first]()
        assert sum(seen) == (105 if first == "probe" else 70)
        work[second]()
        assert sum(seen) == 105
