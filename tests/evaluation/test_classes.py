"""Classes are matched by name, WordNet id or mapping, never by position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitkit.data.sources.source import Files
from vitkit.errors import InputError
from vitkit.evaluation.classes import HeadClasses, match, read_mapping
from vitkit.evaluation.imagenet import WORDNET_IDS, imagenet_places
from vitkit.predictor import default_names

SYNSETS = Path(__file__).parents[2].parent / "shared" / "data" / "imagenet" / "synsets.txt"
PETS = HeadClasses("tiny", ["bird", "cat", "dog", "fish"])


def source(*names: str, labels: list[int] | None = None) -> Files:
    numbers = np.arange(len(names)) if labels is None else np.array(labels)
    return Files("set", "all", names, numbers, [f"{number}.png" for number in range(len(numbers))])


def message(function: Any, *arguments: Any) -> str:
    with pytest.raises(InputError) as error:
        function(*arguments)
    return str(error.value)


def test_wordnet_ids() -> None:
    assert len(set(WORDNET_IDS)) == 1000 and list(WORDNET_IDS) == sorted(WORDNET_IDS)
    words = default_names(1000)
    # Known pairs: the first, the last, and some between.
    known = {
        "n01440764": "tench",
        "n02123045": "tabby",
        "n03063599": "coffee mug",
        "n15075141": "toilet tissue",
    }
    assert {name: words[WORDNET_IDS.index(name)] for name in known} == known


@pytest.mark.skipif(not SYNSETS.exists(), reason="needs the shared synsets.txt")
def test_wordnet_ids_are_imagenets() -> None:
    assert list(WORDNET_IDS) == SYNSETS.read_text().split()


def test_imagenet_heads_are_known() -> None:
    words = default_names(1000)
    every = np.arange(1000)
    assert (imagenet_places(words) == every).all()
    assert (imagenet_places(WORDNET_IDS) == every).all()
    assert (imagenet_places(WORDNET_IDS[::-1]) == every[::-1]).all()
    synonyms = [
        f"{word}, Latin name" if place % 20 else "spelled otherwise" for place, word in enumerate(words)
    ]
    assert (imagenet_places(synonyms) == every).all()
    assert imagenet_places([f"class {place}" for place in range(1000)]) is None
    assert imagenet_places((*words[::-1][:999], "other")) is None
    assert imagenet_places(["n02123045", "tench"]).tolist() == [281, 0]  # type: ignore[union-attr]
    assert imagenet_places(["cat", "dog"]) is None
    assert imagenet_places([]) is None


def test_order_of_the_data_means_nothing() -> None:
    found = match(source("dog", "cat", "fish", "bird"), PETS, None, "head")
    assert found.places.tolist() == [2, 1, 3, 0]
    assert found.class_names == PETS.class_names
    assert found.answers.tolist() == [0, 1, 2, 3] and (found.members == np.eye(4)).all()
    assert not found.notes


def test_folders_by_wordnet_id_meet_a_head_of_words() -> None:
    head = HeadClasses("Ti/16", default_names(1000))
    found = match(source("n15075141", "n01440764"), head, None, "head")
    assert found.places.tolist() == [999, 0]
    assert found.class_names[:1] == ("tench",)
    assert found.notes == (
        "no image of 998 of the 1,000 classes of Ti/16: these can still be predicted, "
        "unless you add --classes data",
    )
    alone = match(source("n15075141", "n01440764"), head, None, "data")
    assert alone.class_names == ("tench", "toilet tissue")
    assert alone.answers.tolist() == [0, 999] and alone.places.tolist() == [1, 0]
    assert alone.notes == ("no image of 998 of the 1,000 classes of Ti/16: these can't be predicted",)


def test_words_meet_a_head_of_wordnet_ids() -> None:
    head = HeadClasses("ours", WORDNET_IDS[:10])
    assert match(source("ostrich", "n01440764"), head, None, "head").places.tolist() == [9, 0]


def test_classes_without_images_need_no_match() -> None:
    assert match(source("cat", "yak", labels=[0, 0]), PETS, None, "data").class_names == ("cat",)


def test_a_class_that_the_head_lacks() -> None:
    assert message(match, source("cat", "dgo"), PETS, None, "head") == (
        "set has class 'dgo', which is none of the 4 classes of tiny; did you mean 'dog'? "
        "they are bird, cat, dog, fish; --mapping FILE says what other names mean"
    )
    assert message(match, source("0", "1"), HeadClasses("Ti/16", default_names(1000)), None, "head") == (
        "set has class '0', which is none of the 1,000 classes of Ti/16; they are tench, goldfish, "
        "great white shark, tiger shark, hammerhead, ...; --mapping FILE says what other names mean"
    )


def test_a_head_without_names() -> None:
    assert message(match, source("cat", "dog"), HeadClasses("x.npz", default_names(2)), None, "head") == (
        "set has class 'cat', and the 2 classes of x.npz have no names: --names FILE gives them, one per line"
    )


def test_a_name_that_the_head_has_twice() -> None:
    head = HeadClasses("tiny", ["crane", "crane", "cat"])
    assert head.unique_names == ("crane (0)", "crane (1)", "cat")
    assert match(source("cat"), head, None, "head").places.tolist() == [2]
    assert message(match, source("crane"), head, None, "head") == (
        "set has class 'crane', and 2 of the 3 classes of tiny have that name; "
        "--mapping FILE says what other names mean"
    )


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_mapping_files(tmp_path: Path) -> None:
    head = HeadClasses("Ti/16", default_names(1000))
    entries = {
        "Chair": ["barber chair", "n03376595", 765],
        "Bench": "park bench",
        "Tie": 906,
        "Yak": None,
        "No": [],
    }
    text = json.dumps(entries)
    expected = {"Chair": (423, 559, 765), "Bench": (703,), "Tie": (906,), "Yak": (), "No": ()}
    assert read_mapping(write(tmp_path / "a.json", text), head) == expected
    table = "class,head\nChair,barber chair;n03376595\nBench, park bench\n\nChair,765\nTie,906\nYak,\nNo,\n"
    assert read_mapping(write(tmp_path / "a.csv", table), head) == expected
    assert read_mapping(write(tmp_path / "b.json", '{"e\\u0301clair": [2, "2"]}'), PETS) == {"éclair": (2,)}
    names = HeadClasses("digits", ["9", "8", "7"])  # a name comes before a place
    assert read_mapping(write(tmp_path / "c.json", '{"a": "8", "b": 2}'), names) == {"a": (1,), "b": (2,)}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("m.json", '{"a": "cta"}', "{} maps 'a' to 'cta', which is none of the 4 classes of tiny; did you mean 'cat'? "
         "they are bird, cat, dog, fish; a place in the head is a number"),
        ("m.json", '{"a": 4}', "{} maps 'a' to 4; tiny has classes 0 to 3"),
        ("m.json", '{"a": "04"}', "{} maps 'a' to 4; tiny has classes 0 to 3"),
        ("m.json", '{"a": [true]}', "{} maps 'a' to true; expected names, WordNet ids or places in the head"),
        ("m.json", '{"a": 1.5}', "{} maps 'a' to 1.5; expected names, WordNet ids or places in the head"),
        ("m.json", '{"a": 1, "a": 2}', "{} maps 'a' twice"),
        ("m.json", "[1]", 'the mapping {} is not a JSON object such as {{"chair": ["folding chair", 765]}}'),
        ("m.json", "{", "the mapping {} is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 "
         "(char 1)"),
        ("m.csv", "a,b\n1,2\n", "the mapping {} has columns a,b; expected class,head"),
        ("m.csv", "class,head\na,cat,dog\n", "{}, line 2, has 3 fields, its header 2: a field with a comma needs quotes"),
        ("m.txt", "", "the mapping {} is neither .json nor .csv"),
    ],
)  # fmt: skip
def test_wrong_mappings(tmp_path: Path, name: str, text: str, expected: str) -> None:
    path = write(tmp_path / name, text)
    assert message(read_mapping, path, PETS) == expected.format(path)


def test_a_mapping_that_isn_t_there(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    assert message(read_mapping, path, PETS) == f"cannot read the mapping {path}: No such file or directory"
    path.write_bytes(b"\xff\xff")
    assert message(read_mapping, path, PETS) == f"cannot read the mapping {path}: it is not UTF-8 text"


def test_a_mapping_of_one_to_one_reports_the_heads_classes() -> None:
    found = match(source("0", "1", "2", "3"), PETS, {"0": (3,), "1": (0,), "2": (), "9": (1,)}, "head")
    assert found.places.tolist() == [3, 0, -1, -1]
    assert found.class_names == PETS.class_names
    assert found.notes == (
        "skipped 2 images of 2 classes that the mapping doesn't list: 2, 3",
        "the mapping has 1 class that set doesn't have: 9",
        "no image of 2 of the 4 classes of tiny: these can still be predicted, unless you add --classes data",
    )


def test_several_data_classes_may_mean_one_of_the_head() -> None:
    found = match(
        source("poodle", "tabby", "beagle"), PETS, {"poodle": (2,), "beagle": (2,), "tabby": (1,)}, "data"
    )
    assert found.class_names == ("cat", "dog")
    assert found.places.tolist() == [1, 0, 1]


def test_a_mapping_to_several_reports_the_datas_classes() -> None:
    names = {"flies": (0,), "runs": (1, 2)}
    found = match(source("runs", "flies", "rests"), PETS, names, "head")
    assert found.class_names == ("runs", "flies")
    assert found.places.tolist() == [0, 1, -1]
    assert found.members.tolist() == [[False, True, True, False], [True, False, False, False]]
    alone = match(source("runs", "flies", "rests"), PETS, names, "data")
    assert alone.answers.tolist() == [0, 1, 2]
    assert alone.members.tolist() == [[False, True, True], [True, False, False]]


def test_a_mapping_for_other_data() -> None:
    assert message(match, source("a", "b"), PETS, {"c": (1,)}, "head") == (
        "the mapping lists none of the classes of set: a, b"
    )
