"""Checkpoints put together by hand from the specification, of any version, sharding and fault.

They do not go through the writer, so that what it would never write can be read too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from strongroom.checkpoint.boxes import Box
from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.checkpoint.container import dtype_name, frame, raw_bytes
from strongroom.checkpoint.entries import Chunk, FileEntry, TensorEntry
from strongroom.checkpoint.layout import checkpoint_folder
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE, Manifest, seal_bytes
from strongroom.checkpoint.shard import METADATA_FILE, ShardHeader, padding, shard_name
from strongroom.names import CheckpointName, Digest
from strongroom.storage.base import Storage
from tests.support.checkpoints import INPUTS, checkpoint_name, save_facts


class Placed(NamedTuple):
    """What one rank has of a tensor: a box of it, from index `at`."""

    at: tuple[int, ...]
    part: Tensor


Rank = Mapping[str, Sequence[Placed]]


def whole(tensors: Mapping[str, Tensor]) -> Rank:
    """Return everything as one rank has it."""
    return {name: [Placed((0,) * tensor.dim(), tensor)] for name, tensor in tensors.items()}


def spread(
    tensors: Mapping[str, Tensor], boxes: Mapping[str, Sequence[Sequence[Box]]]
) -> list[Rank]:
    """Return what each rank has, where `boxes[name][rank]` are its boxes of a tensor."""
    world_size = max(map(len, boxes.values()))
    return [
        {
            name: [Placed(box.at, tensors[name][box.slices]) for box in of_ranks[rank]]
            for name, of_ranks in boxes.items()
            if rank < len(of_ranks)
        }
        for rank in range(world_size)
    ]


def craft(  # noqa: PLR0913 -- what the checkpoint is made of
    storage: Storage,
    ranks: Sequence[Rank],
    step: int = 10,
    *,
    version: int = 2,
    base: Committed | None = None,
    index: bytes = b"an index that nobody here reads",
) -> Committed:
    """Store a checkpoint; with `base`, what equals a chunk of it is borrowed from it."""
    name = checkpoint_name(step)
    facts = save_facts(name)
    save_id = Digest.of(str(name).encode()).hex[:32]
    lent = {} if base is None else _lent(base.manifest)
    chunks: dict[str, list[Chunk]] = {}
    dtypes: dict[str, str] = {}
    files: dict[str, FileEntry] = {}
    for rank, parts in enumerate(ranks):
        shard = bytearray(ShardHeader(name=name, save_id=save_id, rank=rank).to_bytes())
        for tensor, placed in parts.items():
            for at, part in placed:
                dtypes[tensor] = dtype_name(part.dtype)
                chunk, container = _contained(part, at, shard_name(rank), version)
                borrowed = lent.get((tensor, dtypes[tensor], at, chunk.shape, chunk.sha256))
                if borrowed is not None:
                    chunks.setdefault(tensor, []).append(borrowed[0])
                    files[borrowed[1].name] = borrowed[1]
                    continue
                if version == 1:
                    shard += padding(len(shard))
                chunks.setdefault(tensor, []).append(
                    replace(chunk, offset=len(shard) + chunk.offset)
                )
                shard += container
        files[shard_name(rank)] = _stored(storage, name, shard_name(rank), bytes(shard), version)
    index_file = _stored(storage, name, METADATA_FILE, index, 1)
    manifest = Manifest(
        name=name,
        save_id=save_id,
        created="2026-01-31T08:15:00.123Z",
        world_size=len(ranks),
        parent=None,
        inputs=INPUTS,
        files=tuple(sorted([*files.values(), index_file], key=lambda file: file.name)),
        tensors=tuple(
            TensorEntry(
                name=tensor,
                dtype=dtypes[tensor],
                shape=_extent(chunks[tensor]),
                chunks=tuple(sorted(chunks[tensor], key=lambda chunk: (chunk.at, chunk.offset))),
            )
            for tensor in sorted(chunks)
        ),
        state=facts.state,
        metrics=facts.metrics,
        exact_resume=True,
        chain=_chain(base, files),
        version=version,
    )
    seal(storage, manifest)
    return read_checkpoint(storage, name)


def seal(storage: Storage, manifest: Manifest) -> None:
    """Put a manifest and its seal in place, over what stands there."""
    folder = checkpoint_folder(manifest.name)
    storage.replace(f"{folder}/{SEAL_FILE}", seal_bytes(manifest.checkpoint_id))
    storage.replace(f"{folder}/{MANIFEST_FILE}", manifest.to_bytes())


def _contained(part: Tensor, at: tuple[int, ...], file: str, version: int) -> tuple[Chunk, bytes]:
    """Return a container, and its chunk as if the container stood at the file's beginning."""
    part = part.contiguous()
    shape = tuple(part.shape)
    around = frame(shape, part.dtype)
    raw = bytes(raw_bytes(part))
    container = around.header + raw + around.trailer
    span = raw if version == 1 else container
    chunk = Chunk(
        at=at,
        shape=shape,
        file=file,
        offset=len(around.header) if version == 1 else 0,
        num_bytes=len(span),
        sha256=Digest.of(span),
        data_offset=0 if version == 1 else len(around.header),
    )
    return chunk, container


def _stored(
    storage: Storage, name: CheckpointName, file: str, data: bytes, version: int
) -> FileEntry:
    storage.create(f"{checkpoint_folder(name)}/{file}", data)
    sha256 = Digest.of(data) if version == 1 else None
    return FileEntry(name=file, num_bytes=len(data), sha256=sha256)


LentChunk = tuple[str, str, tuple[int, ...], tuple[int, ...], Digest]


def _lent(base: Manifest) -> dict[LentChunk, tuple[Chunk, FileEntry]]:
    """Return what may be borrowed, as it stands in the borrower's manifest."""
    files = {}
    for file in base.files:
        if file.lender is None:
            path = f"{base.name.attempt}/{base.name.step}/{file.name}"
            files[file.name] = replace(file, name=path, lender=base.checkpoint_id)
        else:
            files[file.name] = file
    return {
        (entry.name, entry.dtype, chunk.at, chunk.shape, chunk.sha256): (
            replace(chunk, file=files[chunk.file].name),
            files[chunk.file],
        )
        for entry in base.tensors
        for chunk in entry.chunks
    }


def _extent(chunks: Sequence[Chunk]) -> tuple[int, ...]:
    ends = [tuple(map(sum, zip(chunk.at, chunk.shape, strict=True))) for chunk in chunks]
    return tuple(map(max, zip(*ends, strict=True)))


def _chain(base: Committed | None, files: Mapping[str, FileEntry]) -> int:
    is_delta = base is not None and any(file.lender is not None for file in files.values())
    return base.manifest.chain + 1 if base is not None and is_delta else 0
