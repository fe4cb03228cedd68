"""Whether boxes tile a tensor, and in which order their bytes are the tensor's: pure arithmetic.

Laws: `tile_faults` is empty exactly when every element of the tensor lies in exactly one chunk. The
bands of `row_major_bands`, one after another, are the whole tensor in row-major order. This module
never imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from strongroom.checkpoint.entries import Chunk, TensorEntry

DIMS_MAX = 64
"""Most dimensions of a tensor; numpy's limit."""
FAULTS_MAX = 10
"""Most overlaps of one tensor that are told: a hostile manifest may hold any number of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """A box of a tensor whose elements follow each other in row-major order, and its chunks."""

    at: tuple[int, ...]
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def tile_faults(tensor: TensorEntry) -> list[str]:
    """Say where the chunks of `tensor` overlap, stick out or leave a gap; nothing if they tile it.

    Boxes inside the tensor that do not overlap tile it exactly if their volumes add up to its own.
    """
    if len(tensor.shape) > DIMS_MAX:
        return [f"tensor {tensor.name}: has {len(tensor.shape)} dimensions, more than {DIMS_MAX}"]
    boxes = [chunk for chunk in tensor.chunks if math.prod(chunk.shape)]
    outside = [
        f"tensor {tensor.name}: the chunk {_box(chunk)} sticks out of the shape {tensor.shape}"
        for chunk in tensor.chunks
        if any(
            at + size > whole
            for at, size, whole in zip(chunk.at, chunk.shape, tensor.shape, strict=True)
        )
    ]
    if outside:
        return outside
    faults = [
        f"tensor {tensor.name}: the chunks {_box(first)} and {_box(second)} overlap"
        for first, second in islice(_overlaps(boxes), FAULTS_MAX)
    ]
    covered = sum(math.prod(chunk.shape) for chunk in boxes)
    whole = math.prod(tensor.shape)
    if not faults and covered < whole:
        faults.append(
            f"tensor {tensor.name}: {whole - covered} of {whole} elements lie in no chunk"
        )
    return faults


def row_major_bands(tensor: TensorEntry) -> list[Band]:
    """Cut `tensor` into bands, as few chunks in each as can be; only for chunks that tile it.

    A band of one chunk has its bytes in row-major order already; the chunks of another, such as
    those of a tensor that is cut by columns, must be put together first.
    """
    boxes = sorted(
        (chunk for chunk in tensor.chunks if math.prod(chunk.shape)), key=lambda chunk: chunk.at
    )
    return list(_bands(boxes, (0,) * len(tensor.shape), tensor.shape)) if boxes else []


def _bands(
    boxes: list[Chunk], at: tuple[int, ...], shape: tuple[int, ...], dim: int = 0
) -> Iterator[Band]:
    """Cut the box at `at` along `dim`, where no chunk is cut; all dimensions before have size 1."""
    dim = next((dim for dim in range(dim, len(shape)) if shape[dim] > 1), len(shape))
    if len(boxes) == 1 or dim == len(shape):
        yield Band(at=at, shape=shape, chunks=tuple(boxes))
        return
    band: list[Chunk] = []
    start = end = at[dim]
    for box in [*boxes, None]:
        if band and (box is None or box.at[dim] >= end):
            place = (*at[:dim], start, *at[dim + 1 :])
            inner = (*shape[:dim], end - start, *shape[dim + 1 :])
            if end - start == 1:
                yield from _bands(band, place, inner, dim + 1)
            else:
                yield Band(at=place, shape=inner, chunks=tuple(band))
            band, start = [], end
        if box is not None:
            band.append(box)
            end = max(end, box.at[dim] + box.shape[dim])


def _overlaps(boxes: list[Chunk]) -> Iterator[tuple[Chunk, Chunk]]:
    """Sweep along the dimension that is cut most; only chunks that share an index are compared."""
    dims = range(len(boxes[0].at) if boxes else 0)
    dim = max(dims, key=lambda dim: len({box.at[dim] for box in boxes}), default=0)
    active: list[Chunk] = []
    for box in sorted(boxes, key=lambda chunk: chunk.at[dim : dim + 1]):
        if box.at:
            active = [other for other in active if other.at[dim] + other.shape[dim] > box.at[dim]]
        yield from ((other, box) for other in active if _share_an_element(other, box))
        active.append(box)


def _share_an_element(first: Chunk, second: Chunk) -> bool:
    return all(
        max(a, b) < min(a + size_a, b + size_b)
        for a, size_a, b, size_b in zip(first.at, first.shape, second.at, second.shape, strict=True)
    )


def _box(chunk: Chunk) -> str:
    """`file@offset [2:4, 0:8]`."""
    ranges = ", ".join(f"{at}:{at + size}" for at, size in zip(chunk.at, chunk.shape, strict=True))
    return f"{chunk.file}@{chunk.offset} [{ranges}]"
