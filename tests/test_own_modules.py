"""Modules of the user's own: trained, resumed, fine-tuned, evaluated, probed, inspected, saved; what they can't do is said."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import vitkit
from vitkit.costs import cost_of
from vitkit.errors import InputError
from vitkit.models.configs import OwnConfig
from vitkit.models.model import run_in
from vitkit.models.own import OwnModule
from vitkit.models.record import Record
from vitkit.predictor import Predictor
from vitkit.progress import Silent
from vitkit.runs import read_config
from vitkit.training.run import TrainResult

NAMES = tuple("0123456789")
DATA: dict[str, Any] = {
    "train": "digits:train[:200]",
    "evaluate": "digits:test[:50]",
    "pipeline": "resize(8)",
}
SETTINGS: dict[str, Any] = dict(batch_size=40, duration=4, device="cpu", progress=False, evaluate_every=2)


class Net(nn.Module):
    """A small network with statistics (BatchNorm), dropout, and features."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1))
        self.fc = nn.Linear(8, num_classes)

    def features(self, images: Tensor) -> Tensor:
        return self.body(images).mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.features(images))


class Plain(nn.Module):
    """Logits and nothing else, of images of one size."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 8 * 8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1))


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    return tmp_path


def wrapped(module: nn.Module | None = None, **options: Any) -> Predictor:
    return vitkit.wrap(Net() if module is None else module, 8, **options)


def train(model: Any, **settings: Any) -> TrainResult:
    result = vitkit.train("digits", model=model, data=DATA, **{**SETTINGS, **settings})
    assert result is not None
    return result


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(InputError) as error:
        call()
    return str(error.value)


def test_one_forward_pass_says_what_is_needed() -> None:
    module = Net().train()
    model = vitkit.wrap(module, (8, 12), class_names=NAMES)
    config = model.model.config
    assert isinstance(config, OwnConfig)
    assert (config.size, config.num_classes, config.num_features) == ((8, 12), 10, 8)
    assert config.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert cost_of(config).macs == 4 * 6 * 8 * 27 + 80
    assert model.class_names == NAMES and model.preprocessing.mean == (0.485, 0.456, 0.406)
    images = torch.randn(2, 3, 8, 12)
    torch.testing.assert_close(model.logits(images), module(images))
    torch.testing.assert_close(model.features(images), module.features(images))


def test_a_module_says_what_it_can_not_take() -> None:
    assert refused(lambda: vitkit.wrap(Plain(), 16)).startswith("Plain can't take images of 16x16 pixels: ")
    assert refused(lambda: vitkit.wrap(Net())) == (
        "the image size of Net is unknown: pass vitkit.wrap(net, image_size=224)"
    )
    assert refused(lambda: vitkit.evaluate(Net(), "digits")) == refused(lambda: vitkit.wrap(Net()))
    assert refused(lambda: vitkit.wrap(nn.Identity(), 8)) == (
        "Identity returns (1, 3, 8, 8) for one image; expected logits of shape (1, classes)"
    )
    assert refused(lambda: wrapped(class_names=["a", "b"])) == "2 class names for the 10 classes of Net"
    assert refused(lambda: vitkit.wrap("Net", 8)) == "wrap takes a torch.nn.Module, not str"  # type: ignore[arg-type]
    images = torch.zeros(1, 3, 9, 8)
    assert "the model takes (batch, 3, 8, 8)" in refused(lambda: wrapped().model(images))


def test_a_timm_model_has_features() -> None:
    small = dict(img_size=32, embed_dim=24, num_heads=2, depth=1, num_classes=5)
    theirs = timm.create_model("vit_tiny_patch16_224", **small)
    model = vitkit.wrap(theirs, 32)
    assert isinstance(model.model.config, OwnConfig) and model.model.config.num_features == 24
    images = torch.randn(2, 3, 32, 32)
    expected = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
    torch.testing.assert_close(model.features(images), expected)


def test_a_run_trains_a_copy_and_its_folder_takes_the_module_again() -> None:
    module = Net()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    result = train(vitkit.wrap(module, 8))
    assert result.status == "done" and result.classes == 10
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    stored = load_file(Path(result.run, "model", "model.safetensors"))
    assert set(stored) == {f"module.{name}" for name in before}
    assert not torch.equal(stored["module.body.1.running_mean"], before["body.1.running_mean"])

    again = Net()
    model = vitkit.load(Path(result.run), module=again, device="cpu")
    assert model.class_names == NAMES and isinstance(model.model, OwnModule) and model.model.module is again
    assert all(torch.equal(tensor, stored[f"module.{name}"]) for name, tensor in again.state_dict().items())
    found = vitkit.evaluate(model, DATA["evaluate"], progress=False)
    assert found.accuracy == pytest.approx(result.best.value if result.best else None)
    card = Path(result.run, "model", "README.md").read_text()
    assert 'model = vitkit.load("FOLDER", module=Net(...))' in card and "only its weights" in card


def test_a_folder_without_its_module_says_so(vit: Callable[..., Any]) -> None:
    result = train(wrapped(), duration=1)
    text = (
        f"{Path(result.run, 'model', 'model.safetensors')}: Net is a module of your own, which only you can build: pass "
        "it too, as in vitkit.load(FOLDER, module=Net(...))"
    )
    assert refused(lambda: vitkit.load(result.run)) == text
    answer = vit("eval", result.run, "digits")
    assert answer.status == 2 and answer.err == f"error: {text}\n"
    assert refused(lambda: vitkit.load("Ti/16", module=Net())) == (
        "Ti/16 is one of vitkit's models, not a module of your own: remove the argument module"
    )
    other = refused(lambda: vitkit.load(result.run, module=Net(7)))
    assert "module.fc.weight has shape (10, 8); the model expects (7, 8)" in other


class StopAt3(Silent):
    def stepped(self, step: int) -> None:
        if step == 3:
            signal.raise_signal(signal.SIGTERM)


def test_a_stopped_run_resumes_bit_for_bit_with_the_module_given_again() -> None:
    def started() -> Predictor:
        torch.manual_seed(1)
        return wrapped()

    settings = dict(average=0.5, checkpoint_every=2, duration=5)
    straight = train(started(), run="straight", **settings)
    stopped = train(started(), run="stopped", listener=StopAt3(), **settings)
    assert stopped.status == "stopped" and stopped.step == 3
    recorded = read_config(stopped.run)["model"]["name"]
    assert recorded.startswith("module:Net-")
    assert refused(lambda: vitkit.train(stopped.run, device="cpu", progress=False)) == (
        f"{recorded} is a model that was passed as an object: pass it again, as in vitkit.train(RUN, "
        "model=vitkit.wrap(module, ...))"
    )
    assert refused(lambda: vitkit.train(stopped.run, model=wrapped(Plain()))).startswith(
        "a run resumes with its own settings, not with model.name=module:Plain-"
    )
    # The weights of the module that is given again are not read: the checkpoint has them.
    resumed = vitkit.train(stopped.run, model=wrapped(), device="cpu", progress=False)
    assert resumed is not None and resumed.status == "done"
    for name in ("model", "model-last"):
        one, other = (load_file(Path(run, name, "model.safetensors")) for run in (straight.run, stopped.run))
        assert all(torch.equal(tensor, other[key]) for key, tensor in one.items())


def test_another_architecture_is_another_run_and_the_same_one_is_not() -> None:
    names = [wrapped().spec, wrapped().spec, wrapped(Plain()).spec, wrapped(Net(7)).spec]
    assert names[0] == names[1] and len(set(names)) == 3
    assert wrapped(name="mine").spec == "module:mine"


def test_other_classes_get_a_new_head_on_the_features() -> None:
    module = Net(7)
    result = train(vitkit.wrap(module, 8))
    stored = load_file(Path(result.run, "model", "model.safetensors"))
    assert stored["head.weight"].shape == (10, 8)
    # What no feature depends on neither learns nor keeps DDP waiting.
    assert torch.equal(stored["module.fc.weight"], module.fc.weight.detach())
    model = vitkit.load(result.run, module=Net(7), device="cpu")
    assert model.logits(torch.zeros(1, 3, 8, 8)).shape == (1, 10)
    assert refused(lambda: train(wrapped(Plain(7)))) == (
        "Plain has 7 classes, but 10 are needed: build it with 10, or give it a method features(images) that returns "
        "(batch, width), for a new head"
    )


@pytest.mark.parametrize(
    ("module", "protocol"), [(Net, "a head on frozen features, then"), (Plain, "protocol quick: steps")]
)
def test_it_is_fine_tuned_with_and_without_features(module: type[nn.Module], protocol: str) -> None:
    def tune() -> Any:
        return vitkit.finetune(
            wrapped(module()),
            "digits:train[:200]",
            protocol="quick",
            duration=3,
            data={"evaluate": "digits:test[:50]"},
            device="cpu",
            progress=False,
        )

    result = tune()
    assert result.status == "done" and result.evaluation is not None and result.accuracy is not None
    assert any(protocol in line for line in result.notes)
    assert vitkit.load(result.run, module=module(), device="cpu").class_names == NAMES
    assert tune() == result  # finished: the same call returns what there is


def test_a_head_first_needs_features() -> None:
    settings: dict[str, Any] = dict(duration=4, head_first=True, device="cpu", progress=False)
    assert refused(lambda: vitkit.finetune(wrapped(Plain()), "digits", **settings)) == (
        "head_first needs features, and Plain has no method features(images): leave it out"
    )


def test_frozen_features_are_measured_and_not_cached(desk: Path) -> None:
    options: dict[str, Any] = dict(evaluate="digits:test[:50]", device="cpu", progress=False)
    model, data = wrapped(), "digits:train[:100]"
    assert 0 < vitkit.knn(model, data, **options).results[0].accuracy < 1
    assert vitkit.probe(model, data, l2=1.0, **options).accuracy > 0
    assert vitkit.fewshot(model, data, shots=[2], seeds=1, **options).results[0].accuracy > 0
    assert not list(desk.glob("cache/features/*"))
    assert refused(lambda: vitkit.knn(wrapped(Plain()), data, **options)) == (
        "Plain has no features: give it a method features(images) that returns (batch, width)"
    )


def test_it_is_inspected_as_far_as_it_is_known() -> None:
    found = vitkit.inspect_model(
        wrapped(class_names=NAMES), "digits:test[:4]", num_photos=1, out=Path("seen"), progress=False
    )
    assert Path("seen/filters.png").is_file() and found.photos[0].top
    reason = (
        "is not defined for this model, because Net is a module of your own, so its internals are not known"
    )
    assert found.undefined["distance"] == f"attention distance {reason}"
    plain = vitkit.inspect_model(wrapped(Plain()), out="plain", progress=False)
    assert plain.undefined["filters"] == (
        "a picture of filters is not defined for this model, because Plain has no convolution that reads pixels"
    )
    model = wrapped().model
    assert refused(lambda: model(torch.zeros(1, 3, 8, 8), record=Record("attention"))) == (
        "Net records no attention: let its forward take `record` and call record.keep('attention', ...)"
    )
    record, images = Record("features"), torch.randn(2, 3, 8, 8)
    assert torch.equal(model(images, record=record), model(images)) and record.features.shape == (2, 8)


class Recorder(Net):
    """Keeps what it is asked for."""

    def forward(self, images: Tensor, record: Record | None = None) -> Tensor:
        features = self.features(images)
        if record is not None:
            record.start(2)
            for layer in range(2):
                record.keep("attention", features[:, None, None], layer)
        return self.fc(features)


@pytest.mark.parametrize("new_head", [False, True])
def test_it_records_what_it_keeps_itself(new_head: bool) -> None:
    model, images = wrapped(Recorder()).model, torch.randn(2, 3, 8, 8)
    if new_head:
        model.reset_head(3)
    record = Record("attention", "features", layers=[-1])
    assert torch.equal(model(images, record=record), model(images))
    assert [*record.attention] == [1] and torch.equal(record.attention[1][:, 0, 0], record.features)
    assert refused(lambda: model(images, record=Record("tokens"))).startswith("Recorder records no tokens")


def test_a_report_on_its_run_says_what_is_left_out() -> None:
    report = vitkit.report(Path(train(wrapped(), duration=2).run))
    assert "Net is a module of your own" in report.left_out[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"activation_checkpointing": True},
            "activation_checkpointing only works for vitkit's own models",
        ),
        ({"objective": "mae"}, "objective mae needs a plain ViT: Net is a module of your own"),
        ({"optimizer": {"layer_decay": 0.5}}, "layer_decay needs blocks, and this model has none"),
        ({"changes": {"model.dropout": 0.1}}, "unknown setting 'dropout' in model"),
    ],
)
def test_settings_that_need_to_know_its_inside_are_refused(settings: dict[str, Any], message: str) -> None:
    assert refused(lambda: train(wrapped(), **settings)).startswith(message)


def test_statistics_are_kept_in_another_precision() -> None:
    module = Net()
    logits = run_in(torch.bfloat16, wrapped(module).model.train(), torch.randn(4, 3, 8, 8))
    norm = module.body[1]
    assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None
    assert logits.dtype == torch.bfloat16 and norm.running_mean.dtype == torch.float32
    assert norm.running_mean.abs().sum() > 0


def test_it_is_saved_as_a_folder_of_vitkit_alone() -> None:
    model = wrapped(class_names=NAMES)
    vitkit.save(model, Path("saved"))
    again = vitkit.load("saved", module=Net(), device="cpu")
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(again.logits(images), model.logits(images)) and again.class_names == NAMES
    text = "Net is a module of your own, which Google's code can't open"
    assert refused(lambda: vitkit.save(model, "saved.npz")) == text


def test_another_size_is_tried_at_once() -> None:
    model = wrapped()
    model.set_image_size((16, 24))
    assert model.preprocessing.size == (16, 24)
    assert model.logits(torch.zeros(1, 3, 16, 24)).shape == (1, 10)
    fixed = wrapped(Plain())
    assert refused(lambda: fixed.set_image_size(16)).startswith("Plain can't take images of 16x16 pixels")
    assert fixed.preprocessing.size == (8, 8)


def test_a_model_of_create_model_is_taken_as_it_is() -> None:
    net = vitkit.create_model("mu/16", patch=4, image_size=8, num_classes=10)
    nn.init.normal_(net.get_parameter("head.weight"))
    model = vitkit.wrap(net, class_names=NAMES)
    assert model.model is net and model.spec.startswith("module:VisionTransformer-")
    expected = vitkit.evaluate(model, "digits:test[:50]", progress=False).accuracy
    settings = dict(duration=1, optimizer={"learning_rate": 1e-30}, average=None)
    result = train(net, preprocessing={"mean": [0.5] * 3, "std": [0.5] * 3}, **settings)
    assert result.metrics["test/accuracy"] == pytest.approx(expected)  # these weights, their head included
    assert vitkit.load(result.run, device="cpu").model.config == net.config  # no module needed
    assert vitkit.load(net).embed(np.zeros((8, 8, 3), np.uint8)).shape == (1, 32)
