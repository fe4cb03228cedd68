"""Boxes of a tensor: how a large one is cut into pieces, and what boxes a run of elements makes.

Pure arithmetic on shapes, so that a tensor is cut the same way at every save and an unchanged piece
is found again in an earlier checkpoint. This module never imports torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

CHUNK_BYTES = 16 * 2**20
"""Most raw bytes of a chunk: one part of an upload, one range of a read, one unit of reuse."""


class Box(NamedTuple):
    """`shape` elements of a tensor, from index `at`."""

    at: tuple[int, ...]
    shape: tuple[int, ...]

    def moved(self, by: tuple[int, ...]) -> Box:
        """Return the box in the tensor of which this box's tensor is the part from index `by`."""
        return Box(tuple(map(sum, zip(self.at, by, strict=True))), self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """What indexes a tensor to get the box."""
        return tuple(slice(at, at + size) for at, size in zip(self.at, self.shape, strict=True))


def cut(shape: tuple[int, ...], *, item_bytes: int, max_bytes: int) -> Iterator[Box]:
    """Yield the pieces of a tensor of `shape`, in the order of their bytes.

    Laws: the row-major bytes of the pieces, joined, are those of the tensor; no piece has more than
    `max_bytes`, unless it is a single element; where a dimension is cut, the pieces differ by one
    row at most, so that none is left too small to be a part of its own.

    Args:
        shape: of the tensor, row-major and contiguous.
        item_bytes: bytes of one element.
        max_bytes: most bytes of a piece.
    """
    row_bytes = math.prod(shape[1:]) * item_bytes
    if not shape or shape[0] * row_bytes <= max_bytes:
        yield Box((0,) * len(shape), shape)
    elif row_bytes > max_bytes and len(shape) > 1:
        for row in range(shape[0]):
            for at, size in cut(shape[1:], item_bytes=item_bytes, max_bytes=max_bytes):
                yield Box((row, *at), (1, *size))
    else:
        rows_max = max(max_bytes // row_bytes, 1)
        pieces = -(-shape[0] // rows_max)
        starts = [shape[0] * piece // pieces for piece in range(pieces + 1)]
        for start, end in itertools.pairwise(starts):
            yield Box((start, *(0 for _ in shape[1:])), (end - start, *shape[1:]))


def boxes_of_range(shape: tuple[int, ...], start: int, stop: int) -> list[Box]:
    """Return the fewest boxes that are the elements `start` to `stop` of a row-major tensor.

    Laws: their row-major elements, joined, are those of the range, in order; there are at most
    2 n - 1 boxes in n dimensions: rows begun, whole rows, rows left unfinished, at each depth. A
    tensor without elements is one box, so that it is not lost; any other empty range is none.
    """
    if math.prod(shape) == 0 or not shape:
        return [] if shape == () and start == stop else [Box((0,) * len(shape), shape)]
    if start >= stop:
        return []
    row = math.prod(shape[1:])
    first, last = start // row, stop // row
    if first == last:  # inside one row
        return _in_row(shape, first, start - first * row, stop - first * row)
    boxes = []
    if start % row:
        boxes += _in_row(shape, first, start % row, row)
        first += 1
    if first < last:
        zeros = (0,) * (len(shape) - 1)
        boxes.append(Box((first, *zeros), (last - first, *shape[1:])))
    if stop % row:
        boxes += _in_row(shape, last, 0, stop % row)
    return boxes


def _in_row(shape: tuple[int, ...], row: int, start: int, stop: int) -> list[Box]:
    return [Box((row, *at), (1, *size)) for at, size in boxes_of_range(shape[1:], start, stop)]
