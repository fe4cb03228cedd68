"""Pieces: what a save writes as chunks, as it lies in memory.

A tensor is cut by its shape alone, so an unchanged tensor gives the same pieces at every save. No
byte is copied to be hashed or written, unless a tensor is on another device or not contiguous: then
one piece at a time a thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from strongroom.checkpoint import boxes
from strongroom.checkpoint.boxes import Box, cut
from strongroom.checkpoint.container import Frame, dtype_name, frame, raw_bytes
from strongroom.checkpoint.parallel import run_parallel
from strongroom.checkpoint.writing import shard_plan
from strongroom.names import Digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A chunk to be: a box of a tensor in memory, and the frame that makes a container of it.

    Attributes:
        tensor: name of the whole tensor.
        at: index of the first element in the whole tensor.
        source: the part of the tensor that is in memory here.
        box: which elements of `source`.
    """

    tensor: str
    at: tuple[int, ...]
    source: Tensor
    box: Box
    frame: Frame

    @property
    def dtype(self) -> str:
        """The dtype's name in a manifest."""
        return dtype_name(self.source.dtype)

    @property
    def num_bytes(self) -> int:
        """Bytes of the container."""
        return self.frame.num_bytes

    def buffers(self) -> tuple[memoryview, ...]:
        """Return the container: header, raw bytes, trailer."""
        elements = self.source[self.box.slices].detach().cpu().contiguous()
        return memoryview(self.frame.header), raw_bytes(elements), memoryview(self.frame.trailer)


def boxes_of(shape: tuple[int, ...], item_bytes: int) -> Iterator[Box]:
    """Yield the boxes of the chunks that a part of a tensor, of this shape, is saved in."""
    return cut(shape, item_bytes=item_bytes, max_bytes=boxes.CHUNK_BYTES)


def pieces_of(tensor: str, at: tuple[int, ...], source: Tensor) -> Iterator[Piece]:
    """Yield the pieces of `source`, the part of a tensor from index `at` that is in memory here."""
    for box in boxes_of(tuple(source.shape), source.dtype.itemsize):
        yield Piece(
            tensor=tensor,
            at=box.moved(at).at,
            source=source,
            box=box,
            frame=frame(box.shape, source.dtype),
        )


def digest_of(buffers: Iterable[memoryview]) -> Digest:
    """Hash buffers, one after another: the one place where a save hashes what a tensor holds."""
    digest = hashlib.sha256()
    for buffer in buffers:
        digest.update(buffer)
    return Digest(digest.hexdigest())


def digest_pieces(pieces: Sequence[Piece], *, threads: int) -> list[Digest]:
    """Return the digest of each piece's container, computed by several threads."""
    batches: list[list[Piece]] = [[]]
    batch_bytes = 0
    for piece in pieces:
        if batch_bytes >= shard_plan.PART_BYTES:
            batches.append([])
            batch_bytes = 0
        batches[-1].append(piece)
        batch_bytes += piece.num_bytes
    found = run_parallel((partial(_digests, batch) for batch in batches), threads=threads)
    return [digest for digests in found for digest in digests]


def _digests(pieces: Sequence[Piece]) -> list[Digest]:
    return [digest_of(piece.buffers()) for piece in pieces]
