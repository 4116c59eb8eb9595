"""The same answer for every form of an image, in order and in any batch; names, devices and failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.models import ResNet50_Weights

import vitkit
from tests.stand_in import stand_for_every_model
from tests.training import tiny_runs
from vitkit import predictor as module
from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.predictor import Predictor, choose_device, load, predict

SHARED = Path(__file__).parents[1].parent / "shared"
WEIGHTS = SHARED / "weights" / "vit_tiny_patch16_224.safetensors"
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")


def tiny(num_classes: int = 7, **settings: Any) -> Model:
    """A model small enough for tests, with a head that is not zero."""
    torch.manual_seed(0)
    model = vitkit.create_model("mu/16", image_size=32, num_classes=num_classes, **settings)
    if num_classes:
        torch.nn.init.normal_(model.head.weight, std=5)
    return model.eval()


PREPROCESSING = Preprocessing(32, 0.9, "bicubic")


@pytest.fixture(scope="module")
def small() -> Predictor:
    return Predictor(tiny(), PREPROCESSING, NAMES, name="small")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Ten pictures, each of its own colour and shape."""
    paths = [tmp_path / f"{index}.png" for index in range(10)]
    for index, path in enumerate(paths):
        values = np.random.default_rng(index).integers(0, 256, (30 + index, 50 - index, 3), np.uint8)
        Image.fromarray(values).save(path)
    return paths


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What `load` finds whatever the name, and what it was asked for."""
    return stand_for_every_model(monkeypatch, tiny(), "small", PREPROCESSING, None, "a note")


def test_predictions_are_the_models_probabilities(small: Predictor, files: list[Path]) -> None:
    [guesses] = small.predict(files[0], top=7)
    probabilities = small.model(module.prepare(files[0], PREPROCESSING)[None]).softmax(-1)[0]
    assert {guess.index for guess in guesses} == set(range(7))
    assert sum(guess.probability for guess in guesses) == pytest.approx(1)
    for guess in guesses:
        assert guess.name == NAMES[guess.index]
        assert guess.probability == pytest.approx(probabilities[guess.index].item(), rel=1e-5)
    shares = [guess.probability for guess in guesses]
    assert shares == sorted(shares, reverse=True) and shares[0] > 1.1 / 7


@pytest.mark.parametrize("target", ["folder", "model.safetensors", "hf"])
def test_classes_that_hold_together_have_probabilities_of_their_own(
    files: list[Path], tmp_path: Path, target: str
) -> None:
    """Whether a model is multi-label is kept by every format that can say it, and a new head forgets it."""
    path, to = tmp_path / target, "hf" if target == "hf" else "vitkit"
    model = tiny(gelu="erf")
    vitkit.save(model, path, to, class_names=NAMES, multi_label=True, preprocessing=PREPROCESSING)
    again = tmp_path / "again"
    vitkit.save(load(path, device="cpu"), again)
    for found in (load(path, device="cpu"), load(again, device="cpu")):
        [guesses] = found.predict(files[0], top=7)
        expected = model(module.prepare(files[0], found.preprocessing)[None]).sigmoid()[0]
        assert [guess.index for guess in guesses] == expected.argsort(descending=True).tolist()
        assert [guess.probability for guess in guesses] == pytest.approx(
            expected.sort(descending=True).values.tolist(), rel=1e-4
        )
    assert not load(path, device="cpu", num_classes=3).multi_label
    changed = load(path, device="cpu")
    changed.model.reset_head(5)
    assert not changed.multi_label
    vitkit.save(load(again, device="cpu"), again, multi_label=False, force=True)
    assert not load(again, device="cpu").multi_label


def test_a_folder_with_the_old_key_is_still_multi_label(tmp_path: Path) -> None:
    model = tiny()
    vitkit.save(model, tmp_path / "m", class_names=NAMES, multi_label=True, preprocessing=PREPROCESSING)
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace('"multi_label"', '"several_labels"'))
    assert load(tmp_path / "m", device="cpu").multi_label


def test_transformers_knows_multi_label(tmp_path: Path) -> None:
    from transformers import AutoConfig

    model = vitkit.create_model("Ti/16", num_classes=3, gelu="erf")
    for several in (True, False):
        for to in ("hf", "vitkit"):
            path = tmp_path / f"{to} {several}"
            vitkit.save(model, path, to, multi_label=several)
            kind = AutoConfig.from_pretrained(path).problem_type
            assert kind == ("multi_label_classification" if several else None)


@pytest.mark.parametrize(
    ("labels", "changes", "several"),
    [
        ("a;b", (), True),
        ("a;b", ("objective.loss=softmax",), False),
        ("a", ("objective.loss=sigmoid",), False),
    ],
)
def test_a_run_says_whether_classes_hold_together(
    files: list[Path], tmp_path: Path, labels: str, changes: tuple[str, ...], several: bool
) -> None:
    rows = "".join(f"{file.name},{labels if number % 2 else 'b'}\n" for number, file in enumerate(files))
    (tmp_path / "labels.csv").write_text(f"path,label\n{rows}")
    data = [f"data.train={tmp_path / 'labels.csv'}:all", "data.evaluate=null", "data.pipeline=resize(8)"]
    tiny_runs.run_tiny(tmp_path / "run", *data, "batch_size=4", "duration=2", "data.workers=0", *changes)
    found = load(tmp_path / "run", device="cpu")
    assert (found.class_names, found.multi_label) == (("a", "b"), several)


def test_every_form_of_an_image_gives_the_same(small: Predictor, files: list[Path]) -> None:
    image = Image.open(files[3])
    array = np.asarray(image)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    forms = [files[3], str(files[3]), files[3].read_bytes(), image, array, array / 255, tensor, tensor / 255]
    expected = small.predict(files[3])
    assert len(expected) == 1 and len(expected[0]) == 5
    for form in forms:
        assert small.predict(form) == expected
        assert np.array_equal(small.embed(form), small.embed(files[3]))
    together = small.predict(forms)
    assert [guesses[0].index for guesses in together] == [expected[0][0].index] * len(forms)


def test_a_batch_in_one_array_or_tensor_is_several_images(small: Predictor) -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, 40, 50, 3), np.uint8)
    expected = small.predict(list(array))
    assert len(expected) == 3
    assert small.predict(array) == expected
    assert small.predict(torch.from_numpy(array).permute(0, 3, 1, 2)) == expected


@pytest.mark.parametrize("batch_size", [1, 3, 10, 64])
def test_batches_change_nothing_and_keep_the_order(
    small: Predictor, files: list[Path], batch_size: int
) -> None:
    alone = np.concatenate([small.embed(file) for file in files])
    together = small.embed(files, batch_size=batch_size)
    assert together.shape == (10, small.model.config.width) and together.dtype == np.float32
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert np.abs(alone[:, None] - alone[None]).max(-1)[~np.eye(10, dtype=bool)].min() > 1e-3
    for guesses, file in zip(small.predict(files, batch_size=batch_size), files, strict=True):
        [expected] = small.predict(file)
        assert [guess.index for guess in guesses] == [guess.index for guess in expected]


def test_features_are_what_the_head_reads(small: Predictor, files: list[Path]) -> None:
    features = torch.from_numpy(small.embed(files))
    logits = small.model.classify(features)
    assert logits.argmax(-1).tolist() == [guesses[0].index for guesses in small.predict(files)]


def test_no_images(small: Predictor) -> None:
    assert small.predict([]) == []
    assert small.embed([]).shape == (0, small.model.config.width)


def test_few_classes_and_no_head(files: list[Path]) -> None:
    two = Predictor(tiny(2), PREPROCESSING, ("no", "yes"))
    assert len(two.predict(files[0])[0]) == 2
    headless = Predictor(tiny(0), PREPROCESSING, (), name="headless")
    with pytest.raises(
        InputError, match="^headless has no classification head: `vit finetune MODEL DATA` adds"
    ):
        headless.predict(files[0])
    assert headless.embed(files[:2]).shape == (2, 32)


def test_gray_model(files: list[Path]) -> None:
    gray = Predictor(tiny(channels=1), Preprocessing(32, mean=(0.5,), std=(0.5,)), NAMES)
    image = Image.open(files[0])
    assert gray.predict(image) == gray.predict(image.convert("L"))


def test_refusals(small: Predictor, files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^top must be at least 1, not 0$"):
        small.predict(files, top=0)
    with pytest.raises(InputError, match="^top must be at least 1, not "):
        small.predict(files, top=np.int64(0))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="^batch_size must be at least 1, not -3$"):
        small.embed(files, batch_size=-3)
    (tmp_path / "bad.png").write_text("text")
    with pytest.raises(InputError, match="bad.png: it is not an image"):
        small.predict([*files, tmp_path / "bad.png"])
    for nonsense in (None, 3, [None]):
        with pytest.raises(InputError, match="^an image is a path"):
            small.predict(nonsense)  # type: ignore[arg-type]


def test_broken_weights_are_an_error(files: list[Path]) -> None:
    model = tiny()
    torch.nn.init.constant_(model.head.bias, torch.nan)
    with pytest.raises(InputError, match="^broken gives logits that are not finite"):
        Predictor(model, PREPROCESSING, NAMES, name="broken").predict(files[0])


def test_out_of_memory_names_the_batch_size(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(images: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    model = tiny()
    monkeypatch.setattr(model, "forward", fail)
    with pytest.raises(InputError, match="^out of memory with batch size 8: give a smaller one$"):
        Predictor(model, PREPROCESSING, NAMES).predict(files, batch_size=8)


def test_few_images_are_held_at_once(small: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long stream, no more is read than the batch at work and the one ahead of it."""
    read, done, most = 0, 0, 0

    def stream() -> Iterator[np.ndarray]:
        nonlocal read, most
        for _ in range(100):
            read += 1
            most = max(most, read - done)
            yield np.zeros((8, 8, 3), np.uint8)

    def count(images: Tensor) -> Tensor:
        nonlocal done
        done += len(images)
        return torch.zeros(len(images), 7)

    monkeypatch.setattr(small, "logits", count)
    assert len(small.predict(stream(), batch_size=4)) == 100
    assert most <= 9


def test_files_that_fail_are_reported_in_their_place(
    small: Predictor, files: list[Path], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jpg"
    bad.touch()
    mixed = [files[0], bad, bad, bad, files[1]]
    answers = list(small.predict_files(mixed, top=1, batch_size=2))
    assert [answer.image for answer in answers] == [str(file) for file in mixed]
    assert [answer.error is not None for answer in answers] == [False, True, True, True, False]
    assert answers[1].to_json() == {"image": str(bad), "error": f"cannot read {bad}: it is empty"}
    for answer, [guess] in zip([answers[0], answers[4]], small.predict(files[:2], top=1), strict=True):
        assert answer.top is not None and answer.top[0].index == guess.index
        assert answer.top[0].probability == pytest.approx(guess.probability, rel=1e-5)


def test_load_passes_everything_on(stored: SimpleNamespace) -> None:
    asked = {"image_size": 32, "num_classes": 7, "channels": 3, "resample": "bilinear", "accept": ["head.*"]}
    loaded = load("B/16@x.npz", device="cpu", **asked)  # type: ignore[arg-type]
    assert stored.asked == {"spec": "B/16@x.npz", "module": None, **asked}
    assert (loaded.name, loaded.notes, loaded.preprocessing) == ("small", ("a note",), PREPROCESSING)
    assert loaded.device == torch.device("cpu") and loaded.class_names[6] == "class 6"


def test_names(stored: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_bytes("\ufefftabby cat\r\n[bold]x[/]\r\n\r\n d \r\né\r\nf\r\ng\r\n".encode())
    expected = ("tabby cat", "[bold]x[/]", "", " d ", "é", "f", "g")
    assert load("x", names=file).class_names == load("x", names=str(file)).class_names == expected
    assert load("x", names=NAMES).class_names == NAMES
    stored.class_names = tuple("ABCDEFG")
    assert load("x").class_names == tuple("ABCDEFG")
    assert load("x", names=file).class_names == expected


def test_refused_names(stored: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^2 class names for the 7 classes of small$"):
        load("x", names=["a", "b"])
    (tmp_path / "empty.txt").touch()
    with pytest.raises(InputError, match="^0 class names"):
        load("x", names=tmp_path / "empty.txt")
    with pytest.raises(InputError, match="^cannot read the class names in nowhere.txt: No such file"):
        load("x", names="nowhere.txt")
    (tmp_path / "latin.txt").write_bytes(b"\xe9\n")
    with pytest.raises(InputError, match="not UTF-8 text$"):
        load("x", names=tmp_path / "latin.txt")


def test_a_thousand_classes_are_imagenets(stored: SimpleNamespace) -> None:
    stored.model = tiny(1000)
    assert load("x").class_names == tuple(ResNet50_Weights.IMAGENET1K_V2.meta["categories"])


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    available = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert choose_device("auto") == torch.device(available)
    with pytest.raises(InputError, match="^unknown device 'gpu'; expected auto, cpu, cuda or mps$"):
        choose_device("gpu")
    for device in {"cuda", "mps"} - {available}:
        with pytest.raises(InputError, match=f"^device '{device}' is not available here"):
            choose_device(device)


def test_predict_is_what_json_prints(stored: SimpleNamespace, files: list[Path]) -> None:
    answers = predict("x", files[0].parent, top=2, names=NAMES, device="cpu", image_size=32, accept=["a"])
    assert stored.asked["image_size"] == 32 and stored.asked["accept"] == ["a"]
    assert [answer.image for answer in answers] == sorted(map(str, files))
    document = answers[0].to_json()
    assert [*document] == ["image", "top"] and len(document["top"]) == 2
    assert all([*guess] == ["name", "index", "probability"] for guess in document["top"])
    assert predict("x", files[0]) == predict("x", [str(files[0])])


def test_images_are_looked_for_before_the_model_is_read(stored: SimpleNamespace) -> None:
    with pytest.raises(InputError, match="no such file or folder: nowhere"):
        predict("x", "nowhere")
    assert stored.asked == {}


@pytest.mark.slow
@pytest.mark.skipif(not WEIGHTS.exists(), reason="needs the shared weights and photos")
def test_accuracy_on_real_photos_is_timms() -> None:
    """86 of the 99 photos, as timm 1.0.30 measures with the same weights and preprocessing."""
    photos = sorted((SHARED / "data" / "imagenet" / "samples").iterdir())
    synsets = (SHARED / "data" / "imagenet" / "synsets.txt").read_text().split()
    answers = predict(WEIGHTS, photos, top=1)
    right = [
        answer.top is not None and synsets[answer.top[0].index] == Path(answer.image).name[:9]
        for answer in answers
    ]
    assert (sum(right), len(right)) == (86, 99)


def test_another_image_size() -> None:
    found = Predictor(tiny(), PREPROCESSING, NAMES)
    found.set_image_size((48, 64))
    assert found.preprocessing.size == (48, 64) and found.model.config.size == (48, 64)
    assert found.predict(np.zeros((100, 100, 3), np.uint8))


def test_the_card_of_a_model_without_a_head_says_what_it_can(tmp_path: Path) -> None:
    for classes, task, call, auto in (
        (0, "image-feature-extraction", 'embed("photo.jpg")', "transformers.AutoModel."),
        (7, "image-classification", 'predict("photo.jpg")', "transformers.AutoModelForImageClassification."),
    ):
        vitkit.save(tiny(classes, gelu="erf"), tmp_path / str(classes))
        card = (tmp_path / str(classes) / "README.md").read_text()
        assert f"tags: [{task}, " in card and call in card and auto in card


def test_a_changed_model_is_followed() -> None:
    predictor = load("mu/16", device="cpu", num_classes=1000)
    predictor.model.reset_head(3)
    predictor.model.set_image_size(64)
    assert predictor.class_names == ("class 0", "class 1", "class 2")
    assert len(predictor.predict(np.zeros((9, 9, 3), np.uint8))[0]) == 3
    predictor.model.reset_head(0)
    with pytest.raises(InputError, match="has no classification head"):
        predictor.predict(np.zeros((9, 9, 3), np.uint8))
