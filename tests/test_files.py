"""Files and folders are there whole, at every moment and after a power cut."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from vitkit import files
from vitkit.errors import InputError
from vitkit.files import check_output, folder_written_whole, write_file, written_whole

Calls = list[tuple[str, str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What is synced and what is renamed, in order, by the names that it has then."""
    seen: Calls = []
    sync, replace, rename, exchange = os.fsync, os.replace, os.rename, files._exchange

    def fsync(descriptor: int) -> None:
        seen.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        sync(descriptor)

    def recorded(call: Callable[..., object]) -> Callable[..., object]:
        def run(source: object, target: object) -> object:
            seen.append(("rename", Path(str(target)).name))
            return call(source, target)

        return run

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", recorded(replace))
    monkeypatch.setattr(os, "rename", recorded(rename))
    monkeypatch.setattr(files, "_exchange", recorded(exchange))
    return seen


def fill(path: Path, content: str) -> None:
    with folder_written_whole(path) as part:
        (part / "config.json").write_text(content)
        (part / "deep").mkdir()
        (part / "deep" / "weights").write_text(content)


def test_a_file_is_synced_before_it_has_its_name_and_its_folder_after(tmp_path: Path, calls: Calls) -> None:
    path = tmp_path / "run.json"
    for content in ("one", b"two"):
        write_file(path, content)
        (first, name), renamed, last = calls
        assert first == "sync"
        assert name.startswith(".run.json.")
        assert (renamed, last) == (("rename", "run.json"), ("sync", tmp_path.name))
        calls.clear()
    assert path.read_bytes() == b"two"


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_is_synced_before_it_has_its_name_and_its_parent_after(
    tmp_path: Path, calls: Calls, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    for content in ("one", "two"):
        fill(tmp_path / "model", content)
        renamed = next(place for place, (what, _) in enumerate(calls) if what == "rename")
        before = [name for what, name in calls[:renamed] if what == "sync"]
        assert {"config.json", "deep", "weights"} < set(before)
        assert before[-1].startswith(".model.")
        assert calls[-1] == ("sync", tmp_path.name)
        assert ("rename", "model") in calls
        calls.clear()
    assert (tmp_path / "model" / "deep" / "weights").read_text() == "two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems rename in two steps")
def test_a_reader_finds_the_folder_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    fill(tmp_path / "model", "0")
    missed, is_over = list[OSError](), threading.Event()

    def read() -> None:
        while not is_over.is_set():
            try:
                (tmp_path / "model" / "config.json").read_text()
            except OSError as error:
                missed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(200):
            fill(tmp_path / "model", str(number))
    finally:
        is_over.set()
        reader.join()
    assert not missed


def test_an_error_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "model", "old")
    with pytest.raises(ZeroDivisionError), folder_written_whole(tmp_path / "model"):
        raise ZeroDivisionError
    monkeypatch.setattr(files, "_exchange", lambda *_: False)
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name.endswith(".old") or target.name.endswith(".old"):
            return rename(self, target)
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(InputError, match="model can't be written: Permission denied$"):
        fill(tmp_path / "model", "new")
    assert (tmp_path / "model" / "config.json").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_link_to_a_folder_stays(tmp_path: Path) -> None:
    fill(tmp_path / "there", "old")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    fill(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "config.json").read_text() == "new"


def refusal(target: Path, names: list[str] | None = None, **options: bool) -> str:
    with pytest.raises(InputError) as caught:
        check_output(target, names, **{"force": False, **options})
    return str(caught.value).removeprefix(f"{target.parent}/")


def test_force_replaces_only_the_files_that_a_command_writes(tmp_path: Path) -> None:
    out, names = tmp_path / "out", ["a.png", "b.json"]
    assert check_output(out, names, force=False) == []
    assert check_output(out / "a.png", force=False) == []
    out.mkdir()
    assert check_output(out, names, force=False, alone=True) == []  # an empty folder has nothing to lose
    (out / "a.png").write_text("ours")
    assert refusal(out, names) == "out/a.png exists; --force overwrites it"
    assert refusal(out, names, alone=True) == "out exists; --force overwrites it"
    assert refusal(out / "a.png") == "a.png exists; --force overwrites it"
    assert check_output(out, names, force=True) == check_output(out / "a.png", force=True) == [out / "a.png"]
    (out / "c").write_text("theirs")
    assert check_output(out, names, force=True) == [out / "a.png"]
    theirs = "out holds 'c', which vitkit didn't write; choose another folder"
    assert refusal(out, names, force=True, alone=True) == theirs


def test_a_folder_is_not_replaced_by_a_file_nor_a_file_by_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "b.json").mkdir(parents=True)
    for force in (False, True):
        assert refusal(out, ["b.json"], force=force) == "out/b.json is a folder; expected a file to write"
        assert refusal(out, force=force) == "out is a folder; expected a file to write"
        (tmp_path / "file").write_text("theirs")
        for name in ("file", "page.html"):
            text = f"{name} names a file; expected a folder to write"
            assert refusal(tmp_path / name, ["b.json"], force=force) == text


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    write_file(tmp_path / "a" / "file", "old")
    message = "file can't be written: No space left on device$"
    with pytest.raises(InputError, match=message), written_whole(tmp_path / "a" / "file"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (tmp_path / "a" / "file").read_text() == "old"
    assert len(list((tmp_path / "a").iterdir())) == 1
