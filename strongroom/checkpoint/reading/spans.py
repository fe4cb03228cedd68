"""Which bytes of which files to ask a storage for: pure planning of ranged reads.

Law: every span that is asked for lies in exactly one range, ranges are ordered by file and offset,
and no range holds more than `GAP_BYTES` between two spans, or `RANGE_BYTES` unless it is one span.
This module never imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strongroom.checkpoint.entries import Chunk, TensorEntry

RANGE_BYTES = 16 * 2**20
"""What is asked for together: as much as a chunk holds, so that a round trip to S3 pays."""
GAP_BYTES = 64 * 2**10
"""Bytes nobody needs that are read for the sake of one request less."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Span:
    """The bytes of one chunk of a tensor as they stand in a file: header, raw bytes, trailer.

    Two spans are never equal, so that many can be told apart by dictionaries without a look inside.
    """

    tensor: TensorEntry
    chunk: Chunk

    @property
    def end(self) -> int:
        """Offset in the file of the first byte after it."""
        return self.chunk.offset + self.chunk.num_bytes

    @property
    def raw_bytes(self) -> int:
        """Bytes of the elements alone."""
        return self.tensor.raw_bytes(self.chunk)

    @property
    def trailer_bytes(self) -> int:
        """Bytes after the last element."""
        return self.chunk.num_bytes - self.chunk.data_offset - self.raw_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Consecutive bytes of one file, read by one thread: spans in their order, gaps between."""

    file: str
    spans: tuple[Span, ...]

    @property
    def offset(self) -> int:
        """Where in the file it begins."""
        return self.spans[0].chunk.offset

    @property
    def num_bytes(self) -> int:
        """Bytes from its first to its last, gaps included."""
        return self.spans[-1].end - self.offset


def spans_of(tensors: Iterable[TensorEntry]) -> list[Span]:
    """Return the spans of all chunks of some tensors."""
    return [Span(tensor=tensor, chunk=chunk) for tensor in tensors for chunk in tensor.chunks]


def coalesced(spans: Iterable[Span]) -> list[Range]:
    """Put spans together that lie side by side, or nearly, in one file."""
    ranges: list[Range] = []
    together: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.chunk.file, span.chunk.offset, span.end)):
        if together and not _fits(together, span):
            ranges.append(Range(file=together[0].chunk.file, spans=tuple(together)))
            together = []
        together.append(span)
    if together:
        ranges.append(Range(file=together[0].chunk.file, spans=tuple(together)))
    return ranges


def _fits(together: list[Span], span: Span) -> bool:
    first, last = together[0], together[-1]
    return (
        span.chunk.file == first.chunk.file
        and 0 <= span.chunk.offset - last.end <= GAP_BYTES
        and span.end - first.chunk.offset <= RANGE_BYTES
    )
