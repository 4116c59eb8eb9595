"""Frozen features: every image once and in order, on any number of processes, kept on disk and never stale."""

from __future__ import annotations

import atexit
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.two_ranks import started, two_ranks
from vitkit import create_model
from vitkit.data.open import open_data
from vitkit.data.sources.source import Source, Subset
from vitkit.errors import InputError
from vitkit.evaluation.features import Features, frozen_features, load_frozen
from vitkit.evaluation.fewshot import FewShotEvaluator
from vitkit.evaluation.knn import KNNEvaluator
from vitkit.evaluation.passes import SourcePass
from vitkit.evaluation.probe import ProbeEvaluator
from vitkit.evaluation.row_store import RowStore
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


def files(cache: Path) -> list[Path]:
    return [path for path in (cache / "features").rglob("*") if path.is_file()]


def test_the_cache_saves_the_second_run(cache: Path) -> None:
    predictor = make_predictor()
    first, seen = count_runs(predictor, "digits[:33]")
    assert seen == 33 and first.class_names == tuple("0123456789")
    assert first.labels.tolist() == open_data("digits:test[:33]").labels.tolist()
    assert first.notes == ("digits: using split 'test' (also: train, val)",)
    again, seen = count_runs(make_predictor(), "digits:test[:33]")
    assert seen == 0 and isinstance(again.x, np.memmap)
    np.testing.assert_array_equal(first.x, again.x)
    assert again.indices.tolist() == list(range(33)) and not again.bad
    assert len(files(cache)) == 1
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
        lambda: (make_predictor(), "digits:val[:33]"),
    ],
    ids=["weights", "settings", "interpolation", "crop", "image size", "slice", "split"],
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
    assert seen == 1
    changed = np.abs(before.x - after.x).max(1) > 0
    assert changed.tolist() == [True, False, False, False]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_file_is_computed_anew(cache: Path, damage: str) -> None:
    predictor = make_predictor()
    first, _ = count_runs(predictor, "digits:test[:33]")
    whole = np.array(first.x)
    del first
    [path] = files(cache)
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


def test_a_part_of_what_is_known_costs_nothing_and_a_larger_whole_only_what_is_new(cache: Path) -> None:
    predictor = make_predictor()
    whole, _ = count_runs(predictor, "digits:test[:33]")
    part, seen = count_runs(predictor, "digits:test[10:20]")
    assert seen == 0
    np.testing.assert_array_equal(part.x, whole.x[10:20])
    told: list[tuple[int, int]] = []
    more, seen = count_runs(predictor, "digits:test[:40]", progress=lambda *done: told.append(done))
    assert seen == 7 and told[-1] == (7, 7)
    np.testing.assert_array_equal(more.x[:33], whole.x)
    np.testing.assert_allclose(more.x, features_of(predictor.model, "digits:test[:40]"), atol=1e-5)
    assert count_runs(predictor, "digits:test[:40]")[1] == 0
    assert len(files(cache)) == 2


def test_rows_follow_the_order_that_is_asked_for() -> None:
    predictor, source = make_predictor(), open_data("digits:test[:33]")
    whole = frozen_features(predictor, source)
    order = np.random.default_rng(0).permutation(33)
    mixed = frozen_features(predictor, Subset(source, order))
    np.testing.assert_array_equal(mixed.x, whole.x[order])
    assert mixed.labels.tolist() == source.labels[order].tolist()


def write_photos(folder: Path, count: int = 20) -> list[Path]:
    paths = []
    for number in range(count):
        path = folder / "test" / "ab"[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (9, 9, 3), np.uint8)
        Image.fromarray(pixels).save(path)
        paths.append(path)
    return paths


def test_unreadable_images_have_no_rows_and_are_not_asked_for_in_vain(tmp_path: Path) -> None:
    paths = write_photos(tmp_path / "photos")
    bad = [paths[3], paths[6]]
    for path in bad:
        path.write_bytes(b"no image")
    source = open_data(f"{tmp_path / 'photos'}:test")
    kept = [index for index in range(20) if source.where(index) not in map(str, bad)]
    for expected in (18, 0):  # the second time from the cache
        features, seen = count_runs(make_predictor(), str(source.spec))
        assert seen == expected and isinstance(features.x, np.memmap)
        assert features.indices.tolist() == kept and features.labels.tolist() == source.labels[kept].tolist()
        assert {entry.image for entry in features.bad.values()} == {*map(str, bad)}
        assert [source.where(index) for index in features.bad] == [
            entry.image for entry in features.bad.values()
        ]
    Image.new("RGB", (9, 9)).save(bad[0])
    repaired, seen = count_runs(make_predictor(), str(source.spec))
    assert seen == 1 and len(repaired.x) == 19
    with pytest.raises(
        InputError, match="cannot read .*06.png: .*; bad_images='skip' skips unreadable images"
    ):
        count_runs(make_predictor(), str(source.spec), bad_images="error")


def test_the_judgement_is_on_all_images_not_on_those_that_are_missing(tmp_path: Path) -> None:
    paths = write_photos(tmp_path / "photos")
    count_runs(make_predictor(), f"{tmp_path / 'photos'}:test")
    for path in paths[:3]:
        path.write_bytes(b"no image")
    with pytest.raises(InputError, match="^3 of 20 images of .*photos:test can't be read, so results would"):
        count_runs(make_predictor(), f"{tmp_path / 'photos'}:test")
    assert len(count_runs(make_predictor(), f"{tmp_path / 'photos'}:test", bad_images="any")[0].x) == 17


class Drawn(Source):
    """Images that are neither files nor in memory nor generated by number, as another library's are."""

    name, split, class_names = "drawn", "test", ("a",)

    def __init__(self, shade: int) -> None:
        self.labels = np.zeros(4, np.int64)
        self.shown = np.array([shade])  # no setting that could tell two of them apart

    def read(self, index: int) -> np.ndarray:
        return np.full((8, 8, 3), self.shown[0] + index, np.uint8)


def test_images_of_other_sources_are_known_by_what_is_read() -> None:
    first, second = (frozen_features(make_predictor(), Drawn(shade)) for shade in (10, 12))
    np.testing.assert_array_equal(first.x[2:], second.x[:2])
    assert np.abs(first.x[0] - second.x[0]).max() > 0


def test_a_million_keys_are_looked_up_in_seconds(tmp_path: Path) -> None:
    count = 1_000_000
    keys = np.random.default_rng(0).integers(0, 2**63, (count, 2)).astype(np.uint64)
    store = RowStore(tmp_path)
    for half in (slice(0, count // 2), slice(count // 2, count)):
        own = keys[half]
        store.add(own, [(np.arange(len(own)), own[:, :1].astype(np.float32))])
    wanted = np.random.default_rng(1).permutation(count)
    began = time.perf_counter()
    found = store.find(keys[wanted])
    assert time.perf_counter() - began < 10
    assert found.has.all() and np.array_equal(found.x[:, 0], keys[wanted, 0].astype(np.float32))


@pytest.mark.slow
def test_processes_may_add_the_same_rows_at_the_same_time(cache: Path) -> None:
    code = (
        "from tests.evaluation.test_features import *\n"
        "for stop in (20, 33, 40): frozen_features(make_predictor(), f'digits:test[:{stop}]')"
    )
    with started([sys.executable, "-c", code], [sys.executable, "-c", code]):
        pass
    assert count_runs(make_predictor(), "digits:test[:40]")[1] == 0
    assert not [path for path in files(cache) if path.suffix != ".rows"]


def test_an_interrupted_run_leaves_nothing(cache: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done > 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        frozen_features(make_predictor(), "digits:test[:33]", default="measure", batch_size=8, progress=stop)
    assert not files(cache)


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
