"""Whether the files of a checkpoint are those its manifest means, before bytes of them are used.

A file must be there and of its size; a shard begins with the header that follows from the manifest,
so it is of this save; a borrowed file belongs to a checkpoint that still stands, with the id that
the borrower recorded. What lies behind the header is for the digests of chunks. This module never
imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from threading import Lock

from strongroom.checkpoint.catalogue import Committed, first_difference, read_lender
from strongroom.checkpoint.entries import FileEntry
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.parallel import run_parallel
from strongroom.checkpoint.shard import SHARD_NAME, ShardHeader
from strongroom.errors import IntegrityError
from strongroom.names import CheckpointId, CheckpointName
from strongroom.storage.base import Storage


def shard_header(manifest: Manifest, file: str) -> bytes | None:
    """Return what a shard of a checkpoint begins with, or None where `file` is no shard's name."""
    match = SHARD_NAME.fullmatch(file)
    if match is None:
        return None
    header = ShardHeader(name=manifest.name, save_id=manifest.save_id, rank=int(match[1]))
    return header.to_bytes()


class CheckpointFiles:
    """The files of one checkpoint, its own and those it borrows; threads may share it."""

    def __init__(self, storage: Storage, committed: Committed) -> None:
        self._storage = storage
        self._manifest = committed.manifest
        self._entries = {file.name: file for file in committed.manifest.files}
        self._lenders = {f"{name.attempt}/{name.step}": name for name in committed.manifest.lenders}
        self._lock = Lock()
        self._lent: dict[tuple[CheckpointName, CheckpointId], Manifest] = {}
        self._sound: set[str] = set()

    def key_of(self, file: str) -> str:
        """Return the storage key of a file by its name in the manifest."""
        return self._manifest.key_of(file)

    def check(self, files: Iterable[str], *, threads: int) -> None:
        """Return if all of these are the files that the manifest means; each is looked at once.

        Raises:
            IntegrityError: one is not; names it.
            FormatError: this release cannot read the manifest of a lender.
        """
        unknown = sorted(set(files) - self._sound)
        run_parallel((partial(self._check, file) for file in unknown), threads=threads)
        self._sound.update(unknown)

    def check_file(self, file: FileEntry, *, num_bytes: int | None) -> None:
        """Return if one file is the one that the manifest means.

        Args:
            file: an entry of the manifest.
            num_bytes: the size it has in the storage; None: it is not there.

        Raises:
            IntegrityError, FormatError: as `check`.
        """
        key = self.key_of(file.name)
        owner, name = self._manifest, file.name
        if file.lender is not None:
            folder, _, name = file.name.rpartition("/")
            owner = self._lender(self._lenders[folder], file.lender)
            if replace(file, name=name, lender=None) not in owner.own_files:
                raise IntegrityError(
                    "a file is borrowed that its lender does not have",
                    file=key,
                    expected=f"a file of {owner.name} of {file.num_bytes} bytes",
                    got="no such file in its manifest",
                )
        if num_bytes != file.num_bytes:
            raise IntegrityError(
                "the size is another",
                file=key,
                expected=f"{file.num_bytes} bytes",
                got="no such object" if num_bytes is None else f"{num_bytes} bytes",
            )
        header = shard_header(owner, name)
        if header is not None:
            self._check_header(key, file, header)
        elif file.sha256 is None:
            raise IntegrityError(
                "nothing says what a file should hold",
                file=key,
                expected="a digest, or the name of a shard",
                got="neither",
            )

    def _check(self, file: str) -> None:
        found = self._storage.stat(self.key_of(file))
        self.check_file(self._entries[file], num_bytes=None if found is None else found.num_bytes)

    def _check_header(self, key: str, file: FileEntry, expected: bytes) -> None:
        num_bytes = min(len(expected), file.num_bytes)
        got = self._storage.read(key, num_bytes=num_bytes)
        if got != expected:
            raise IntegrityError(
                "a shard does not begin with the header of its save",
                file=key,
                offset=first_difference(got, expected),
                expected=repr(expected.rstrip(b"\0")),
                got=repr(got.rstrip(b"\0")),
            )

    def _lender(self, name: CheckpointName, lender_id: CheckpointId) -> Manifest:
        with self._lock:  # read once, by whoever comes first
            if (name, lender_id) not in self._lent:
                self._lent[name, lender_id] = read_lender(self._storage, name, lender_id)
            return self._lent[name, lender_id]
