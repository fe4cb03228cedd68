"""The simulator's script does what it says."""

from __future__ import annotations

from contextlib import suppress

import pytest

from strongroom.errors import StorageDeniedError, StorageFullError
from strongroom.storage.memory import Faults, MemoryStorage, SimulatedCrash


def scenario(storage: MemoryStorage) -> None:
    """Six mutating operations."""
    storage.create("a", b"1")
    with storage.create_stream("shard") as writer:
        writer.write(b"23")
        writer.write(b"45")
    storage.replace("a", b"6")
    storage.delete("a")


def contents(storage: MemoryStorage) -> dict[str, bytes]:
    alive = storage.reopen()
    return {info.key: alive.read(info.key) for info in alive.walk("")}


AFTER: tuple[dict[str, bytes], ...] = (
    {},
    {"a": b"1"},
    {"a": b"1"},
    {"a": b"1"},
    {"a": b"1", "shard": b"2345"},
    {"a": b"6", "shard": b"2345"},
    {"shard": b"2345"},
)


def test_operations_are_counted() -> None:
    storage = MemoryStorage()
    scenario(storage)
    assert storage.operations == [
        "create a",
        "write shard",
        "write shard",
        "commit shard",
        "replace a",
        "delete a",
    ]
    assert contents(storage) == AFTER[6]


@pytest.mark.parametrize("number", range(1, 7))
def test_a_crash_falls_before_or_after_the_operation_of_its_number(number: int) -> None:
    before = MemoryStorage(faults=Faults(crash_before=number))
    with pytest.raises(SimulatedCrash):
        scenario(before)
    assert contents(before) == AFTER[number - 1]
    after = MemoryStorage(faults=Faults(crash_after=number))
    with pytest.raises(SimulatedCrash):
        scenario(after)
    assert contents(after) == AFTER[number]


def test_a_dead_process_does_nothing_more() -> None:
    storage = MemoryStorage(faults=Faults(crash_before=2))
    storage.create("a", b"")
    with suppress(SimulatedCrash):
        storage.create("b", b"")
    for operation in (
        lambda: storage.read("a"),
        lambda: storage.stat("a"),
        lambda: storage.walk(""),
        lambda: storage.delete("a"),
        lambda: storage.create("c", b""),
    ):
        with pytest.raises(SimulatedCrash):
            operation()
    assert contents(storage) == {"a": b""}


def test_no_handler_of_errors_survives_a_crash() -> None:
    assert not issubclass(SimulatedCrash, Exception)


def test_a_torn_stream_stays_unfinished_until_it_is_discarded() -> None:
    storage = MemoryStorage(faults=Faults(crash_before=2))

    def scenario() -> None:
        with storage.create_stream("shard") as writer:
            writer.write(b"12")
            writer.write(b"34")

    with pytest.raises(SimulatedCrash):
        scenario()
    assert contents(storage) == {}
    assert len(storage.reopen().discard_unfinished(older_than_s=0)) == 1


def test_a_second_process_works_on_after_the_first_has_died() -> None:
    first = MemoryStorage(faults=Faults(crash_after=1))
    with suppress(SimulatedCrash):
        first.create("a", b"1")
    second = first.reopen(faults=Faults(crash_after=2))
    second.create("b", b"2")
    with suppress(SimulatedCrash):
        second.create("c", b"3")
    assert contents(second) == {"a": b"1", "b": b"2", "c": b"3"}


def test_a_full_disk_refuses_what_does_not_fit() -> None:
    storage = MemoryStorage(faults=Faults(capacity_bytes=10))
    storage.create("a", b"12345")

    def scenario() -> None:
        with storage.create_stream("shard") as writer:
            writer.write(b"678")
            writer.write(b"9ab")

    with pytest.raises(StorageFullError, match="free space"):
        scenario()
    with pytest.raises(StorageFullError):
        storage.create("b", b"123456")
    storage.replace("a", b"1234567890")
    with pytest.raises(StorageFullError):
        storage.replace("a", b"1234567890a")
    assert contents(storage) == {"a": b"1234567890"}


def test_writing_may_be_denied_by_pattern() -> None:
    storage = MemoryStorage(faults=Faults(deny_writes="*/__1_*.distcp"))

    def scenario() -> None:
        with storage.create_stream("step/__1_0.distcp") as writer:
            writer.write(b"data")

    storage.create("step/__0_0.distcp", b"")
    for operation in (scenario, lambda: storage.create("step/__1_1.distcp", b"")):
        with pytest.raises(StorageDeniedError, match="__1_"):
            operation()
    assert list(contents(storage)) == ["step/__0_0.distcp"]
    assert storage.discard_unfinished(older_than_s=0) == []


def test_one_bit_is_read_wrong() -> None:
    storage = MemoryStorage(faults=Faults(flip_bits={"a": 9}))
    storage.create("a", b"\x00\x00\x00")
    assert storage.read("a") == b"\x00\x02\x00"
    assert storage.read("a", offset=1, num_bytes=1) == b"\x02"
    assert storage.read("a", offset=2) == b"\x00"
    assert contents(storage) == {"a": b"\x00\x00\x00"}
