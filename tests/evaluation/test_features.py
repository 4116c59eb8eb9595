"""Frozen features: every image once and in order, on any number of processes, kept on disk and never stale."""

from __future__ import annotations

import atexit
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.two_ranks import two_ranks
from vitkit import create_model
from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.evaluation.features import Features, frozen_features, load_frozen
from vitkit.evaluation.fewshot import FewShotEvaluator
from vitkit.evaluation.knn import KNNEvaluator
from vitkit.evaluation.passes import SourcePass
from vitkit.evaluation.probe import ProbeEvaluator
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.predictor import Predictor
from vitkit.world import World, join_world

ALONE = World(0, 1, torch.device("cpu"))
SETTINGS: dict[str, Any] = dict(image_size=8, patch=4, width=16, depth=1, heads=2, mlp_width=16, dropout=0.5)
PREPROCESSING = Preprocessing(image_size=8, mean=(0.3,) * 3, std=(0.4,) * 3)


def make_model(seed: int = 0, **changes: Any) -> Model:
    torch.manual_seed(seed)
    return create_model("Ti/16", num_classes=10, **{**SETTINGS, **changes})


def make_predictor(model: Model | None = None, **changes: Any) -> Predictor:
    model = make_model() if model is None else model
    preprocessing = Preprocessing(image_size=8, mean=(0.3,) * 3, std=(0.4,) * 3, **changes)
    return Predictor(model, preprocessing, tuple("0123456789"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def features_of(model: Model, data: str, world: World = ALONE) -> np.ndarray:
    images = SourcePass(open_data(data), PREPROCESSING, world=world, batch_size=4)
    return images.features(model).values


def evaluators(world: World) -> list[Any]:
    train, test = open_data("digits:train[:151]"), open_data("digits:test[:33]")
    passes = partial(SourcePass, preprocessing=PREPROCESSING, world=world, batch_size=8)
    return [
        FewShotEvaluator(train, test, passes, shots=2, seeds=2),
        KNNEvaluator(train, test, passes, k=5),
        ProbeEvaluator(train, test, passes, l2=0.1),
    ]


@pytest.mark.slow
def test_two_processes_have_the_features_of_one(tmp_path: Path) -> None:
    with two_ranks(__file__, str(tmp_path)):
        pass
    model = make_model()
    ours = features_of(model, "digits:test[:33]")
    names: dict[str, float] = {}
    for evaluator in evaluators(ALONE):
        names |= evaluator.run(model)
    assert [*names] == ["fewshot_2", "knn_5", "probe"]
    for rank in range(2):
        assert "gloo" not in (tmp_path / f"{rank}.threads").read_text(), "may abort when Python ends"
        with np.load(tmp_path / f"{rank}.npz") as theirs:
            np.testing.assert_allclose(theirs["x"], ours, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(theirs["sharded"], ours, rtol=1e-5, atol=1e-6)
            assert theirs["one"].shape == (1, 16)
            assert {name: float(theirs[name]) for name in names} == names


def count_runs(predictor: Predictor, data: str, **options: Any) -> tuple[Features, int]:
    """Return features, and how many images the model was given for them."""
    seen = 0

    def counting(_: object, inputs: tuple[Any, ...]) -> None:
        nonlocal seen
        seen += len(inputs[0])

    hook = predictor.model.register_forward_pre_hook(counting)
    features = frozen_features(predictor, data, default="measure", **options)
    hook.remove()
    return features, seen


def test_the_cache_saves_the_second_run(cache: Path) -> None:
    predictor = make_predictor()
    first, seen = count_runs(predictor, "digits[:33]")
    assert seen == 33 and first.class_names == tuple("0123456789")
    assert first.labels.tolist() == open_data("digits:test[:33]").labels.tolist()
    assert first.notes == ("digits: using split 'test' (also: train, val)",)
    again, seen = count_runs(make_predictor(), "digits:test[:33]")
    assert seen == 0 and isinstance(again.x, np.memmap)
    np.testing.assert_array_equal(first.x, again.x)
    [path] = (cache / "features").iterdir()
    np.testing.assert_array_equal(np.load(path, allow_pickle=False), first.x)
    assert count_runs(predictor, "digits:test[:33]", cache=False)[1] == 33


def test_another_head_leaves_the_features() -> None:
    model = make_model()
    count_runs(make_predictor(model), "digits:test[:33]")
    model.reset_head(3)
    assert count_runs(make_predictor(model), "digits:test[:33]")[1] == 0


@pytest.mark.parametrize(
    "other",
    [
        lambda: (make_predictor(make_model(1)), "digits:test[:33]"),
        lambda: (make_predictor(make_model(gelu="erf")), "digits:test[:33]"),
        lambda: (make_predictor(interpolation="bicubic"), "digits:test[:33]"),
        lambda: (make_predictor(crop_fraction=0.9), "digits:test[:33]"),
        lambda: (make_predictor(make_model(image_size=16)), "digits:test[:33]"),
        lambda: (make_predictor(), "digits:test[1:34]"),
        lambda: (make_predictor(), "digits:test[:32]"),
        lambda: (make_predictor(), "digits:val[:33]"),
    ],
    ids=["weights", "settings", "interpolation", "crop", "image size", "slice", "length", "split"],
)
def test_another_question_is_computed(other: Any) -> None:
    count_runs(make_predictor(), "digits:test[:33]")
    predictor, data = other()
    assert count_runs(predictor, data)[1] > 0


def test_generated_images_are_known_by_their_settings() -> None:
    predictor = make_predictor()
    count_runs(predictor, "shapes:test[:9,size=8]")
    assert count_runs(predictor, "shapes:test[:9,size=8]")[1] == 0
    assert count_runs(predictor, "shapes:test[:9,size=16]")[1] == 9
    assert count_runs(predictor, "shapes:test[:9,size=8,label=count]")[1] == 9
    assert count_runs(predictor, "shapes:val[:9,size=8]")[1] == 9


def test_a_changed_file_is_computed_anew(tmp_path: Path) -> None:
    for number, colour in enumerate(("red", "green", "blue", "white")):
        folder = tmp_path / "photos" / "test" / ("ab"[number % 2])
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), colour).save(folder / f"{number}.png")
    data, predictor = f"{tmp_path / 'photos'}:test", make_predictor()
    before, seen = count_runs(predictor, data)
    assert seen == 4 and count_runs(predictor, data)[1] == 0
    Image.new("RGB", (9, 9), "black").save(tmp_path / "photos" / "test" / "a" / "0.png")
    os.utime(tmp_path / "photos" / "test" / "a" / "0.png", ns=(1, 1))
    after, seen = count_runs(predictor, data)
    assert seen == 4
    changed = np.abs(before.x - after.x).max(1) > 0
    assert changed.tolist() == [True, False, False, False]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_file_is_computed_anew(cache: Path, damage: str) -> None:
    predictor = make_predictor()
    first, _ = count_runs(predictor, "digits:test[:33]")
    whole = np.array(first.x)
    del first
    [path] = (cache / "features").iterdir()
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    broken = {"flip": data, "cut": data[:-100], "empty": b"", "other": b"text" * 99}[damage]
    path.unlink()
    path.write_bytes(bytes(broken))
    again, seen = count_runs(predictor, "digits:test[:33]")
    assert seen == 33 and any(f"{path} can't be used" in note for note in again.notes)
    np.testing.assert_array_equal(again.x, whole)
    repaired, seen = count_runs(predictor, "digits:test[:33]")
    assert seen == 0 and not any("can't be used" in note for note in repaired.notes)


def test_a_cache_that_cannot_be_written_is_done_without(cache: Path) -> None:
    cache.write_text("a file, not a folder")
    features, seen = count_runs(make_predictor(), "digits:test[:33]")
    assert seen == 33 and features.x.shape == (33, 16)
    assert any("features are not kept" in note for note in features.notes)


def test_an_interrupted_run_leaves_nothing(cache: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done > 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        frozen_features(make_predictor(), "digits:test[:33]", default="measure", batch_size=8, progress=stop)
    assert not list((cache / "features").iterdir())


def test_broken_weights_are_told() -> None:
    model = make_model()
    torch.nn.init.constant_(model.get_parameter("norm.weight"), float("nan"))
    with pytest.raises(InputError, match="not finite: its weights are broken"):
        frozen_features(make_predictor(model), "digits:test[:5]", default="measure")


def test_an_untrained_model_is_the_same_each_time_and_noted() -> None:
    state = torch.get_rng_state()
    one, other = (load_frozen("mu/16", "cpu", 32) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.model.get_parameter("pos_embed"), other.model.get_parameter("pos_embed"))
    assert any("is untrained" in note for note in one.notes)


def main(folder: Path) -> None:
    rank = os.environ["RANK"]

    def note_threads() -> None:
        names = [(path / "comm").read_text() for path in Path("/proc/self/task").glob("*")]
        (folder / f"{rank}.threads").write_text("".join(names))

    atexit.register(note_threads)
    model, found = make_model(), dict[str, Any]()
    with join_world(torch.device("cpu")) as world:
        found["x"] = features_of(model, "digits:test[:33]", world)
        found["one"] = features_of(model, "digits:test[:1]", world)
        for evaluator in evaluators(world):
            found |= evaluator.run(model)
        mesh = init_device_mesh("cpu", (2,))
        for block in model.get_submodule("blocks").children():
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        found["sharded"] = features_of(model, "digits:test[:33]", world)
    np.savez(folder / f"{rank}.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
