"""Reads a checkpoint by its manifest alone: nothing is unpickled, every chunk is checked first.

Invariant: no byte reaches a tensor before the SHA-256 of its whole chunk was found to be the one
in the manifest. Memory: one chunk at a time beside the target. `.metadata` is never opened.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.container import dtype_name, dtype_of, from_raw, raw_bytes
from strongroom.checkpoint.manifest import Chunk, Manifest, TensorEntry
from strongroom.checkpoint.shard import read_parts
from strongroom.checkpoint.tiling import row_major_chunks, tile_faults
from strongroom.errors import InputError, IntegrityError, StrongroomError
from strongroom.names import Digest
from strongroom.storage.base import Storage

# Reading in one process is what verification is meant to do.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")


class CheckpointReader:
    """Reads tensors of one committed checkpoint."""

    def __init__(self, storage: Storage, committed: Committed) -> None:
        self._storage = storage
        self._committed = committed

    @property
    def manifest(self) -> Manifest:
        """What the checkpoint consists of."""
        return self._committed.manifest

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """The names of all tensors, sorted."""
        return tuple(tensor.name for tensor in self.manifest.tensors)

    def read(self, name: str) -> Tensor:
        """Return one whole tensor, in CPU memory, whatever its sharding was.

        Raises:
            InputError: there is no tensor of that name.
            IntegrityError: a chunk's bytes are not those in the manifest, or chunks do not tile it.
        """
        entry = self._whole_entry(name)
        tensor = torch.empty(entry.shape, dtype=dtype_of(entry.dtype))
        for chunk in entry.chunks:
            box = tuple(
                slice(at, at + size) for at, size in zip(chunk.at, chunk.shape, strict=True)
            )
            tensor[box] = self.read_chunk(entry, chunk)
        return tensor

    def read_chunk(self, entry: TensorEntry, chunk: Chunk) -> Tensor:
        """Return one chunk, of its own shape.

        Raises:
            IntegrityError: its bytes are not those in the manifest.
        """
        key = f"{self._committed.folder}/{chunk.file}"
        raw = torch.empty(chunk.num_bytes, dtype=torch.uint8)
        target = raw_bytes(raw)
        digest = hashlib.sha256()
        start = 0
        for part in read_parts(self._storage, key, offset=chunk.offset, num_bytes=chunk.num_bytes):
            digest.update(part)
            target[start : start + len(part)] = part
            start += len(part)
        if digest.hexdigest() != chunk.sha256.hex:
            raise IntegrityError(
                "a chunk was changed after it was written",
                file=key,
                tensor=entry.name,
                offset=chunk.offset,
                expected=str(chunk.sha256),
                got=str(Digest(digest.hexdigest())),
            )
        return from_raw(raw, entry.dtype, chunk.shape)

    def row_major(self, name: str) -> Iterator[Tensor]:
        """Yield tensors whose bytes, joined, are those of the whole tensor, row-major.

        A chunk at a time where the sharding allows it, else the whole tensor at once.

        Raises:
            InputError, IntegrityError: as `read`.
        """
        entry = self._whole_entry(name)
        chunks = row_major_chunks(entry)
        if chunks is None:
            yield self.read(name)
        else:
            for chunk in chunks:
                yield self.read_chunk(entry, chunk)

    def load_into(
        self,
        state: Mapping[str, Tensor],
        *,
        prefixes: tuple[str, ...] = ("",),
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Fill the tensors of `state` from the checkpoint, whatever the sharding of either.

        Collective where torch.distributed is initialised: an error of one rank is raised on all.
        Names, shapes and dtypes are compared before anything is read, and each chunk is checked
        before the part of a target that it fills is touched; after an error the targets hold old
        and new values and are of no more use.

        Args:
            state: plain tensors or DTensors by name; the same names on every rank.
            prefixes: the checkpoint's tensors whose names start with one of these must be exactly
                those of `state`. Other tensors are left alone, e.g. the RNG of other ranks.
            process_group: the default group where None.

        Raises:
            InputError: names are missing or too many, or a shape or dtype differs; all are listed.
            IntegrityError: a chunk's bytes are not those in the manifest.
        """
        entries = {
            entry.name: entry for entry in self.manifest.tensors if entry.name.startswith(prefixes)
        }
        _check_targets(self._committed, entries, state)
        for entry in entries.values():
            self._whole_entry(entry.name)
        try:
            load(
                dict(state),
                storage_reader=_ManifestReader(self, entries),
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                process_group=process_group,
                no_dist=not dist.is_initialized(),
            )
        except CheckpointException as failure:
            raise _first_cause(failure) from failure

    def _whole_entry(self, name: str) -> TensorEntry:
        entry = self.manifest.tensor(name)
        if faults := tile_faults(entry):
            raise IntegrityError(
                "chunks do not tile a tensor",
                file=f"{self._committed.folder}/manifest.json",
                tensor=name,
                expected="every element in exactly one chunk",
                got="; ".join(faults),
            )
        return entry


class _ManifestReader(StorageReader):
    """Lets `dcp.load` plan the resharding, and reads chunks through `CheckpointReader`."""

    def __init__(self, reader: CheckpointReader, entries: Mapping[str, TensorEntry]) -> None:
        self._reader = reader
        self._entries = entries
        # An empty chunk needs no read, and may share its position with one that does.
        self._chunks = {
            MetadataIndex(entry.name, chunk.at): chunk
            for entry in entries.values()
            for chunk in entry.chunks
            if math.prod(chunk.shape)
        }

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Refuse another checkpoint than the one this reader is for."""
        raise InputError(f"load: got checkpoint_id {checkpoint_id!r} beside a manifest's reader")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ANN401, ARG002 -- the signature of the base class
        """Return what `.metadata` would say, from the manifest."""
        return Metadata(
            state_dict_metadata={
                entry.name: TensorStorageMetadata(
                    properties=TensorProperties(dtype=dtype_of(entry.dtype)),
                    size=torch.Size(entry.shape),
                    chunks=[
                        ChunkStorageMetadata(torch.Size(chunk.at), torch.Size(chunk.shape))
                        for chunk in entry.chunks
                        if math.prod(chunk.shape)
                    ],
                )
                for entry in self._entries.values()
            }
        )

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,
        *args: Any,  # noqa: ANN401 -- the signature of the base class
        **kwargs: Any,  # noqa: ANN401 -- as above
    ) -> None:
        """Nothing to set up: the manifest was read before."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Leave the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Leave the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read each chunk once, check it, and copy every part that is asked for."""
        by_chunk: dict[MetadataIndex, list[ReadItem]] = {}
        for item in plan.items:
            by_chunk.setdefault(item.storage_index, []).append(item)
        for index, items in by_chunk.items():
            source = self._reader.read_chunk(self._entries[index.fqn], self._chunks[index])
            for item in items:
                box = tuple(
                    slice(start, start + size)
                    for start, size in zip(item.storage_offsets, item.lengths, strict=True)
                )
                target = planner.resolve_tensor(item).detach()
                target.copy_(source[box])
                planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 -- the signature of the base class
        """Never chosen by path: a reader is made for one checkpoint."""
        return False


def _check_targets(
    committed: Committed, entries: Mapping[str, TensorEntry], state: Mapping[str, Tensor]
) -> None:
    """Compare names, shapes and dtypes; stock DCP ignores extra keys and casts in silence."""
    faults = []
    if missing := sorted(set(state) - set(entries)):
        faults.append(f"the checkpoint lacks {', '.join(missing)}")
    if extra := sorted(set(entries) - set(state)):
        faults.append(f"nothing takes the checkpoint's {', '.join(extra)}")
    for name in sorted(set(state) & set(entries)):
        entry, tensor = entries[name], state[name]
        got = f"{entry.dtype} {list(entry.shape)}"
        wanted = f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"
        if got != wanted:
            faults.append(f"{name} is {got} in the checkpoint, {wanted} in the target")
    if faults:
        raise InputError(
            f"checkpoint {committed.name} does not fit what it is loaded into: {'; '.join(faults)};"
            " build the model that the run's record describes"
        )


def _first_cause(failure: CheckpointException) -> BaseException:
    """Return the error of the lowest rank that has one of ours, else DCP's own exception."""
    for _, (error, _) in sorted(failure.failures.items()):
        if isinstance(error, StrongroomError):
            return error
    return failure
