"""Storage in a local folder: safe against many processes and against a kill at any moment.

Invariant: what stands at a key is whole and durable. An object is written under `.tmp/`, synced,
then linked to its key, then the folder is synced. link(2) never replaces, so of many writers
exactly one wins; a kill leaves at most a file under `.tmp/`, which no listing shows and
`discard_unfinished` removes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from stat import S_ISREG
from threading import Lock
from types import TracebackType
from typing import Self
from uuid import uuid4

from strongroom.errors import (
    ConflictError,
    InputError,
    IntegrityError,
    ObjectMissingError,
    StorageError,
)
from strongroom.storage.base import (
    UNFINISHED,
    ObjectInfo,
    ObjectWriter,
    Part,
    PartWriter,
    check_key,
    views,
)
from strongroom.storage.os_errors import os_errors_named

logger = logging.getLogger(__name__)

_PLACE_TRIES = 100
"""How often a folder may be pruned by deletes between its making and its use."""


class LocalStorage:
    """Objects as files under `root`, which need not exist before the first create.

    The file system must have hard links.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().resolve()
        with os_errors_named("open", self.root):
            usable = self.root.is_dir() or not self.root.exists()
        if not usable:
            raise InputError(f"storage {self.root}: expected a folder, got a file; choose another")

    @property
    def url(self) -> str:
        """`file:///absolute/path`."""
        return self.root.as_uri()

    def create(self, key: str, data: bytes) -> None:
        """Store `data` at a new key; see `Storage.create`."""
        with self.create_stream(key) as writer:
            writer.write(data)

    def create_stream(self, key: str) -> ObjectWriter:
        """Open a writer for a new object; see `Storage.create_stream`."""
        return _Writer(self.root, check_key(key), place=os.link)

    @property
    def part_min_bytes(self) -> int:
        """One: a part may be of any size."""
        return 1

    def create_parts(self, key: str, *, num_bytes: int) -> PartWriter:
        """Open a writer for a new object of known size; see `Storage.create_parts`."""
        return _Writer(self.root, check_key(key), place=os.link, num_bytes=num_bytes)

    def replace(self, key: str, data: bytes) -> None:
        """Store `data` at `key`, whole, whether or not it exists; see `Storage.replace`."""
        with _Writer(self.root, check_key(key), place=os.replace) as writer:
            writer.write(data)

    def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
        """Return bytes of an object; see `Storage.read`."""
        path = self.root / check_key(key)
        with os_errors_named("read", path):
            try:
                with path.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    file.seek(offset)
                    data = file.read(-1 if num_bytes is None else num_bytes)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise ObjectMissingError(f"{path}: the storage holds no such object") from None
        if offset > size or (num_bytes is not None and len(data) < num_bytes):
            raise IntegrityError(
                "object is too short",
                file=str(path),
                offset=offset,
                expected="more bytes" if num_bytes is None else f"{num_bytes} bytes",
                got=f"{len(data)} of an object of {size} bytes",
            )
        return data

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill `buffers` with bytes of an object; see `Storage.read_into`."""
        path = self.root / check_key(key)
        done, wanted = 0, sum(buffer.nbytes for buffer in buffers)
        with os_errors_named("read", path):
            try:
                with FileIO(path) as file:
                    while left := views(buffers, start=done):
                        num_bytes = os.preadv(file.fileno(), left, offset + done)
                        if num_bytes == 0:
                            break
                        done += num_bytes
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise ObjectMissingError(f"{path}: the storage holds no such object") from None
        if done < wanted:
            raise IntegrityError(
                "object is too short",
                file=str(path),
                offset=offset,
                expected=f"{wanted} bytes",
                got=f"{done}",
            )

    def stat(self, key: str) -> ObjectInfo | None:
        """Return key and size, or None; see `Storage.stat`."""
        path = self.root / check_key(key)
        with os_errors_named("stat", path):
            try:
                found = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return ObjectInfo(key=key, num_bytes=found.st_size) if S_ISREG(found.st_mode) else None

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield every object under exactly `folder/`; see `Storage.walk`."""
        return self._walk(check_key(folder) if folder else "")

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders that hold an object; see `Storage.folders`."""
        return sorted(
            key.rsplit("/", maxsplit=1)[-1]
            for key, num_bytes in self._entries(check_key(folder) if folder else "")
            if num_bytes is None and any(True for _ in self._walk(key))
        )

    def delete(self, key: str) -> None:
        """Delete one object and the folders that it leaves empty; see `Storage.delete`."""
        path = self.root / check_key(key)
        with os_errors_named("delete", path):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return
            with suppress(FileNotFoundError):  # another delete pruned the folder already
                _sync_folder(path.parent)
        for parent in path.parents:
            if parent == self.root:
                break
            try:
                parent.rmdir()
            except OSError:  # not empty, or gone: others own it now
                break

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects one by one; see `Storage.delete_many`."""
        faults = []
        for key in keys:
            try:
                self.delete(key)
            except StorageError as error:
                faults.append(str(error))
        if faults:
            raise StorageError("; ".join(faults))

    def discard_unfinished(self, *, older_than_s: float) -> list[str]:
        """Remove what killed writers left under `.tmp/`; return the names removed.

        Args:
            older_than_s: spare a file written to within this time: its writer may live.
        """
        discarded = []
        newest = time.time() - older_than_s
        with os_errors_named("discard unfinished files in", self.root):
            for path in sorted((self.root / UNFINISHED).glob("*")):
                with suppress(FileNotFoundError):  # its writer, or another sweep, was faster
                    if path.stat().st_mtime <= newest:
                        path.unlink()
                        discarded.append(path.name)
        if discarded:
            logger.info("unfinished files discarded root=%s num=%d", self.root, len(discarded))
        return discarded

    def _walk(self, folder: str) -> Iterator[ObjectInfo]:
        for key, num_bytes in self._entries(folder):
            if num_bytes is None:
                yield from self._walk(key)
            else:
                yield ObjectInfo(key=key, num_bytes=num_bytes)

    def _entries(self, folder: str) -> list[tuple[str, int | None]]:
        """Return key and size (None: a folder) of all directly in `folder`, in order of keys."""
        path = self.root / folder
        prefix = f"{folder}/" if folder else ""
        found: list[tuple[str, int | None]] = []
        with os_errors_named("list", path):
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        if entry.is_dir() and prefix + entry.name != UNFINISHED:
                            found.append((prefix + entry.name, None))
                        elif entry.is_file():
                            with suppress(FileNotFoundError):  # deleted since it was listed
                                found.append((prefix + entry.name, entry.stat().st_size))
            except (FileNotFoundError, NotADirectoryError):
                return []
        # '-' and '.' sort before '/', so the place of a folder is that of `name/`.
        return sorted(found, key=lambda item: f"{item[0]}/" if item[1] is None else item[0])


class _Writer:
    """One new file: written aside, put in its place whole by `place` (link or replace)."""

    def __init__(
        self,
        root: Path,
        key: str,
        *,
        place: Callable[[Path, Path], None],
        num_bytes: int | None = None,
    ) -> None:
        self._num_bytes = num_bytes
        self._spans: list[tuple[int, int]] = []
        self._turn = Lock()
        self._target = root / key
        self._temp = root / UNFINISHED / uuid4().hex
        self._place = place
        self._file: FileIO

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        if view.nbytes == 0:
            return
        view = view.cast("B")
        with os_errors_named("write", self._target):
            while view:
                view = view[self._file.write(view) :]

    def put(self, part: Part) -> None:
        done = 0
        # One at a time: the kernel lets but one write to a file, and has the others spin meanwhile.
        with self._turn, os_errors_named("write", self._target):
            while left := views(part.buffers, start=done):
                done += os.pwritev(self._file.fileno(), left, part.offset + done)
        self._spans.append((part.offset, part.offset + done))

    def __enter__(self) -> Self:
        with os_errors_named("write", self._temp):
            if self._place is os.link and self._target.exists():
                raise _conflict(self._target)
            _make_folder(self._temp.parent)
            # Unbuffered: closing must have nothing left to write that could fail.
            self._file = FileIO(self._temp, "xb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._commit()
        finally:
            with os_errors_named("tidy up", self._temp):
                self._file.close()
                self._temp.unlink(missing_ok=True)

    def _commit(self) -> None:
        with os_errors_named("write", self._target):
            self._check_whole()
            os.fsync(self._file.fileno())
            try:
                self._put_in_place()
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                raise _conflict(self._target) from None
            with suppress(FileNotFoundError):  # deleted already, by somebody who saw it
                _sync_folder(self._target.parent)

    def _check_whole(self) -> None:
        """Refuse an object with a part left out: a file would read as zeros there."""
        if self._num_bytes is None:
            return
        spans = sorted(self._spans)
        ends = [0, *(end for _, end in spans)]
        if [start for start, _ in spans] != ends[:-1] or ends[-1] != self._num_bytes:
            raise StorageError(
                f"{self._target}: expected parts of {self._num_bytes} bytes in all, one after "
                f"another, got {spans}; nothing was stored"
            )

    def _put_in_place(self) -> None:
        for _ in range(_PLACE_TRIES):
            try:
                _make_folder(self._target.parent)
                self._place(self._temp, self._target)
            except FileNotFoundError:  # a delete pruned the folder in between
                if not self._temp.exists():
                    raise
            else:
                return
        raise StorageError(
            f"{self._target}: its folder was removed {_PLACE_TRIES} times while it was written; "
            "stop what deletes there and try again"
        )


def _make_folder(folder: Path) -> None:
    """Make `folder` and all above it, each durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        # Asked in one look: a folder may come and go between two.
        if folder.is_file():
            raise
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _conflict(path: Path) -> ConflictError:
    return ConflictError(
        f"{path}: expected no object of this key, nor of a key within or above it; "
        "one exists and was left as it was"
    )
