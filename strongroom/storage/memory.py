"""Storage in memory: the simulator. The same protocol, and a script of what goes wrong.

A simulation runs once without faults, counts the mutating operations, and then runs again for
every place at which the process could have died:

    clean = MemoryStorage()
    scenario(clean)
    for n in range(1, len(clean.operations) + 1):
        storage = MemoryStorage(faults=Faults(crash_before=n))
        with suppress(SimulatedCrash):
            scenario(storage)
        check(storage.reopen())  # another process over the same bytes

A crash is a kill: every later call through the same handle raises `SimulatedCrash` again, so no
`finally` of the dead process can tidy up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from threading import Lock
from types import TracebackType
from typing import Self
from uuid import uuid4

from strongroom.errors import (
    ConflictError,
    IntegrityError,
    ObjectMissingError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
)
from strongroom.names import Digest
from strongroom.storage.base import ObjectInfo, ObjectWriter, Part, PartWriter, check_key


class SimulatedCrash(BaseException):
    """The process was killed here. A BaseException, so that no handler of errors survives it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Faults:
    """What goes wrong, and where.

    Mutating operations are counted from 1: create, replace, delete, each write to a stream, and
    the commit of a stream.

    Attributes:
        crash_before: the number of the operation that the process does not live to begin.
        crash_after: the number of the operation whose end the process does not live to see.
        capacity_bytes: writing more than this in all raises `StorageFullError`.
        deny_writes: a pattern (`*.distcp`) of keys whose writing raises `StorageDeniedError`.
        flip_bits: key -> number of the one bit of the object that every read gets wrong.
    """

    crash_before: int | None = None
    crash_after: int | None = None
    capacity_bytes: int | None = None
    deny_writes: str | None = None
    flip_bits: Mapping[str, int] = field(default_factory=dict)


class MemoryStorage:
    """Objects in a dict, for tests and simulations; one handle is one process."""

    def __init__(self, *, faults: Faults | None = None, part_min_bytes: int = 1) -> None:
        self._process = _Process(_Disk(), faults or Faults())
        self._part_min_bytes = part_min_bytes

    def reopen(self, *, faults: Faults | None = None) -> MemoryStorage:
        """Return another handle, of a process that lives, over the same bytes."""
        other = MemoryStorage(part_min_bytes=self._part_min_bytes)
        other._process = _Process(self._process.disk, faults or Faults())
        return other

    @property
    def url(self) -> str:
        """`memory://<id>`: a name only, no process can open it; use `reopen`."""
        return self._process.disk.url

    @property
    def operations(self) -> list[str]:
        """Every mutating operation begun through this handle, as `verb key`."""
        return self._process.operations

    def create(self, key: str, data: bytes) -> None:
        """Store `data` at a new key; see `Storage.create`."""
        with self._process.mutation("create", key) as disk:
            disk.check_new(key)
            self._process.check_space(len(data))
            disk.objects[key] = bytes(data)

    def create_stream(self, key: str) -> ObjectWriter:
        """Open a writer for a new object; see `Storage.create_stream`."""
        return _Writer(self._process, check_key(key))

    @property
    def part_min_bytes(self) -> int:
        """Least bytes of a part that is not the last, as given: S3 has one."""
        return self._part_min_bytes

    def create_parts(self, key: str, *, num_bytes: int) -> PartWriter:
        """Open a writer for a new object of known size; see `Storage.create_parts`."""
        return _PartWriter(
            self._process, check_key(key), num_bytes=num_bytes, part_min_bytes=self._part_min_bytes
        )

    def replace(self, key: str, data: bytes) -> None:
        """Store `data` at `key` whether or not it exists; see `Storage.replace`."""
        with self._process.mutation("replace", key) as disk:
            if key not in disk.objects:
                disk.check_new(key)
            self._process.check_space(len(data) - len(disk.objects.get(key, b"")))
            disk.objects[key] = bytes(data)

    def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
        """Return bytes of an object; see `Storage.read`."""
        check_key(key)
        with self._process.access() as disk:
            if key not in disk.objects:
                raise ObjectMissingError(f"{self.url}/{key}: the storage holds no such object")
            whole = self._process.misread(key, disk.objects[key])
        data = whole[offset:] if num_bytes is None else whole[offset : offset + num_bytes]
        if offset > len(whole) or (num_bytes is not None and len(data) < num_bytes):
            raise IntegrityError(
                "object is too short",
                file=f"{self.url}/{key}",
                offset=offset,
                expected="more bytes" if num_bytes is None else f"{num_bytes} bytes",
                got=f"{len(data)} of an object of {len(whole)} bytes",
            )
        return data

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill `buffers` with bytes of an object; see `Storage.read_into`."""
        data = self.read(key, offset=offset, num_bytes=sum(buffer.nbytes for buffer in buffers))
        start = 0
        for buffer in buffers:
            buffer.cast("B")[:] = data[start : start + buffer.nbytes]
            start += buffer.nbytes

    def stat(self, key: str) -> ObjectInfo | None:
        """Return key and size, or None; see `Storage.stat`."""
        check_key(key)
        with self._process.access() as disk:
            data = disk.objects.get(key)
        return None if data is None else ObjectInfo(key=key, num_bytes=len(data))

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield every object under exactly `folder/`; see `Storage.walk`."""
        prefix = f"{check_key(folder)}/" if folder else ""
        with self._process.access() as disk:
            found = sorted((key, len(data)) for key, data in disk.objects.items())
        return (
            ObjectInfo(key=key, num_bytes=num_bytes)
            for key, num_bytes in found
            if key.startswith(prefix)
        )

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly under `folder/`; see `Storage.folders`."""
        start = len(folder) + 1 if folder else 0
        rest = (info.key[start:] for info in self.walk(folder))
        return sorted({part.split("/")[0] for part in rest if "/" in part})

    def delete(self, key: str) -> None:
        """Delete one object, if it is there; see `Storage.delete`."""
        with self._process.mutation("delete", key) as disk:
            disk.objects.pop(key, None)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects one by one; see `Storage.delete_many`."""
        for key in keys:
            self.delete(key)

    def discard_unfinished(self, *, older_than_s: float) -> list[str]:
        """Discard every stream that was not committed; return their ids.

        Args:
            older_than_s: no clock runs here: only 0 discards anything.
        """
        with self._process.access() as disk:
            discarded = sorted(disk.unfinished) if older_than_s <= 0 else []
            for stream_id in discarded:
                del disk.unfinished[stream_id]
        return discarded


class _Unfinished(ABC):
    """One new object that nobody sees before the commit."""

    def __init__(self, process: _Process, key: str) -> None:
        self._process = process
        self._key = key
        self._stream_id = f"{key}#{uuid4().hex}"

    def __enter__(self) -> Self:
        with self._process.access() as disk:
            disk.check_new(self._key)
            disk.unfinished[self._stream_id] = 0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unfinished = self._process.disk.unfinished
        try:
            if kind is None:
                with self._process.mutation("commit", self._key) as disk:
                    disk.check_unfinished(self._stream_id)
                    disk.check_new(self._key)
                    data = self._whole()
                    del unfinished[self._stream_id]
                    disk.objects[self._key] = data
        finally:
            if not self._process.dead:  # a dead process aborts nothing
                unfinished.pop(self._stream_id, None)

    @contextmanager
    def _growing(self, num_bytes: int) -> Iterator[None]:
        """Count `num_bytes` more as stored, if the script lets the write pass."""
        with self._process.mutation("write", self._key) as disk:
            disk.check_unfinished(self._stream_id)
            self._process.check_space(num_bytes)
            yield
            disk.unfinished[self._stream_id] += num_bytes

    @abstractmethod
    def _whole(self) -> bytes:
        """Return all that was written; raise StorageError if something is missing."""


class _Writer(_Unfinished):
    """Written from its beginning to its end."""

    def __init__(self, process: _Process, key: str) -> None:
        super().__init__(process, key)
        self._data = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        with self._growing(memoryview(data).nbytes):
            self._data += data

    def _whole(self) -> bytes:
        return bytes(self._data)


class _PartWriter(_Unfinished):
    """Written in parts, in any order; as strict about them as S3."""

    def __init__(self, process: _Process, key: str, *, num_bytes: int, part_min_bytes: int) -> None:
        super().__init__(process, key)
        self._num_bytes = num_bytes
        self._part_min_bytes = part_min_bytes
        self._parts: dict[int, tuple[int, bytes]] = {}

    def put(self, part: Part) -> None:
        data = b"".join(part.buffers)
        if part.sha256 not in {None, Digest.of(data)}:
            raise StorageError(
                f"{self._key}: part {part.number}: its digest is not that of its bytes"
            )
        with self._growing(len(data)):
            self._parts[part.number] = part.offset, data

    def _whole(self) -> bytes:
        whole = bytearray()
        for number, (offset, data) in sorted(self._parts.items()):
            is_last = number == len(self._parts)
            if offset != len(whole) or (len(data) < self._part_min_bytes and not is_last):
                raise StorageError(
                    f"{self._key}: part {number}: expected offset {len(whole)} and at least "
                    f"{self._part_min_bytes} bytes, got offset {offset} and {len(data)} bytes"
                )
            whole += data
        if len(whole) != self._num_bytes or sorted(self._parts)[-1:] != [len(self._parts)]:
            raise StorageError(
                f"{self._key}: expected parts from 1 of {self._num_bytes} bytes in all, got "
                f"{sorted(self._parts)} of {len(whole)} bytes"
            )
        return bytes(whole)


@dataclass(slots=True)
class _Disk:
    """What outlives a process."""

    objects: dict[str, bytes] = field(default_factory=dict)
    unfinished: dict[str, int] = field(default_factory=dict)  # stream id -> bytes so far
    lock: Lock = field(default_factory=Lock)
    url: str = field(default_factory=lambda: f"memory://{uuid4().hex}")

    @property
    def used_bytes(self) -> int:
        return sum(map(len, self.objects.values())) + sum(self.unfinished.values())

    def check_new(self, key: str) -> None:
        """Refuse a key that is taken; as strictly as a file system, where no key is a folder."""
        above = {key[:index] for index, letter in enumerate(key) if letter == "/"}
        for other in self.objects:
            if other == key or other in above or other.startswith(f"{key}/"):
                raise ConflictError(
                    f"{self.url}/{key}: expected no object of this key, nor of a key within or "
                    f"above it; {other} exists and was left as it was"
                )

    def check_unfinished(self, stream_id: str) -> None:
        """Refuse to go on with a stream that `discard_unfinished` took away."""
        if stream_id not in self.unfinished:
            raise StorageError(
                f"{self.url}/{stream_id}: expected a stream under way, but it was discarded; "
                "write it again, and discard only what is older"
            )


class _Process:
    """One process that uses a disk, and the script of what goes wrong for it."""

    def __init__(self, disk: _Disk, faults: Faults) -> None:
        self.disk = disk
        self.dead = False
        self.operations: list[str] = []
        self._faults = faults

    @contextmanager
    def access(self) -> Iterator[_Disk]:
        """Have the disk alone for one operation, if this process lives."""
        with self.disk.lock:
            if self.dead:
                raise SimulatedCrash("this process was killed before")
            yield self.disk

    @contextmanager
    def mutation(self, verb: str, key: str) -> Iterator[_Disk]:
        """Have the disk alone for one mutating operation, unless the script says otherwise."""
        check_key(key)
        with self.access() as disk:
            self.operations.append(f"{verb} {key}")
            number = len(self.operations)
            if number == self._faults.crash_before:
                self._die("before")
            try:
                self._check_right(verb, key)
                yield disk
            finally:
                if number == self._faults.crash_after:
                    self._die("after")

    def check_space(self, num_bytes: int) -> None:
        """Refuse to write `num_bytes` more than the script's disk has room for."""
        capacity = self._faults.capacity_bytes
        if capacity is not None and self.disk.used_bytes + num_bytes > capacity:
            raise StorageFullError(
                f"{self.disk.url}: cannot write {num_bytes} more bytes: {self.disk.used_bytes} of "
                f"{capacity} are used; free space, then retry"
            )

    def misread(self, key: str, data: bytes) -> bytes:
        """Return `data` as the script's disk gives it back."""
        if key not in self._faults.flip_bits:
            return data
        byte, bit = divmod(self._faults.flip_bits[key], 8)
        return data[:byte] + bytes([data[byte] ^ (1 << bit)]) + data[byte + 1 :]

    def _check_right(self, verb: str, key: str) -> None:
        pattern = self._faults.deny_writes
        if pattern is not None and verb != "delete" and fnmatchcase(key, pattern):
            raise StorageDeniedError(
                f"{self.disk.url}/{key}: {verb} refused: the script denies writing {pattern!r}"
            )

    def _die(self, when: str) -> None:
        self.dead = True
        raise SimulatedCrash(f"killed {when} operation {len(self.operations)}")
