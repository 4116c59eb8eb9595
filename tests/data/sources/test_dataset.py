"""PyTorch's data sets are data, and sources are what PyTorch's DataLoader takes."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, random_split
from torchvision import datasets, transforms

from vitkit.data.decode import decode
from vitkit.data.fetch import in_memory
from vitkit.data.open import list_splits, open_data
from vitkit.data.sources.dataset import Wrapped
from vitkit.data.sources.source import Files, Subset, shared_images
from vitkit.data.sources.vision import Pixels
from vitkit.errors import InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 6, 8, 3), np.uint8)
TARGETS = [number % 3 for number in range(12)]


class Pairs(Dataset[Any]):
    """Twelve images, in any form, with any labels; attributes as given."""

    def __init__(
        self, form: Callable[[np.ndarray], Any] = Image.fromarray, labels: Any = None, **stated: Any
    ) -> None:
        self.form, self.given = form, TARGETS if labels is None else labels
        self.read: list[int] = []
        vars(self).update(stated)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return self.form(IMAGES[index]), self.given[index]


class Stream(IterableDataset[Any]):
    """Images without an index."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "PIL": Image.fromarray,
    "array": lambda pixels: pixels,
    "uint8 tensor": lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1),
    "float tensor": transforms.ToTensor(),
    "float array": lambda pixels: (pixels / 255).astype(np.float32),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_images_in_any_form_have_the_same_pixels(form: Callable[[np.ndarray], Any]) -> None:
    source = open_data(Pairs(form))
    assert (len(source), source.num_classes, source.labels.tolist()) == (12, 3, TARGETS)
    for index in range(12):
        assert np.array_equal(decode(source.read(index)).permute(1, 2, 0), IMAGES[index])


def test_grey_images_fill_three_channels() -> None:
    for form in (lambda pixels: pixels[..., 0], lambda pixels: Image.fromarray(pixels[..., 0])):
        source = open_data(Pairs(form))
        assert np.array_equal(source.read(3), np.repeat(IMAGES[3][..., :1], 3, -1))


def test_what_a_data_set_says_of_itself_is_used() -> None:
    data = Pairs(targets=TARGETS, classes=["cat", "dog", "cow"], train=False)
    source = open_data(data)
    assert isinstance(source, Wrapped) and source.class_names == ("cat", "dog", "cow")
    assert (source.name, source.split) == ("torch:Pairs", "test")
    assert re.fullmatch("torch:Pairs-[0-9a-f]{8}:test", source.data_name)
    assert sorted(set(data.read)) == [0, 6, 11], (
        "three images alone are read, to see that targets are their labels"
    )
    assert source.notes == ("torch:Pairs: 3 classes, in the data set's order: cat, dog, cow",)
    assert source.where(4) == "torch:Pairs, image 4"
    assert re.fullmatch("torch:Pairs-[0-9a-f]{8}", open_data(Pairs()).data_name)
    tensor = open_data(Pairs(labels=torch.tensor(TARGETS), **{"split": "validation"}))
    assert (tensor.split, tensor.labels.tolist(), tensor.class_names) == ("val", TARGETS, ("0", "1", "2"))


def test_labels_that_nothing_states_are_read_one_by_one() -> None:
    told: list[tuple[int, int]] = []
    assert open_data(Pairs(labels=[number == 0 for number in TARGETS])).class_names == ("0", "1")
    for labels in (TARGETS, torch.tensor(TARGETS), ["abc"[number] for number in TARGETS]):
        source = open_data(Pairs(labels=labels), progress=lambda done, total: told.append((done, total)))
        assert source.labels.tolist() == TARGETS
        text = "torch:Pairs: read each of 12 images for its label; an attribute `targets` would make that unnecessary"
        assert source.notes[0] == text
    assert source.class_names == ("a", "b", "c")
    assert told[:12] == [(number, 12) for number in range(1, 13)]


def test_targets_that_are_not_the_labels_are_not_believed() -> None:
    other = [2 - number for number in TARGETS]
    assert open_data(Pairs(targets=other)).labels.tolist() == TARGETS
    assert open_data(Pairs(targets=other, target_transform=lambda label: label)).labels.tolist() == TARGETS
    for odd in ("words", 7, [0, 1], np.zeros((12, 2)), [None] * 12, {"a": 1}):
        assert open_data(Pairs(targets=odd)).labels.tolist() == TARGETS


def test_vectors_of_zero_and_one_are_several_labels() -> None:
    vectors = torch.eye(3)[TARGETS]
    vectors[0] = 1
    source = open_data(Pairs(labels=vectors, classes=["a", "b", "c"]))
    assert source.is_multi_label and np.array_equal(source.labels, vectors.bool())
    with pytest.raises(InputError, match="^torch:Pairs has labels of 3 classes, and names 2$"):
        open_data(Pairs(labels=vectors, classes=["a", "b"]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            Pairs(transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.1)])),
            "torch:Pairs, image 0: a float image has values from -5 to 4.76471; expected 0 to 1: vitkit normalises "
            "images itself, so leave out Normalize (and ToTensor), or give uint8",
        ),
        (
            Pairs(lambda pixels: pixels[..., :2]),
            "torch:Pairs, image 0: an image has shape (6, 8, 2); an array is (height, width, channels) with 1 or 3 "
            "channels",
        ),
        (
            Pairs(lambda pixels: "a.png" if pixels is None else 3),
            "torch:Pairs, image 0: an image is a path, bytes, a PIL image, an array or a tensor, not int",
        ),
        (
            Pairs(labels=[0.5] * 12),
            "torch:Pairs, image 0, has label 0.5; expected a whole number, a text, or a vector of 0 and 1",
        ),
        (
            Pairs(labels=[[[1]]] * 12),
            "torch:Pairs, image 0, has label a list; expected a whole number, a text, or a vector of 0 and 1",
        ),
        (Pairs(classes=["a", "b"]), "torch:Pairs, image 2, has label 2; torch:Pairs gives 2 classes, 0 to 1"),
        (
            Pairs(lambda pixels: 1 / 0),
            "cannot read torch:Pairs, image 0: ZeroDivisionError: division by zero",
        ),
        (
            TensorDataset(torch.zeros(4, 3, 8, 8)),
            "torch:TensorDataset, image 0 is a tuple; expected (image, label), the image a PIL image, an array or a "
            "tensor",
        ),
        (TensorDataset(torch.zeros(0, 3, 8, 8)), "torch:TensorDataset has no images"),
        (
            Stream(),
            "torch:Stream has no length; expected a map-style data set, with __len__ and __getitem__",
        ),
        (
            [(IMAGES[0], 0)],
            "data is a list; expected a DATA string, a path, a source, or a map-style data set of PyTorch",
        ),
        (
            None,
            "data is a NoneType; expected a DATA string, a path, a source, or a map-style data set of PyTorch",
        ),
    ],
)
def test_what_is_no_labelled_image_says_so_when_it_is_opened(data: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        open_data(data)
    assert str(error.value) == message


def test_an_image_that_fails_is_unreadable_and_no_more() -> None:
    def form(pixels: np.ndarray) -> Any:
        if np.array_equal(pixels, IMAGES[0]):
            raise OSError("the disk is gone")
        return pixels

    source = open_data(Pairs(form, targets=TARGETS))
    with pytest.raises(InputError, match="^cannot read torch:Pairs, image 0: OSError: the disk is gone$"):
        source[0]
    assert source[1][1] == 1


def test_nothing_computed_is_kept_of_what_may_change() -> None:
    source = open_data(Pairs(targets=TARGETS))
    assert source.may_change and source[2:5].may_change and in_memory(source).may_change
    assert not open_data("digits").may_change
    again = pickle.loads(pickle.dumps(open_data(TensorDataset(torch.zeros(4, 3, 8, 8), torch.arange(4)))))
    assert again.may_change and again.labels.tolist() == [0, 1, 2, 3]


def test_names_tell_data_sets_apart_and_stay_the_same() -> None:
    def random_flip(pixels: np.ndarray) -> np.ndarray:
        flips = torch.rand(()) < 0.5, np.random.rand() < 0.5, random.random() < 0.5
        return pixels[:, :: -1 if sum(map(bool, flips)) % 2 else 1]

    same = [Pairs(random_flip), Pairs(random_flip)]
    others = [
        Pairs(),
        Pairs(lambda pixels: pixels[::-1]),
        Pairs(labels=TARGETS[::-1]),
        Pairs(classes=["a", "b", "c"]),
    ]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    names = [open_data(data).data_name for data in (*same, *others)]
    assert names[0] == names[1] and len(set(names)) == 5
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[2]
    assert np.array_equal(np.random.get_state()[1], states[1]), "opening draws from no generator"


def test_images_are_shared_by_one_data_set_and_not_by_one_name() -> None:
    one, other = Pairs(), Pairs()
    assert shared_images(open_data(one), open_data(one)) == 12
    assert shared_images(open_data(one), open_data(other)) == 0
    assert shared_images(open_data(one)[:5], open_data(one)[3:]) == 2
    halves = random_split(Pairs(targets=TARGETS), [8, 4])
    assert shared_images(*map(open_data, halves)) == 0
    assert shared_images(open_data(halves[0]), open_data(halves[0].dataset)) == 8


def test_a_part_is_the_images_that_it_names() -> None:
    data = Pairs(targets=TARGETS, classes=["a", "b", "c"])
    part = open_data(torch.utils.data.Subset(data, [5, 1, 7]))
    assert isinstance(part, Subset) and part.labels.tolist() == [2, 1, 1]
    assert np.array_equal(part.read(0), IMAGES[5]) and part.class_names == ("a", "b", "c")
    assert part.name == "torch:Pairs" and part.may_change
    assert part.data_name not in (open_data(data).data_name, open_data(Pairs()).data_name)
    unstated = open_data(torch.utils.data.Subset(Pairs(), [5, 1, 7]))
    assert (unstated.name, unstated.labels.tolist()) == ("torch:Subset", [2, 1, 1])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(6):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(IMAGES[number]).save(path)
    return tmp_path / "photos"


def test_torchvisions_own_are_read_from_their_files(photos: Path) -> None:
    source = open_data(datasets.ImageFolder(photos))
    assert isinstance(source, Files) and not source.may_change
    assert (source.name, source.class_names) == ("torch:ImageFolder", ("a", "b"))
    assert source.where(0) == str(photos / "a/0.png")
    assert shared_images(source, open_data(f"{photos}:all")) == 6
    halves = random_split(datasets.ImageFolder(photos), [4, 2])
    assert shared_images(*map(open_data, halves)) == 0
    for changed in (
        datasets.ImageFolder(photos, transform=transforms.Resize(4)),
        datasets.ImageFolder(photos, target_transform=lambda label: 1 - label),
        datasets.ImageFolder(photos, loader=lambda path: Image.open(path).convert("L")),
    ):
        assert isinstance(open_data(changed), Wrapped)
    assert open_data(datasets.ImageFolder(photos, transform=transforms.Resize(4))).read(0).shape == (4, 5, 3)
    assert open_data(datasets.ImageFolder(photos, target_transform=lambda n: 1 - n)).labels[0] == 1


class CIFAR10(datasets.CIFAR10):
    """CIFAR-10 without its files."""

    def __init__(self, train: bool = True, transform: Any = None) -> None:
        datasets.VisionDataset.__init__(self, transform=transform)
        self.train, self.data, self.targets, self.classes = train, IMAGES, TARGETS, ["cat", "dog", "cow"]


CIFAR10.__module__ = "torchvision.datasets.cifar"


def test_torchvisions_pixels_stay_in_memory() -> None:
    train, test = open_data(CIFAR10()), open_data(CIFAR10(train=False))
    assert isinstance(train, Pixels) and train.images is IMAGES
    assert re.fullmatch("torch:CIFAR10-[0-9a-f]{8}:train", train.data_name)
    assert test.data_name == train.data_name.replace(":train", ":test")
    assert shared_images(train, test) == 0
    flipped = open_data(CIFAR10(transform=transforms.RandomHorizontalFlip(1)))
    assert np.array_equal(flipped.read(0), IMAGES[0][:, ::-1]) and flipped.may_change


def test_its_name_alone_does_not_open_it() -> None:
    with pytest.raises(InputError) as error:
        open_data("torch:CIFAR10:train[:90%,seed=0]")
    assert str(error.value) == (
        "torch:CIFAR10 is a PyTorch data set, which has no other splits and opens only in Python: pass the data set "
        "itself, and the one to measure on as evaluate="
    )
    assert list_splits("torch:CIFAR10") == []


def test_a_source_gives_images_and_labels_by_index() -> None:
    source = open_data("digits:val")
    image, label = source[3]
    assert (image.dtype, image.shape, label) == (torch.uint8, (3, 8, 8), int(source.labels[3]))
    assert image.is_contiguous() and isinstance(label, int)
    image.zero_()
    assert source[3][0].any(), "what is returned is a copy"
    assert torch.equal(source[-1][0], source[257][0]) and source[np.int64(5)][1] == source.labels[5]
    for index in (258, -259):
        with pytest.raises(IndexError, match=f"^image {index} of digits:val, which has 258$"):
            source[index]
    part = source[10:20:3]
    assert isinstance(part, Subset) and part.labels.tolist() == source.labels[10:20:3].tolist()
    assert len(source[250:999]) == 8 and torch.equal(source[::-1][0][0], source[-1][0])
    assert [label for _, label in source] == source.labels.tolist(), "a loop ends, in order"


def test_sources_of_files_and_scenes_are_indexed_too(photos: Path) -> None:
    assert [label for _, label in open_data(f"{photos}:all")] == [0, 0, 0, 1, 1, 1]
    image, _ = open_data(f"{photos}:all")[0]
    assert np.array_equal(image.permute(1, 2, 0), IMAGES[0])
    assert open_data("shapes:val[:5,size=16]")[4][0].shape == (3, 16, 16)
    (photos / "a/0.png").write_bytes(b"")
    with pytest.raises(InputError, match=f"^cannot read {photos}/a/0.png: it is empty$"):
        open_data(f"{photos}:all")[0]


def test_pytorchs_loader_takes_a_source(photos: Path) -> None:
    source = open_data("digits:val")
    assert isinstance(source, Dataset)
    images, labels = next(iter(DataLoader(source, batch_size=16)))
    assert images.shape == (16, 3, 8, 8) and labels.tolist() == source.labels[:16].tolist()
    transform = transforms.Compose([transforms.Resize(4), transforms.ToTensor()])
    data = open_data(f"{photos}:all").with_transform(transform)
    images, labels = next(iter(DataLoader(data, batch_size=6, num_workers=1)))
    assert images.shape == (6, 3, 4, 5) and images.dtype == torch.float32
    assert torch.equal(images[1], transform(Image.fromarray(IMAGES[2])))
    assert (data.classes, labels.tolist()) == (["a", "b"], [0, 0, 0, 1, 1, 1])
    halves = random_split(source, [200, 58])
    assert sum(len(labels) for _, labels in DataLoader(halves[1], batch_size=32)) == 58


def test_several_labels_are_a_vector(tmp_path: Path, photos: Path) -> None:
    (photos / "t.csv").write_text("image,label\na/0.png,x;y\nb/1.png,y\n")
    _, labels = next(iter(DataLoader(open_data(f"{photos}/t.csv:all"), batch_size=2)))
    assert labels.tolist() == [[True, True], [False, True]]


def test_what_goes_out_comes_back(photos: Path) -> None:
    source = open_data(f"{photos}:all")
    back = open_data(source.with_transform(transforms.Resize(4)))
    assert back.class_names == source.class_names and back.labels.tolist() == source.labels.tolist()
    assert back.read(0).shape == (4, 5, 3)
    twice = open_data(back[2:].with_transform(transforms.Resize(2)))
    assert twice.read(0).shape == (2, 2, 3), "a data set may read another"
