"""Reads planned ranges and checks every span: the one way in which tensors' bytes come in.

Invariant: whoever has read a range to its end holds bytes whose SHA-256, header and trailer of each
chunk included, is the one in the manifest; until then they are not to be used. Bytes are hashed
right after they were read, while the processor's cache holds them. Memory: `piece_bytes` a thread,
beside the memory they are read into.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from strongroom.checkpoint.boxes import Box
from strongroom.checkpoint.reading.spans import RANGE_BYTES, Range, Span
from strongroom.errors import IntegrityError
from strongroom.names import Digest
from strongroom.storage.base import Storage

WARM_BYTES = 2 * 2**20
"""What is read before it is hashed, where a request costs little: half of it stays in a core's own
cache."""
REMOTE_THREADS = 8
"""Requests under way at a time, at least, where each of them waits for the network."""
ALIGNMENT = 64
"""What memory begins at a multiple of, so that elements of any dtype may be looked at in place."""


@dataclass(kw_only=True, slots=True)
class Slab:
    """Raw bytes of a chunk that follow each other.

    Attributes:
        memory: where they are read into. None: scratch memory, `most_bytes` at most; the slab then
            has it from when it is given out until the next one is asked for.
        box: which elements of the chunk they are, where whoever takes them asks for it.
    """

    num_bytes: int
    memory: memoryview | None = None
    box: Box | None = None


Route = Callable[[Span, int], Iterable[Slab]]
"""`route(span, most_bytes)`: the slabs that are, in order, the raw bytes of a span."""


@dataclass(kw_only=True, slots=True)
class _Piece:
    """Bytes of a range that are read at once: of a gap, a header, a slab or a trailer.

    Attributes:
        span: the one they belong to; None in a gap.
        digest: hashes the span.
        slab: the one they complete.
        is_last: whether they complete the span.
    """

    num_bytes: int
    memory: memoryview | None = None
    span: Span | None = None
    digest: Any = None
    slab: Slab | None = None
    is_last: bool = False

    @property
    def room(self) -> int:
        """Bytes they take of what is read at once."""
        return -(-self.num_bytes // ALIGNMENT) * ALIGNMENT


def piece_bytes(storage: Storage) -> int:
    """Return how many bytes to ask for at a time.

    Storage that wants parts of a least size is across a network: there each request waits.
    """
    return RANGE_BYTES if storage.part_min_bytes > 1 else WARM_BYTES


def reading_threads(storage: Storage) -> int:
    """Return how many threads keep this machine busy: its cores hash, or wait for the network."""
    cores = len(os.sched_getaffinity(0))
    return max(cores, REMOTE_THREADS if storage.part_min_bytes > 1 else 2)


def nowhere(span: Span, most_bytes: int) -> Iterator[Slab]:
    """Route for bytes that are to be checked and not kept."""
    for start in range(0, span.raw_bytes, most_bytes):
        yield Slab(num_bytes=min(most_bytes, span.raw_bytes - start))


def _raise(error: IntegrityError) -> None:
    raise error


@dataclass(slots=True)
class _Scratch:
    """Memory for what has none of its own, reused from batch to batch."""

    memory: memoryview = field(default_factory=lambda: memoryview(bytearray()))

    def views(self, batch: list[_Piece]) -> list[memoryview]:
        """Return the memory of each piece."""
        room = sum(piece.room for piece in batch if piece.memory is None)
        if self.memory.nbytes < room:
            self.memory = memoryview(bytearray(room))
        views = []
        start = 0
        for piece in batch:
            if piece.memory is None:
                views.append(self.memory[start : start + piece.num_bytes])
                start += piece.room
            else:
                views.append(piece.memory)
        return views


class _ScratchMemory:
    """Lends scratch memory: two ranges that are read at a time never share it."""

    def __init__(self) -> None:
        self._free: deque[_Scratch] = deque()

    @contextmanager
    def lent(self) -> Iterator[_Scratch]:
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = _Scratch()
        try:
            yield scratch
        finally:
            self._free.append(scratch)


class RangedReads:
    """Reads ranges of one checkpoint; threads may share it.

    Args:
        storage: where from.
        key_of: returns the storage key of a file by its name in the manifest.
    """

    def __init__(self, storage: Storage, key_of: Callable[[str], str]) -> None:
        self._storage = storage
        self._key_of = key_of
        self._most_bytes = piece_bytes(storage)
        self._scratch = _ScratchMemory()

    def read(
        self,
        wanted: Range,
        route: Route,
        *,
        changed: Callable[[IntegrityError], None] = _raise,
    ) -> Iterator[tuple[Span, Slab]]:
        """Yield the slabs of a range, with their spans, each when its bytes are in its memory.

        Args:
            wanted: what to read.
            route: where to.
            changed: takes the error of each span whose bytes are not those in the manifest.

        Raises:
            IntegrityError: as `changed` raises it; or the file is too short.
            ObjectMissingError: there is no such file.
        """
        with self._scratch.lent() as scratch:
            offset = wanted.offset
            for batch in self._batches(wanted, route):
                yield from self._fill(wanted.file, offset, batch, scratch.views(batch), changed)
                offset += sum(piece.num_bytes for piece in batch)

    def _batches(self, wanted: Range, route: Route) -> Iterator[list[_Piece]]:
        """Yield the pieces of a range, as many together as are read at once."""
        batch: list[_Piece] = []
        room = 0
        for piece in self._pieces(wanted, route):
            if batch and room + piece.room > self._most_bytes:
                yield batch
                batch, room = [], 0
            batch.append(piece)
            room += piece.room
        yield batch

    def _pieces(self, wanted: Range, route: Route) -> Iterator[_Piece]:
        position = wanted.offset
        for span in wanted.spans:
            if gap_bytes := span.chunk.offset - position:
                yield _Piece(num_bytes=gap_bytes)
            of_span = partial(_Piece, span=span, digest=hashlib.sha256())
            yield of_span(num_bytes=span.chunk.data_offset)
            for slab in route(span, self._most_bytes):
                memory = slab.memory
                while memory is not None and memory.nbytes > self._most_bytes:
                    part, memory = memory[: self._most_bytes], memory[self._most_bytes :]
                    yield of_span(num_bytes=part.nbytes, memory=part)
                num_bytes = slab.num_bytes if memory is None else memory.nbytes
                yield of_span(num_bytes=num_bytes, memory=memory, slab=slab)
            yield of_span(num_bytes=span.trailer_bytes, is_last=True)
            position = span.end

    def _fill(
        self,
        file: str,
        offset: int,
        batch: list[_Piece],
        views: list[memoryview],
        changed: Callable[[IntegrityError], None],
    ) -> Iterator[tuple[Span, Slab]]:
        """Read a batch at once, then hash piece by piece."""
        key = self._key_of(file)
        if any(piece.num_bytes for piece in batch):
            self._storage.read_into(key, offset, views)
        for piece, view in zip(batch, views, strict=True):
            if piece.span is None:
                continue
            piece.digest.update(view)
            if piece.slab is not None:
                if piece.memory is None:
                    piece.slab.memory = view
                yield piece.span, piece.slab
            if piece.is_last:
                _compare(piece.span, piece.digest.hexdigest(), key, changed)


def _compare(
    span: Span, hex_digits: str, key: str, changed: Callable[[IntegrityError], None]
) -> None:
    if hex_digits != span.chunk.sha256.hex:
        changed(
            IntegrityError(
                "a chunk was changed after it was written",
                file=key,
                tensor=span.tensor.name,
                offset=span.chunk.offset,
                expected=str(span.chunk.sha256),
                got=str(Digest(hex_digits)),
            )
        )
