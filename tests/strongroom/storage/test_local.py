from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from io import FileIO
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from typing_extensions import Buffer

from strongroom.errors import (
    ConflictError,
    InputError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
)
from strongroom.storage.local import LocalStorage

spawn = multiprocessing.get_context("spawn")

SIZE = 300_000
NUM_RACERS = 6
NUM_KEYS = 40
SYSTEM_CALLS = ("fsync", "link", "replace")


def keys(storage: LocalStorage) -> list[str]:
    return [info.key for info in storage.walk("")]


def content(number: int) -> bytes:
    return bytes([number % 256]) * SIZE


# --- what child processes run ----------------------------------------------------------


def race(root: Path, number: int, start: Barrier, won: Path) -> None:
    """Create many keys that the others create as well; note those won."""
    storage = LocalStorage(root)
    start.wait()
    wins = []
    for index in range(NUM_KEYS):
        try:
            storage.create(f"race/{index // 10}/{index}", content(number))
        except ConflictError:
            continue
        wins.append(str(index))
    (won / str(number)).write_text(" ".join(wins))


def create_and_delete(root: Path, number: int, start: Barrier, won: Path) -> None:
    """Keep the one folder all of them use coming and going."""
    storage = LocalStorage(root)
    start.wait()
    for _ in range(150):
        storage.create(f"a/b/{number}", b"x")
        assert storage.read(f"a/b/{number}") == b"x"
        storage.delete(f"a/b/{number}")
    (won / str(number)).touch()


def write_until_killed(root: Path) -> None:
    storage = LocalStorage(root)
    for number in range(1_000_000):
        with storage.create_stream(f"shards/{number:06d}") as writer:
            for start in range(0, SIZE, 50_000):
                writer.write(content(number)[start : start + 50_000])


def die_at(root: Path, call: str, when: str) -> None:
    """Kill this process just before or just after its first system call of that name."""
    real = getattr(os, call)

    def kill(*args: object, **kwargs: object) -> None:
        if when == "after":
            real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    storage = LocalStorage(root)
    storage.create("before", b"stands")
    setattr(os, call, kill)
    if call == "replace":
        storage.replace("before", b"replaced")
    else:
        storage.create("runs/object", content(7))


# --- many processes --------------------------------------------------------------------


def run_together(target: object, root: Path, won: Path) -> list[Path]:
    won.mkdir()
    start = spawn.Barrier(NUM_RACERS)
    processes = [
        spawn.Process(target=target, args=(root, number, start, won))  # type: ignore[arg-type]
        for number in range(NUM_RACERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * NUM_RACERS
    return sorted(won.iterdir())


def test_of_many_processes_that_create_one_key_exactly_one_wins(tmp_path: Path) -> None:
    notes = run_together(race, tmp_path / "store", tmp_path / "won")
    storage = LocalStorage(tmp_path / "store")
    winner_of: dict[int, int] = {}
    for note in notes:
        for index in map(int, note.read_text().split()):
            assert index not in winner_of, "two processes were told that they created one key"
            winner_of[index] = int(note.name)
    assert sorted(winner_of) == list(range(NUM_KEYS))
    for index, winner in winner_of.items():
        assert storage.read(f"race/{index // 10}/{index}") == content(winner)
    assert len(keys(storage)) == NUM_KEYS
    assert list((tmp_path / "store/.tmp").iterdir()) == []


def test_folders_may_vanish_while_others_create_in_them(tmp_path: Path) -> None:
    done = run_together(create_and_delete, tmp_path / "store", tmp_path / "done")
    assert len(done) == NUM_RACERS
    assert [path.name for path in (tmp_path / "store").iterdir()] == [".tmp"]


# --- killed at any moment --------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", SYSTEM_CALLS)
def test_a_kill_around_a_system_call_leaves_all_or_nothing(
    tmp_path: Path, call: str, when: str
) -> None:
    child = spawn.Process(target=die_at, args=(tmp_path, call, when))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    storage = LocalStorage(tmp_path)
    placed = when == "after" and call != "fsync"
    assert keys(storage) == (["before", "runs/object"] if placed and call == "link" else ["before"])
    assert storage.read("before") == (b"replaced" if placed and call == "replace" else b"stands")
    if placed and call == "link":
        assert storage.read("runs/object") == content(7)
    left = [path.name for path in (tmp_path / ".tmp").iterdir()]
    assert storage.discard_unfinished(older_than_s=0) == left
    assert keys(storage) == keys(LocalStorage(tmp_path))


def test_a_kill_at_a_random_moment_leaves_only_whole_objects(tmp_path: Path) -> None:
    child = spawn.Process(target=write_until_killed, args=(tmp_path / "store",))
    child.start()
    storage = LocalStorage(tmp_path / "store")
    while len(keys(storage)) < 25:
        time.sleep(0.001)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    found = list(storage.walk(""))
    assert [info.key for info in found] == [f"shards/{n:06d}" for n in range(len(found))]
    for number, info in enumerate(found):
        assert storage.read(info.key) == content(number)


# --- what the system refuses -----------------------------------------------------------


@pytest.mark.parametrize("call", ["fsync", "link"])
@pytest.mark.parametrize(
    ("code", "kind", "next_step"),
    [
        (errno.ENOSPC, StorageFullError, "free space"),
        (errno.EDQUOT, StorageFullError, "quota"),
        (errno.EACCES, StorageDeniedError, "grant this user the right to write"),
        (errno.EROFS, StorageDeniedError, "use another folder"),
        (errno.EPERM, StorageError, "hard links"),
        (errno.EIO, StorageError, "check the disk"),
    ],
)
def test_what_the_system_refuses_is_named_and_leaves_nothing(
    tmp_path: Path, call: str, code: int, kind: type[StorageError], next_step: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    storage = LocalStorage(tmp_path)
    storage.create("folder/first", b"")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(kind, match=next_step) as caught:
            storage.create("folder/object", b"data")
    assert "folder/object" in str(caught.value)
    assert os.strerror(code) in str(caught.value)
    assert keys(storage) == ["folder/first"]
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_a_disk_that_fills_up_while_a_stream_is_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_full_disk(_: Path, mode: str) -> object:
        assert mode == "xb"
        return Path("/dev/full").open("wb", buffering=0)

    monkeypatch.setattr("strongroom.storage.local.FileIO", on_a_full_disk)
    with pytest.raises(StorageFullError, match=r"shard: cannot write: No space left"):
        LocalStorage(tmp_path).create("shard", b"data")
    assert keys(LocalStorage(tmp_path)) == []


def test_a_system_that_writes_only_some_of_the_bytes_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reluctant(FileIO):
        def write(self, data: Buffer, /) -> int:
            return super().write(memoryview(data)[:3])

    monkeypatch.setattr("strongroom.storage.local.FileIO", Reluctant)
    storage = LocalStorage(tmp_path)
    storage.create("a", b"0123456789")
    assert storage.read("a") == b"0123456789"


# --- what stands in the folder ---------------------------------------------------------


def test_nothing_is_made_before_the_first_create(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "not/yet")
    assert keys(storage) == []
    assert storage.folders("") == []
    storage.delete("a/b")
    assert storage.discard_unfinished(older_than_s=0) == []
    assert list(tmp_path.iterdir()) == []
    storage.create("a/b", b"now")
    assert storage.read("a/b") == b"now"


def test_a_root_that_is_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a folder, got a file"):
        LocalStorage(tmp_path / "file")


def test_a_root_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="check the disk and the path"):
        LocalStorage(tmp_path / "file/store").create("a", b"")


def test_the_url_spells_odd_letters_of_the_path(tmp_path: Path) -> None:
    assert LocalStorage(tmp_path / "güz dönemi#1").url.endswith("/g%C3%BCz%20d%C3%B6nemi%231")


def test_a_folder_emptied_by_deletes_is_gone(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("a/b/c/d", b"")
    storage.create("a/x", b"")
    storage.delete("a/b/c/d")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["x"]


def test_a_young_unfinished_file_is_spared(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("a", b"")
    old, young = tmp_path / ".tmp/old", tmp_path / ".tmp/young"
    for path, age_s in ((old, 7200), (young, 60)):
        path.write_bytes(b"left by a killed process")
        os.utime(path, (time.time() - age_s,) * 2)
    assert storage.discard_unfinished(older_than_s=3600) == ["old"]
    assert young.exists()
    assert keys(storage) == ["a"]
