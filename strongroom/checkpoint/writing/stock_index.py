"""The index that stock readers of `torch.distributed.checkpoint` go by: `.metadata`, a pickle.

Made of torch's own classes alone, and of names: no path of the machine that wrote it. Stock readers
find each chunk's container through it; ours never open it.
"""

from __future__ import annotations

import math
import pickle
import posixpath
from collections.abc import Iterable, Mapping

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from strongroom.checkpoint.container import dtype_of
from strongroom.checkpoint.entries import Chunk, TensorEntry
from strongroom.names import CheckpointName


def stock_index(
    name: CheckpointName,
    tensors: Iterable[TensorEntry],
    *,
    save_id: str,
    paths: Mapping[str, tuple[str | int, ...]] | None = None,
) -> bytes:
    """Return the content of `.metadata`.

    Args:
        name: the checkpoint's.
        tensors: with chunks that tile them.
        save_id: of this save.
        paths: how tensors' names nest, for readers that have no state of their own to fill; where
            None, the names are flat.
    """
    tensors = list(tensors)
    described: dict[str, STORAGE_TYPES] = {}
    places = {}
    for entry in tensors:
        # An empty chunk needs no read, and may share its position with one that does.
        chunks = [chunk for chunk in entry.chunks if math.prod(chunk.shape)]
        described[entry.name] = TensorStorageMetadata(
            properties=TensorProperties(dtype=dtype_of(entry.dtype)),
            size=torch.Size(entry.shape),
            chunks=[
                ChunkStorageMetadata(torch.Size(chunk.at), torch.Size(chunk.shape))
                for chunk in chunks
            ],
        )
        for chunk in chunks:
            index = MetadataIndex(entry.name, chunk.at)
            places[index] = _StorageInfo(_path(name, chunk), chunk.offset, chunk.num_bytes)
    return pickle.dumps(
        Metadata(
            state_dict_metadata=described,
            planner_data=dict(paths or {entry.name: (entry.name,) for entry in tensors}),
            storage_data=places,
            storage_meta=StorageMeta(checkpoint_id=str(name), save_id=save_id),
            version=CURRENT_DCP_VERSION,
        )
    )


def _path(name: CheckpointName, chunk: Chunk) -> str:
    """Return where the chunk's file stands, seen from the checkpoint's folder.

    Stock readers on disk follow the `..` of a borrowed file; those of object storage do not.
    """
    if "/" not in chunk.file:
        return chunk.file
    return posixpath.relpath(chunk.file, f"{name.attempt}/{name.step}")
