"""Whether boxes tile a tensor: pure arithmetic on chunk positions.

Law: `tile_faults` is empty exactly when every element of the tensor lies in exactly one chunk.
This module never imports torch.
"""

from __future__ import annotations

import math

from strongroom.checkpoint.manifest import Chunk, TensorEntry


def tile_faults(tensor: TensorEntry) -> list[str]:
    """Say where the chunks of `tensor` overlap, stick out or leave a gap; nothing if they tile it.

    Boxes inside the tensor that do not overlap tile it exactly if their volumes add up to its own.
    """
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
        for first, second in _overlaps(boxes)
    ]
    covered = sum(math.prod(chunk.shape) for chunk in boxes)
    whole = math.prod(tensor.shape)
    if not faults and covered < whole:
        faults.append(
            f"tensor {tensor.name}: {whole - covered} of {whole} elements lie in no chunk"
        )
    return faults


def row_major_chunks(tensor: TensorEntry) -> tuple[Chunk, ...] | None:
    """Return the chunks in the order in which their bytes, joined, are the tensor's own.

    None where no order does that, because a chunk is cut along another dimension than the first.
    Only for chunks that tile the tensor.
    """
    boxes = [chunk for chunk in tensor.chunks if math.prod(chunk.shape)]
    if any(chunk.shape[1:] != tensor.shape[1:] for chunk in boxes):
        return None
    return tuple(sorted(boxes, key=lambda chunk: chunk.at))


def _overlaps(boxes: list[Chunk]) -> list[tuple[Chunk, Chunk]]:
    """Sweep along the first dimension; only chunks that share a row are compared."""
    found: list[tuple[Chunk, Chunk]] = []
    active: list[Chunk] = []
    for box in sorted(boxes, key=lambda chunk: chunk.at):
        if box.at:
            active = [other for other in active if other.at[0] + other.shape[0] > box.at[0]]
        found += [(other, box) for other in active if _share_an_element(other, box)]
        active.append(box)
    return found


def _share_an_element(first: Chunk, second: Chunk) -> bool:
    return all(
        max(a, b) < min(a + size_a, b + size_b)
        for a, size_a, b, size_b in zip(first.at, first.shape, second.at, second.shape, strict=True)
    )


def _box(chunk: Chunk) -> str:
    """`file@offset [2:4, 0:8]`."""
    ranges = ", ".join(f"{at}:{at + size}" for at, size in zip(chunk.at, chunk.shape, strict=True))
    return f"{chunk.file}@{chunk.offset} [{ranges}]"
