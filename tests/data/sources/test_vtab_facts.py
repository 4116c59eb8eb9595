"""VTAB-1k's facts: tasks, sizes, splits and label rules of VTAB's task_adaptation code and BiT's appendix F."""

from __future__ import annotations

import pytest

from vitkit.data.sources.vtab import (
    TASKS,
    clevr_count,
    clevr_distance,
    find_task,
    kitti_distance,
    part_sizes,
    slices,
)
from vitkit.errors import InputError

# VTAB's task_adaptation code: group, classes, full train, val and test.
TABLE = {
    "caltech101": ("Natural", 102, 2754, 306, 6084),
    "cifar100": ("Natural", 100, 45000, 5000, 10000),
    "dtd": ("Natural", 47, 1880, 1880, 1880),
    "flowers102": ("Natural", 102, 1020, 1020, 6149),
    "pets": ("Natural", 37, 2944, 736, 3669),
    "sun397": ("Natural", 397, 76128, 10875, 21750),
    "svhn": ("Natural", 10, 65931, 7326, 26032),
    "camelyon": ("Specialized", 2, 262144, 32768, 32768),
    "eurosat": ("Specialized", 10, 16200, 5400, 5400),
    "resisc45": ("Specialized", 45, 18900, 6300, 6300),
    "retinopathy": ("Specialized", 5, 35126, 10906, 42670),
    "clevr_count": ("Structured", 8, 63000, 7000, 15000),
    "clevr_dist": ("Structured", 6, 63000, 7000, 15000),
    "dmlab": ("Structured", 6, 65550, 22628, 22735),
    "dsprites_loc": ("Structured", 16, 589824, 73728, 73728),
    "dsprites_ori": ("Structured", 16, 589824, 73728, 73728),
    "kitti": ("Structured", 4, 6347, 423, 711),
    "smallnorb_azi": ("Structured", 18, 24300, 12150, 12150),
    "smallnorb_ele": ("Structured", 9, 24300, 12150, 12150),
}
# VTAB's task_adaptation code: where val200 and test are.
CUTS = {
    "caltech101": (("train", 2754, 2954), ("test", 0, 6084)),
    "cifar100": (("train", 45000, 45200), ("test", 0, 10000)),
    "pets": (("train", 2944, 3144), ("test", 0, 3669)),
    "svhn": (("train", 65931, 66131), ("test", 0, 26032)),
    "clevr_count": (("train", 63000, 63200), ("validation", 0, 15000)),
    "clevr_dist": (("train", 63000, 63200), ("validation", 0, 15000)),
    "eurosat": (("train", 16200, 16400), ("train", 21600, 27000)),
    "resisc45": (("train", 18900, 19100), ("train", 25200, 31500)),
    "dsprites_loc": (("train", 589824, 590024), ("train", 663552, 737280)),
    "dsprites_ori": (("train", 589824, 590024), ("train", 663552, 737280)),
    "smallnorb_azi": (("test", 0, 200), ("test", 12150, 24300)),
    "smallnorb_ele": (("test", 0, 200), ("test", 12150, 24300)),
    "dtd": (("validation", 0, 200), ("test", 0, 1880)),
    "flowers102": (("validation", 0, 200), ("test", 0, 6149)),
    "camelyon": (("validation", 0, 200), ("test", 0, 32768)),
    "retinopathy": (("validation", 0, 200), ("test", 0, 42670)),
    "sun397": (("validation", 0, 200), ("test", 0, 21750)),
    "dmlab": (("validation", 0, 200), ("test", 0, 22735)),
    "kitti": (("validation", 0, 200), ("test", 0, 711)),
}


def test_the_table_is_the_papers() -> None:
    found = {name: (task.group, task.num_classes, *task.sizes) for name, task in TASKS.items()}
    assert found == TABLE


@pytest.mark.parametrize("name", TASKS)
def test_splits_are_cut_by_the_papers_rule(name: str) -> None:
    val, test = CUTS[name]
    found = slices(TASKS[name])
    assert found == {
        "train800": (("train", 0, 800),),
        "val200": (val,),
        "train800val200": (("train", 0, 800), val),
        "test": (test,),
    }


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("pets", {"train": 3680, "test": 3669}),
        ("svhn", {"train": 73257, "test": 26032}),
        ("eurosat", {"train": 27000}),
        ("smallnorb_azi", {"train": 24300, "test": 24300}),
        ("clevr_dist", {"train": 70000, "validation": 15000}),
        ("dtd", {"train": 1880, "validation": 1880, "test": 1880}),
    ],
)
def test_full_splits_fill_the_raw_data(name: str, parts: dict[str, int]) -> None:
    assert part_sizes(TASKS[name]) == parts


def test_what_training_may_do_to_images() -> None:  # BiT, appendix F
    assert {name for name, task in TASKS.items() if not task.flip} == {
        "dsprites_ori",
        "smallnorb_azi",
        "dsprites_loc",
    }
    assert {name for name, task in TASKS.items() if not task.crop} == {
        "clevr_count",
        "clevr_dist",
        "dmlab",
        "kitti",
        "dsprites_loc",
    }


def test_clevr_counts_from_three_objects() -> None:
    assert [clevr_count(number) for number in range(3, 11)] == list(range(8))


@pytest.mark.parametrize(
    ("depth", "label"),
    [
        (7.9, 0),
        (8.0, 0),
        (8.01, 1),
        (8.5, 1),
        (8.6, 2),
        (9.0, 2),
        (9.1, 3),
        (9.5, 3),
        (9.6, 4),
        (10.0, 4),
        (10.5, 5),
    ],
)
def test_clevr_distance_is_the_nearest_objects(depth: float, label: int) -> None:
    assert clevr_distance([depth]) == clevr_distance([99.0, depth, 20.0]) == label


@pytest.mark.parametrize(
    ("metres", "label"),
    [
        ([8.0], 0),
        ([8.1], 1),
        ([20.0], 1),
        ([20.1], 2),
        ([70.0, 30.0], 2),
        ([70.0, 3.0], 0),
        ([], 3),
        ([-1.0], 0),
    ],
)
def test_kitti_distance_is_the_nearest_vehicles(metres: list[float], label: int) -> None:
    assert kitti_distance(metres) == label


def test_a_task_has_our_name_and_the_shared_one() -> None:
    assert [find_task(name) for name in ("cifar", "cifar100", "patch_camelyon", "oxford_iiit_pet")] == [
        "cifar100",
        "cifar100",
        "camelyon",
        "pets",
    ]
    shared = (
        "caltech101 cifar dtd oxford_flowers102 oxford_iiit_pet sun397 svhn patch_camelyon eurosat resisc45 "
        "diabetic_retinopathy clevr_count clevr_dist dmlab dsprites_loc dsprites_ori kitti smallnorb_azi smallnorb_ele"
    )
    assert [find_task(name) for name in shared.split()] == list(TASKS)
    with pytest.raises(InputError, match="VTAB has no task 'dtf'; did you mean 'dtd'"):
        find_task("dtf")
    with pytest.raises(InputError, match="VTAB has no task 'zzz'; there are caltech101, "):
        find_task("zzz")
