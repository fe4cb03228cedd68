"""What rung 1 asks of stored files: is every byte the one that was written?

A file with a digest of its own is hashed whole. Any other is a shard: its header follows from the
manifest, and behind it the containers of chunks, each with its digest, follow each other to the
end, so no byte is left out. Of a borrowed file only what is borrowed is asked. All cores hash, in
constant memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial

from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.entries import FileEntry
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE
from strongroom.checkpoint.parallel import run_parallel
from strongroom.checkpoint.reading.files import CheckpointFiles, shard_header
from strongroom.checkpoint.reading.ranged import RangedReads, nowhere, piece_bytes, reading_threads
from strongroom.checkpoint.reading.spans import Range, Span, coalesced, spans_of
from strongroom.errors import FormatError, IntegrityError, StrongroomError
from strongroom.names import Digest
from strongroom.storage.base import Storage

Task = Callable[[], list[StrongroomError]]


def stored_faults(storage: Storage, committed: Committed) -> list[StrongroomError]:
    """Say which files and chunks are not what the manifest means; reads each needed byte once.

    Raises:
        StorageError: the storage does not answer; that proves nothing.
    """
    sizes = {info.key: info.num_bytes for info in storage.walk(committed.folder)}
    faults = _unnamed_files(committed, sizes)
    checks = _Checks(storage, committed, sizes)
    files = committed.manifest.files
    threads = reading_threads(storage)
    found = run_parallel((partial(checks.file, file) for file in files), threads=threads)
    faults += [fault for of_file in found for fault in of_file]
    sound = [file for file, of_file in zip(files, found, strict=True) if not of_file]
    found = run_parallel(checks.contents(sound), threads=threads)
    return faults + [fault for of_task in found for fault in of_task]


def coverage_faults(spans: Iterable[Span], *, start: int, end: int) -> list[tuple[int, str]]:
    """Say where spans leave bytes of a file out, or hold them twice, from `start` to `end`.

    Returns:
        Offsets, each with what was found there.
    """
    faults = []
    position = start
    for span in sorted(spans, key=lambda span: (span.chunk.offset, span.end)):
        if span.chunk.offset != position:
            kind = "in no chunk" if span.chunk.offset > position else "in two chunks"
            first = min(position, span.chunk.offset)
            faults.append((first, f"{abs(span.chunk.offset - position)} bytes {kind}"))
        position = max(position, span.end)
    if position < end:
        faults.append((position, f"{end - position} bytes in no chunk"))
    return faults


def _unnamed_files(committed: Committed, sizes: dict[str, int]) -> list[StrongroomError]:
    names = {file.name for file in committed.manifest.own_files} | {MANIFEST_FILE, SEAL_FILE}
    named = {f"{committed.folder}/{name}" for name in names}
    return [
        IntegrityError(
            "a file that the manifest does not name",
            file=key,
            expected="no such object",
            got=f"{sizes[key]} bytes",
        )
        for key in sorted(set(sizes) - named)
    ]


class _Checks:
    """The checks of one checkpoint; each returns what it found, so that all is found."""

    def __init__(self, storage: Storage, committed: Committed, sizes: dict[str, int]) -> None:
        self._storage = storage
        self._manifest = committed.manifest
        self._sizes = sizes
        self._files = CheckpointFiles(storage, committed)
        self._reads = RangedReads(storage, self._files.key_of)
        self._spans: dict[str, list[Span]] = {}
        for span in spans_of(committed.manifest.tensors):
            self._spans.setdefault(span.chunk.file, []).append(span)

    def file(self, file: FileEntry) -> list[StrongroomError]:
        """Look at all that can be told of a file without reading what it holds."""
        key = self._files.key_of(file.name)
        num_bytes = self._sizes.get(key)
        if file.lender is not None:
            found = self._storage.stat(key)
            num_bytes = None if found is None else found.num_bytes
        try:
            self._files.check_file(file, num_bytes=num_bytes)
        except (IntegrityError, FormatError) as error:
            return [error]
        if file.lender is not None or file.sha256 is not None:
            return []
        header = shard_header(self._manifest, file.name) or b""
        spans = self._spans.get(file.name, [])
        return [
            IntegrityError(
                "the chunks of a shard do not follow each other",
                file=key,
                offset=offset,
                expected="every byte in exactly one chunk",
                got=got,
            )
            for offset, got in coverage_faults(spans, start=len(header), end=file.num_bytes)
        ]

    def contents(self, files: Iterable[FileEntry]) -> list[Task]:
        """Return what is to be read of some files, in tasks for threads, the largest first."""
        tasks: list[tuple[int, Task]] = []
        spans: list[Span] = []
        for file in files:
            if file.sha256 is None:
                spans += self._spans.get(file.name, [])
            else:
                tasks.append((file.num_bytes, partial(self._whole, file, file.sha256)))
        tasks += [(part.num_bytes, partial(self._range, part)) for part in coalesced(spans)]
        return [task for _, task in sorted(tasks, key=lambda task: task[0], reverse=True)]

    def _range(self, part: Range) -> list[StrongroomError]:
        faults: list[StrongroomError] = []
        try:
            for _ in self._reads.read(part, nowhere, changed=faults.append):
                pass
        except IntegrityError as error:  # cut since it was looked at
            faults.append(error)
        return faults

    def _whole(self, file: FileEntry, expected: Digest) -> list[StrongroomError]:
        key = self._files.key_of(file.name)
        try:
            got = self._digest(key, file.num_bytes)
        except IntegrityError as error:  # cut since it was looked at
            return [error]
        if got == expected:
            return []
        parts = coalesced(self._spans.get(file.name, []))
        return [fault for part in parts for fault in self._range(part)] or [
            IntegrityError(
                "bytes outside of any tensor were changed",
                file=key,
                expected=str(expected),
                got=str(got),
            )
        ]

    def _digest(self, key: str, num_bytes: int) -> Digest:
        digest = hashlib.sha256()
        scratch = memoryview(bytearray(min(piece_bytes(self._storage), num_bytes)))
        for start in range(0, num_bytes, max(scratch.nbytes, 1)):
            piece = scratch[: num_bytes - start]
            self._storage.read_into(key, start, [piece])
            digest.update(piece)
        return Digest(digest.hexdigest())
