"""Bytes under keys: what strongroom asks of a place to store them.

Keys are relative, `/`-separated and never contain an empty, `.` or `..` part. Objects are
created, never overwritten: the one exception is `replace`, which exists for the ledger's signed
tree head alone. Every implementation raises the `StorageError` tree and nothing of its own.
No key is also a folder: whoever has created `a` does not create `a/b`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from strongroom.errors import InputError
from strongroom.names import Digest


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """One stored object: its key relative to the storage root, and its size in bytes."""

    key: str
    num_bytes: int


class ObjectWriter(Protocol):
    """A new object being written, a part at a time.

    As a context manager: leaving normally makes the object durable and visible at its key
    (ConflictError if the key has come to exist); leaving by an exception leaves nothing.
    """

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`; it may be reused by the caller as soon as this returns."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Consecutive bytes of a new object, where they lie in memory.

    Attributes:
        number: its place among the object's parts, from 1, without a gap.
        offset: where in the object it begins: the end of the part before it.
        buffers: its bytes, in order; they must not change before `put` returns.
        sha256: digest of all its bytes, where the caller has it: storage that must state one, as
            S3 must in a signature, then hashes nothing a second time.
    """

    number: int
    offset: int
    buffers: tuple[memoryview, ...]
    sha256: Digest | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the part."""
        return sum(buffer.nbytes for buffer in self.buffers)


class PartWriter(Protocol):
    """A new object of known size being written in parts, by several threads at once.

    As a context manager, like `ObjectWriter`; every `put` has returned before it is left normally.
    """

    def put(self, part: Part) -> None:
        """Store one part; threads may store others meanwhile, in any order."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Storage(Protocol):
    """Create, read, list and delete objects; threads may share one."""

    @property
    def url(self) -> str:
        """The URL that opens this storage again, in any process."""
        ...

    def create(self, key: str, data: bytes) -> None:
        """Store `data` durably at a key that must not exist.

        Raises:
            ConflictError: an object of that key exists; it is left as it was.
        """
        ...

    def create_stream(self, key: str) -> ObjectWriter:
        """Open a writer for a new object too large to hold in memory."""
        ...

    @property
    def part_min_bytes(self) -> int:
        """Least bytes of a part that is not its object's last."""
        ...

    def create_parts(self, key: str, *, num_bytes: int) -> PartWriter:
        """Open a writer for a new object of exactly `num_bytes` bytes, written part by part.

        An object may have `PARTS_MAX` parts; all but the last hold `part_min_bytes` or more.
        """
        ...

    def replace(self, key: str, data: bytes) -> None:
        """Store `data` durably at `key` whether or not it exists; readers see old or new, whole."""
        ...

    def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
        """Return the object's bytes from `offset`, `num_bytes` of them or all that follow.

        Raises:
            ObjectMissingError: no object of that key.
            IntegrityError: fewer bytes than asked for are stored.
        """
        ...

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill `buffers`, one after another, with the object's bytes from `offset`, uncopied.

        Raises:
            ObjectMissingError: no object of that key.
            IntegrityError: fewer bytes than asked for are stored.
        """
        ...

    def stat(self, key: str) -> ObjectInfo | None:
        """Return size and key, or None where no object of that key exists."""
        ...

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield every object under exactly `folder/`, in order of key ('' means all).

        `walk("a/step-1")` never yields anything of `a/step-10`.
        """
        ...

    def folders(self, folder: str) -> list[str]:
        """Return the names (last part) of the folders directly under `folder/`, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Delete one object; deleting what is not there is not an error."""
        ...

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects, all of them or as many as can be.

        Raises:
            StorageError: some could not be deleted; names them, with the reason of each.
        """
        ...

    def discard_unfinished(self, *, older_than_s: float) -> list[str]:
        """Discard what killed writers left, which was never visible; return what it was.

        Args:
            older_than_s: spare what was begun or written to within this time: its writer may live.
        """
        ...


PARTS_MAX = 10_000
"""Most parts of one object: S3's own limit, and so everybody's."""

VIEWS_MAX = 1024
"""Most buffers of one vectored read or write: Linux's IOV_MAX."""

UNFINISHED = ".tmp"
"""The top folder no key may stand in: local storage keeps there what is not yet an object."""

_NAME = re.compile(r"[A-Za-z0-9._=@+-]+")


def check_key(key: str) -> str:
    """Return `key` if it is one.

    Raises:
        InputError: an empty, `.` or `..` part, a leading slash, a character outside
            A-Z a-z 0-9 . _ = @ + -, or a first part of `.tmp`
    """
    parts = key.split("/")
    if any(part in {"", ".", ".."} or not _NAME.fullmatch(part) for part in parts):
        raise InputError(
            f"storage key {key!r}: expected '/'-separated parts of A-Z a-z 0-9 . _ = @ + -, "
            "none of them empty, '.' or '..'"
        )
    if parts[0] == UNFINISHED:
        raise InputError(f"storage key {key!r}: the folder {UNFINISHED!r} is reserved for storage")
    return key


def views(buffers: Sequence[memoryview], *, start: int) -> list[memoryview]:
    """Return `buffers` as bytes without their first `start`: what is left of a transfer cut short.

    At most `VIEWS_MAX` are returned, which is what the system takes in one call.
    """
    left: list[memoryview] = []
    for buffer in buffers:
        if start < buffer.nbytes and len(left) < VIEWS_MAX:
            left.append(buffer.cast("B")[start:] if start else buffer.cast("B"))
        start = max(start - buffer.nbytes, 0)
    return left
