"""Puts together what the ranks of a save wrote: the tensors of the manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from strongroom.checkpoint.entries import Chunk, TensorEntry
from strongroom.checkpoint.tiling import tile_faults
from strongroom.errors import SaveError
from strongroom.names import CheckpointName


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenItem:
    """What a rank tells the coordinator of one item of its plan: a part of a tensor."""

    dtype: str
    chunks: tuple[Chunk, ...]


def tensor_entries(
    name: CheckpointName, planned: Metadata, written: Iterable[tuple[str, WrittenItem]]
) -> tuple[TensorEntry, ...]:
    """Return the tensors of all ranks, by name.

    Args:
        name: of the checkpoint, for errors.
        planned: the planner's, with the shape of every tensor.
        written: the items of all ranks, with their tensors' names.

    Raises:
        SaveError: chunks do not tile a tensor, or ranks disagree about its dtype.
    """
    items: dict[str, list[WrittenItem]] = {}
    for fqn, item in written:
        items.setdefault(fqn, []).append(item)
    entries = []
    faults = []
    for fqn in sorted(planned.state_dict_metadata):
        described = cast("TensorStorageMetadata", planned.state_dict_metadata[fqn])
        dtypes = sorted({item.dtype for item in items[fqn]})
        if len(dtypes) > 1:
            faults.append(f"tensor {fqn}: ranks hold it as {' and '.join(dtypes)}")
        chunks = [chunk for item in items[fqn] for chunk in item.chunks]
        entry = TensorEntry(
            name=fqn,
            dtype=dtypes[0],
            shape=tuple(described.size),
            chunks=tuple(sorted(chunks, key=lambda chunk: (chunk.at, chunk.file, chunk.offset))),
        )
        entries.append(entry)
        faults += tile_faults(entry)
    if faults:
        raise SaveError(
            f"save of {name}: expected the chunks of all ranks to tile every tensor, got: "
            f"{'; '.join(faults)}; nothing was committed"
        )
    return tuple(entries)
