"""A rank's part of a tensor that is sharded by elements: a run of its row-major order.

That is how ZeRO-3 shards: each rank holds a contiguous range of each parameter, wherever a row may
begin. Such a range is a few boxes (`boxes_of_range`), and boxes are what DCP's planners read and
write: no rank ever holds the whole tensor, and any other sharding can be loaded from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from strongroom.checkpoint.boxes import Box, boxes_of_range
from strongroom.errors import InputError


class FlatRange(Tensor):
    """Elements `start` to `start + elements.numel()` of a tensor of `shape`, in row-major order.

    It has the shape, dtype and device of the whole tensor and none of its values: no operation can
    be done on it. DCP asks it for its chunks, as it asks a DTensor.

    Args:
        elements: [n], contiguous; the live memory: reading into this writes there.
        start: where in the flattened tensor they begin.
        shape: of the whole tensor.

    Raises:
        InputError: `elements` are not a run of elements of such a tensor.
    """

    @staticmethod
    def __new__(cls: type[Self], elements: Tensor, *, start: int, shape: torch.Size) -> Self:
        """Make what looks like the whole tensor."""
        made: Self = Tensor._make_wrapper_subclass(  # noqa: SLF001 -- torch's way to make such a class
            cls, shape, dtype=elements.dtype, device=elements.device
        )
        return made

    def __init__(self, elements: Tensor, *, start: int, shape: torch.Size) -> None:
        stop = start + elements.numel()
        if elements.dim() != 1 or not elements.is_contiguous() or stop > math.prod(shape):
            raise InputError(
                f"flat range: expected contiguous elements [n] that end within the "
                f"{math.prod(shape)} of a tensor {list(shape)}, got {list(elements.shape)} "
                f"from {start}"
            )
        self.elements = elements
        self.start = start
        boxes = boxes_of_range(tuple(shape), start, stop)
        sizes = [math.prod(box.shape) for box in boxes]
        parts: Sequence[Tensor] = torch.split(elements, sizes) if boxes else ()
        self._views: dict[torch.Size, tuple[Box, Tensor]] = {
            torch.Size(box.at): (box, part.view(box.shape))
            for box, part in zip(boxes, parts, strict=True)
        }

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,  # noqa: ANN401 -- torch's own signature
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[Any, Any] | None = None,
    ) -> Any:  # noqa: ANN401 -- as above
        """Refuse: the values of the whole tensor are not here."""
        raise InputError(
            f"flat range: {func} cannot be computed on a part of a tensor; use `elements`"
        )

    def __repr__(self) -> str:  # type: ignore[override]
        """Say which part of what it is."""
        stop = self.start + self.elements.numel()
        return f"FlatRange({self.start}:{stop} of {list(self.shape)}, {self.dtype})"

    def __create_write_items__(self, name: str, _object: object) -> list[WriteItem]:
        """Return what there is to write, in DCP's words."""
        return [
            WriteItem(
                index=MetadataIndex(name, torch.Size(box.at), number),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=_chunk(box),
                    properties=TensorProperties(dtype=self.dtype),
                    size=self.shape,
                ),
            )
            for number, (box, _) in enumerate(self._views.values())
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Return what there is to read, in DCP's words."""
        return [_chunk(box) for box, _ in self._views.values()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        """Return the elements of one of its boxes."""
        if index.offset is None:
            raise InputError(f"flat range {index.fqn!r}: expected an offset, got none")
        _, elements = self._views[index.offset]
        return elements


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(box.at), sizes=torch.Size(box.shape))
