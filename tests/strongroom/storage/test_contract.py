"""What every storage promises, checked on each of them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from strongroom.errors import (
    ConflictError,
    InputError,
    IntegrityError,
    ObjectMissingError,
    StorageError,
)
from strongroom.names import Digest
from strongroom.storage.base import Part, PartWriter, Storage
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import MemoryStorage
from strongroom.storage.s3 import S3Storage
from strongroom.storage.store import open_storage

AnyStorage = LocalStorage | MemoryStorage | S3Storage

PART = 5 << 20
CENTURY_S = 100 * 365 * 86_400  # moto says of every upload that it began in 2010
SHARD = b"".join(bytes([number % 251]) * 4099 for number in range(2700))  # two parts and some
assert 2 * PART < len(SHARD) < 3 * PART


class StoppedError(Exception):
    pass


def keys(storage: Storage, folder: str = "") -> list[str]:
    return [info.key for info in storage.walk(folder)]


def stream(storage: Storage, key: str, *blocks: bytes) -> None:
    with storage.create_stream(key) as writer:
        for block in blocks:
            writer.write(block)


def parts_of(data: bytes, part_bytes: int = PART) -> list[Part]:
    """Cut `data` into parts of three buffers each, one of them empty, every other one hashed."""
    parts = []
    for number, offset in enumerate(range(0, len(data), part_bytes), 1):
        part = memoryview(data)[offset : offset + part_bytes]
        middle = part.nbytes // 3
        parts.append(
            Part(
                number=number,
                offset=offset,
                buffers=(part[:middle], part[:0], part[middle:]),
                sha256=Digest.of(part) if number % 2 else None,
            )
        )
    return parts


def put_all(writer: PartWriter, parts: Sequence[Part]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(writer.put, parts))


def test_what_is_created_can_be_read(storage: Storage) -> None:
    storage.create("runs/r1/run.json", b"{}")
    storage.create("empty", b"")
    assert storage.read("runs/r1/run.json") == b"{}"
    assert storage.read("empty") == b""
    assert [(info.key, info.num_bytes) for info in storage.walk("")] == [
        ("empty", 0),
        ("runs/r1/run.json", 2),
    ]


def test_a_second_create_is_refused_and_changes_nothing(storage: Storage) -> None:
    storage.create("runs/r1/run.json", b"first")
    with pytest.raises(ConflictError, match=r"runs/r1/run\.json"):
        storage.create("runs/r1/run.json", b"second")
    with pytest.raises(ConflictError, match=r"runs/r1/run\.json"):
        stream(storage, "runs/r1/run.json", b"third")
    assert storage.read("runs/r1/run.json") == b"first"


@pytest.mark.parametrize("blocks", [(), (b"",), (b"a", b"", b"bc"), (SHARD,), (SHARD[:PART],)])
def test_a_stream_stores_all_that_was_written(storage: Storage, blocks: tuple[bytes, ...]) -> None:
    stream(storage, "shard", *blocks)
    whole = b"".join(blocks)
    assert storage.stat("shard") is not None
    assert hashlib.sha256(storage.read("shard")).hexdigest() == hashlib.sha256(whole).hexdigest()


def test_a_stream_takes_typed_memory_that_is_reused_afterwards(storage: Storage) -> None:
    numbers = np.arange(1000, dtype=np.float32).reshape(10, 100)
    expected = numbers.tobytes()
    with storage.create_stream("tensor") as writer:
        writer.write(numbers.data)
        numbers[:] = -1
        writer.write(np.empty((0, 3), dtype=np.float32).data)
    assert storage.read("tensor") == expected


@pytest.mark.parametrize("data", [b"small", SHARD])
def test_a_stream_that_fails_leaves_nothing(storage: AnyStorage, data: bytes) -> None:
    def stop() -> None:
        with storage.create_stream("runs/r1/shard") as writer:
            writer.write(data)
            raise StoppedError

    with pytest.raises(StoppedError):
        stop()
    assert keys(storage) == []
    assert storage.folders("") == []
    assert storage.stat("runs/r1/shard") is None
    assert storage.discard_unfinished(older_than_s=0) == []
    storage.create("runs/r1/shard", b"again")


@pytest.mark.parametrize("data", [b"small", SHARD])
def test_an_object_that_came_first_stays_when_a_stream_ends(
    storage: AnyStorage, data: bytes
) -> None:
    writer = storage.create_stream("shard")
    writer.__enter__()
    writer.write(data)
    storage.create("shard", b"first")
    with pytest.raises(ConflictError, match="shard"):
        writer.__exit__(None, None, None)
    assert storage.read("shard") == b"first"
    assert storage.discard_unfinished(older_than_s=0) == []


def test_an_object_is_seen_only_when_its_stream_has_ended(storage: Storage) -> None:
    with storage.create_stream("runs/shard") as writer:
        writer.write(SHARD)
        assert storage.stat("runs/shard") is None
        assert keys(storage) == []
        assert storage.folders("") == []
    assert keys(storage) == ["runs/shard"]


def test_what_a_killed_writer_left_is_discarded_by_age(storage: AnyStorage) -> None:
    writer = storage.create_stream("shard")
    writer.__enter__()
    writer.write(SHARD)
    assert storage.discard_unfinished(older_than_s=CENTURY_S) == []
    assert len(storage.discard_unfinished(older_than_s=0)) == 1
    assert storage.discard_unfinished(older_than_s=0) == []
    with pytest.raises(StorageError):  # it was not dead after all: it fails, and loudly
        writer.__exit__(None, None, None)
    assert keys(storage) == []


@pytest.mark.parametrize("data", [b"x", SHARD[:1000], SHARD[:PART], SHARD[: PART + 1], SHARD])
def test_parts_are_stored_in_any_order_from_any_thread(storage: Storage, data: bytes) -> None:
    parts = parts_of(data)
    random.Random(7).shuffle(parts)  # noqa: S311 -- an order, not a secret
    with storage.create_parts("step/shard", num_bytes=len(data)) as writer:
        put_all(writer, parts)
        assert storage.stat("step/shard") is None
    assert keys(storage) == ["step/shard"]
    assert Digest.of(storage.read("step/shard")) == Digest.of(data)
    assert storage.discard_unfinished(older_than_s=0) == []


def test_parts_may_be_small_where_the_storage_says_so(storage: Storage) -> None:
    sizes = [storage.part_min_bytes, storage.part_min_bytes + 7, 1]
    data = SHARD[: sum(sizes)]
    with storage.create_parts("shard", num_bytes=len(data)) as writer:
        for number, size in enumerate(sizes, 1):
            offset = sum(sizes[: number - 1])
            buffer = memoryview(data)[offset : offset + size]
            writer.put(Part(number=number, offset=offset, buffers=(buffer,)))
    assert storage.read("shard") == data


def test_a_part_takes_typed_memory_that_is_reused_afterwards(storage: Storage) -> None:
    numbers = np.arange(1000, dtype=np.float32).reshape(10, 100)
    expected = numbers.tobytes()
    with storage.create_parts("tensor", num_bytes=len(expected)) as writer:
        writer.put(Part(number=1, offset=0, buffers=(numbers.data,)))
        numbers[:] = -1
    assert storage.read("tensor") == expected


@pytest.mark.parametrize("num_parts", [0, 1, 2])
@pytest.mark.parametrize("data", [b"0123456789", SHARD])
def test_parts_that_are_not_all_there_are_refused(
    storage: AnyStorage, data: bytes, num_parts: int
) -> None:
    parts = parts_of(data, part_bytes=max(PART, len(data) // 3))
    with (
        pytest.raises(StorageError, match="shard"),
        storage.create_parts("step/shard", num_bytes=len(data) + 1) as writer,
    ):
        put_all(writer, parts[:num_parts])
    assert keys(storage) == []
    assert storage.discard_unfinished(older_than_s=0) == []


@pytest.mark.parametrize("left_out", [0, 1])
def test_an_object_with_a_hole_is_refused(storage: AnyStorage, left_out: int) -> None:
    """A file whose end was written reads as zeros where nothing was."""
    parts = parts_of(SHARD, part_bytes=max(PART, len(SHARD) // 3))
    with (
        pytest.raises(StorageError, match="shard"),
        storage.create_parts("step/shard", num_bytes=len(SHARD)) as writer,
    ):
        put_all(writer, parts[:left_out] + parts[left_out + 1 :])
    assert keys(storage) == []
    assert storage.discard_unfinished(older_than_s=0) == []


@pytest.mark.parametrize("data", [b"0123456789", SHARD])
def test_parts_of_more_than_was_said_are_refused(storage: AnyStorage, data: bytes) -> None:
    with (
        pytest.raises(StorageError, match="shard"),
        storage.create_parts("step/shard", num_bytes=len(data) - 1) as writer,
    ):
        put_all(writer, parts_of(data))
    assert keys(storage) == []
    assert storage.discard_unfinished(older_than_s=0) == []


@pytest.mark.parametrize("data", [b"small", SHARD])
def test_parts_that_fail_leave_nothing(storage: AnyStorage, data: bytes) -> None:
    def stop() -> None:
        with storage.create_parts("runs/r1/shard", num_bytes=len(data)) as writer:
            put_all(writer, parts_of(data))
            raise StoppedError

    with pytest.raises(StoppedError):
        stop()
    assert keys(storage) == []
    assert storage.folders("") == []
    assert storage.discard_unfinished(older_than_s=0) == []
    storage.create("runs/r1/shard", b"again")


@pytest.mark.parametrize("data", [b"small", SHARD])
def test_an_object_that_came_first_stays_when_parts_end(storage: AnyStorage, data: bytes) -> None:
    writer = storage.create_parts("shard", num_bytes=len(data))
    writer.__enter__()
    put_all(writer, parts_of(data))
    storage.create("shard", b"first")
    with pytest.raises(ConflictError, match="shard"):
        writer.__exit__(None, None, None)
    assert storage.read("shard") == b"first"
    with (
        pytest.raises(ConflictError, match="shard"),
        storage.create_parts("shard", num_bytes=len(data)),
    ):
        pytest.fail("expected a conflict before anything is written")
    assert storage.discard_unfinished(older_than_s=0) == []


def test_parts_that_a_killed_writer_left_are_discarded_by_age(storage: AnyStorage) -> None:
    writer = storage.create_parts("shard", num_bytes=len(SHARD))
    writer.__enter__()
    writer.put(parts_of(SHARD)[0])
    assert storage.discard_unfinished(older_than_s=CENTURY_S) == []
    assert len(storage.discard_unfinished(older_than_s=0)) == 1
    assert storage.discard_unfinished(older_than_s=0) == []
    with pytest.raises(StorageError):  # it was not dead after all: it fails, and loudly
        writer.__exit__(None, None, None)
    assert keys(storage) == []


def test_a_span_is_read_into_many_buffers(storage: Storage) -> None:
    storage.create("digits", b"0123456789")
    numbers = np.zeros((2, 2), dtype=np.uint8)
    first, nothing, last = bytearray(3), bytearray(), bytearray(2)
    storage.read_into("digits", 1, [memoryview(first), numbers.data, memoryview(nothing)])
    assert bytes(first) == b"123"
    assert numbers.tobytes() == b"4567"
    storage.read_into("digits", 8, [memoryview(last)])
    assert bytes(last) == b"89"
    storage.read_into("digits", 10, [memoryview(nothing)])
    storage.read_into("digits", 0, [])


def test_ranges_of_a_large_object_are_read_into_place_by_many_threads(storage: Storage) -> None:
    with storage.create_parts("shard", num_bytes=len(SHARD)) as writer:
        put_all(writer, parts_of(SHARD))
    whole = memoryview(bytearray(len(SHARD)))
    step = 1_000_003

    def read(offset: int) -> None:
        storage.read_into("shard", offset, [whole[offset : offset + step]])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(0, len(SHARD), step)))
    assert Digest.of(whole) == Digest.of(SHARD)


def test_reading_into_more_than_there_is_is_an_integrity_error(storage: Storage) -> None:
    storage.create("runs/digits", b"0123456789")
    for offset, num_bytes in ((0, 11), (5, 6), (10, 1), (50, 3)):
        with pytest.raises(IntegrityError, match="too short") as caught:
            storage.read_into("runs/digits", offset, [memoryview(bytearray(num_bytes))])
        assert "runs/digits" in caught.value.file
        assert caught.value.offset == offset
    for num_bytes in (0, 3):
        with pytest.raises(ObjectMissingError, match="runs/digit"):
            storage.read_into("runs/digit", 0, [memoryview(bytearray(num_bytes))])


def test_replace_writes_over_and_creates(storage: Storage) -> None:
    storage.replace("ledger/checkpoint", b"head 1")
    assert storage.read("ledger/checkpoint") == b"head 1"
    storage.replace("ledger/checkpoint", b"h2")
    assert storage.read("ledger/checkpoint") == b"h2"
    assert keys(storage) == ["ledger/checkpoint"]


def test_a_span_is_read(storage: Storage) -> None:
    storage.create("digits", b"0123456789")
    for offset, num_bytes, expected in (
        (0, None, b"0123456789"),
        (0, 10, b"0123456789"),
        (0, 1, b"0"),
        (3, 4, b"3456"),
        (9, 1, b"9"),
        (7, None, b"789"),
        (10, None, b""),
        (10, 0, b""),
        (4, 0, b""),
    ):
        assert storage.read("digits", offset=offset, num_bytes=num_bytes) == expected


def test_fewer_bytes_than_asked_for_is_an_integrity_error(storage: Storage) -> None:
    storage.create("runs/digits", b"0123456789")
    for offset, num_bytes in ((0, 11), (5, 6), (10, 1), (11, None), (11, 0), (50, 3)):
        with pytest.raises(IntegrityError) as caught:
            storage.read("runs/digits", offset=offset, num_bytes=num_bytes)
        assert "runs/digits" in caught.value.file
        assert "object of 10 bytes" in caught.value.got
        assert caught.value.offset == offset


def test_what_is_not_there_is_said_to_be_missing(storage: Storage) -> None:
    storage.create("runs/r1/run.json", b"{}")
    for key in ("runs/r2", "runs/r1", "runs/r1/run.jso"):
        assert storage.stat(key) is None
        for num_bytes in (None, 0, 3):
            with pytest.raises(ObjectMissingError, match=key):
                storage.read(key, num_bytes=num_bytes)
    assert keys(storage, "runs/r2") == []
    assert storage.folders("runs/r2") == []


def test_delete_removes_one_object_and_may_be_repeated(storage: Storage) -> None:
    storage.create("runs/r1/step-10/a", b"a")
    storage.create("runs/r1/step-10/b", b"b")
    storage.delete("runs/r1/step-10/a")
    storage.delete("runs/r1/step-10/a")
    storage.delete("runs/r1/step-10/never-there/c")
    storage.delete("runs/r1")
    assert keys(storage) == ["runs/r1/step-10/b"]
    storage.delete("runs/r1/step-10/b")
    assert storage.folders("") == []
    storage.create("runs/r1/step-10/a", b"new")
    assert storage.read("runs/r1/step-10/a") == b"new"


def test_walk_takes_exactly_the_folder_in_order_of_key(storage: Storage) -> None:
    """Report minio/minio#16880: a prefix without its slash takes the neighbours, too."""
    inside = ["runs/tr-1/step-7/.metadata", "runs/tr-1/step-7/__0_0.distcp"]
    outside = [
        "runs/tr-1/step-7+extra/.metadata",
        "runs/tr-1/step-7.old/.metadata",
        "runs/tr-1/step-70/.metadata",
        "runs/tr-1/step-77",
        "runs/tr-10/step-7/.metadata",
    ]
    for key in reversed(inside + outside):
        storage.create(key, b"x")
    assert keys(storage, "runs/tr-1/step-7") == inside
    assert keys(storage) == sorted(inside + outside)
    assert storage.folders("runs/tr-1") == ["step-7", "step-7+extra", "step-7.old", "step-70"]
    assert storage.folders("runs") == ["tr-1", "tr-10"]
    assert storage.folders("") == ["runs"]
    for key in keys(storage, "runs/tr-1/step-7"):
        storage.delete(key)
    assert keys(storage, "runs/tr-1/step-7") == []
    assert keys(storage) == sorted(outside)


def test_many_are_listed_and_deleted_and_no_neighbour_is(storage: Storage) -> None:
    """Reports minio/minio#16880 and others: one page, one batch, or a sibling too many."""
    inside = [f"runs/tr-1/step-10/__{number:04d}_0.distcp" for number in range(1050)]
    never_there = [f"runs/tr-1/step-10/__{number}_1.distcp" for number in range(1450)]
    beside = ["runs/tr-1/step-10.bak/a", "runs/tr-1/step-100/a", "runs/tr-1/step-1/a"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: storage.create(key, b"x"), inside + beside))
    assert keys(storage, "runs/tr-1/step-10") == inside
    storage.delete_many(iter(inside[:-1] + never_there))
    assert keys(storage, "runs/tr-1/step-10") == inside[-1:]
    storage.delete_many(inside[-1:])
    storage.delete_many([])
    assert keys(storage) == sorted(beside)


def test_what_is_no_key_is_refused_by_every_operation(storage: Storage) -> None:
    operations: list[Callable[[str], object]] = [
        lambda key: storage.create(key, b""),
        storage.create_stream,
        lambda key: storage.create_parts(key, num_bytes=1),
        lambda key: storage.replace(key, b""),
        storage.read,
        lambda key: storage.read_into(key, 0, [memoryview(bytearray(1))]),
        lambda key: storage.delete_many([key]),
        storage.stat,
        storage.delete,
    ]
    for key in ("", "/a", "a/", "a//b", "a/../b", ".", "ş", "a b", ".tmp/a"):
        of_folders = [storage.walk, storage.folders] if key else []
        for operation in operations + of_folders:
            with pytest.raises(InputError, match="storage key"):
                operation(key)


def test_the_url_opens_the_same_storage_again(storage: AnyStorage) -> None:
    storage.create("a/b", b"bytes")
    if isinstance(storage, MemoryStorage):
        with pytest.raises(InputError, match="scheme 'memory'"):
            open_storage(storage.url)
        assert storage.reopen().url == storage.url
        assert storage.reopen().read("a/b") == b"bytes"
    else:
        again = open_storage(storage.url)
        assert again.read("a/b") == b"bytes"
        assert again.url == storage.url


def test_a_key_is_not_also_a_folder(storage: AnyStorage) -> None:
    if isinstance(storage, S3Storage):
        return  # S3 knows no folders; what runs on the others never creates both
    storage.create("a/b", b"object")
    for key in ("a/b/c", "a"):
        with pytest.raises(ConflictError, match="a"):
            storage.create(key, b"x")
        with pytest.raises(ConflictError, match="a"):
            storage.replace(key, b"x")
    assert keys(storage) == ["a/b"]
