"""Where bytes that are read go: into tensors, in place where a chunk lies there in one run.

What does not, because the target is on another device, of another dtype, cut differently or not
contiguous, is copied box by box from scratch memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strongroom.checkpoint.boxes import Box, cut
from strongroom.checkpoint.container import dtype_of, from_raw, raw_bytes
from strongroom.checkpoint.entries import DTYPE_BYTES
from strongroom.checkpoint.reading.ranged import RangedReads, Slab
from strongroom.checkpoint.reading.spans import Range, Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """A tensor that takes part of a chunk.

    Attributes:
        box: which part.
        target: of the box's shape, on any device; what is of another dtype is cast.
    """

    box: Box
    target: Tensor


Wanted = Mapping[Span, Sequence[Destination]]
"""Where the parts of each span are to go."""


def fill_range(reads: RangedReads, part: Range, wanted: Wanted) -> None:
    """Read one range and put its elements where they are wanted.

    Raises:
        IntegrityError: a span's bytes are not those in the manifest.
    """

    def route(span: Span, most_bytes: int) -> Iterator[Slab]:
        memory = _memory_in_place(span, wanted[span])
        if memory is None:
            yield from _boxed(span, most_bytes)
        else:
            yield Slab(num_bytes=memory.nbytes, memory=memory)

    for span, slab in reads.read(part, route):
        if slab.box is not None:
            _copy(span, slab, slab.box, wanted[span])


def stream(reads: RangedReads, span: Span) -> Iterator[Tensor]:
    """Yield the elements of one span, in order, a few MiB at a time, each in memory of its own.

    Raises:
        IntegrityError: at the end, if the span's bytes are not those in the manifest.
    """

    def route(span: Span, most_bytes: int) -> Iterator[Slab]:
        for slab in _boxed(span, most_bytes):
            slab.memory = raw_bytes(torch.empty(slab.num_bytes, dtype=torch.uint8))
            yield slab

    for _, slab in reads.read(Range(file=span.chunk.file, spans=(span,)), route):
        if slab.box is not None and slab.num_bytes:
            yield _elements(span, slab, slab.box)


def _boxed(span: Span, most_bytes: int) -> Iterator[Slab]:
    item_bytes = DTYPE_BYTES[span.tensor.dtype]
    for box in cut(span.chunk.shape, item_bytes=item_bytes, max_bytes=most_bytes):
        yield Slab(num_bytes=math.prod(box.shape) * item_bytes, box=box)


def _memory_in_place(span: Span, destinations: Sequence[Destination]) -> memoryview | None:
    """Return the target's own memory, where the chunk is wanted once, whole, and as it lies."""
    if len(destinations) != 1:
        return None
    box, target = destinations[0].box, destinations[0].target
    lies_there = (
        box.shape == span.chunk.shape
        and target.device.type == "cpu"
        and target.dtype == dtype_of(span.tensor.dtype)
        and target.is_contiguous()
    )
    return raw_bytes(target) if lies_there else None


def _elements(span: Span, slab: Slab, box: Box) -> Tensor:
    raw = torch.frombuffer(slab.memory, dtype=torch.uint8)
    return from_raw(raw, span.tensor.dtype, box.shape)


def _copy(span: Span, slab: Slab, box: Box, destinations: Sequence[Destination]) -> None:
    """Copy the elements of a slab, which is a box of the chunk, to all who want some of them."""
    if not slab.num_bytes:
        return
    elements = _elements(span, slab, box)
    for destination in destinations:
        common = _common(box, destination.box)
        if common is not None:
            target = destination.target[_within(common, destination.box)]
            target.copy_(elements[_within(common, box)])


def _common(first: Box, second: Box) -> Box | None:
    """Return the elements that two boxes of one tensor share, if any."""
    at = tuple(map(max, first.at, second.at))
    ends = [
        min(a + size_a, b + size_b)
        for a, size_a, b, size_b in zip(first.at, first.shape, second.at, second.shape, strict=True)
    ]
    shape = tuple(end - start for start, end in zip(at, ends, strict=True))
    return Box(at, shape) if all(size > 0 for size in shape) else None


def _within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Return what indexes the tensor of `outer` to get `box`."""
    return box.moved(tuple(-at for at in outer.at)).slices
