"""Writes one checkpoint: a `torch.distributed.checkpoint` storage writer over our `Storage`.

Invariant: `manifest.json` comes last, so before it there is no checkpoint. Order of a save:

1. every rank streams its shard, hashing chunks and file as they are written (durable on return);
2. the coordinator checks that the chunks tile every tensor, writes `.metadata` (for stock readers
   only; ours never opens it), then calls the fence, writes `manifest.sha256` and creates
   `manifest.json`: that is the commit.

A failure of any rank reaches all of them through the collectives of `dcp.save`.
"""

from __future__ import annotations

import logging
import os
import pickle
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from strongroom import clock
from strongroom.canonical import JsonObject
from strongroom.checkpoint.container import dtype_name
from strongroom.checkpoint.layout import checkpoint_folder
from strongroom.checkpoint.manifest import (
    MANIFEST_FILE,
    SEAL_FILE,
    FileEntry,
    Inputs,
    Manifest,
    TensorEntry,
    seal_bytes,
)
from strongroom.checkpoint.shard import METADATA_FILE, ShardHeader, shard_name
from strongroom.checkpoint.shard_writer import ShardWriter, WrittenChunk
from strongroom.checkpoint.tiling import tile_faults
from strongroom.errors import InputError, SaveError, StrongroomError
from strongroom.names import CheckpointId, CheckpointName, Digest
from strongroom.storage.base import Storage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveFacts:
    """What a save knows besides its tensors; those of the coordinator (rank 0) are recorded.

    Attributes:
        name: where the checkpoint goes; a name is never used twice.
        parent: the checkpoint this attempt resumed from, None for a fresh start.
        state: non-tensor state: `cursor`, `scheduler`, `counters`, `optimizer`, `model`.
        metrics: `train_loss`, `probe_loss`; the save adds `pause_s`.
        exact_resume: whether resuming from here repeats an uninterrupted run bit for bit.
    """

    name: CheckpointName
    parent: CheckpointId | None
    inputs: Inputs
    state: JsonObject
    metrics: dict[str, float]
    exact_resume: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class _ShardTask:
    """What the coordinator tells each rank of the save."""

    save_id: str
    rank: int


class CheckpointWriter(StorageWriter):
    """Writes the checkpoint that `facts` describe; used once, by `dcp.save`.

    Args:
        storage: where to.
        facts: the coordinator's are recorded.
        fence: called by the coordinator right before the commit; raises FencedError to stop it.
        committed: called by the coordinator right after the commit.
    """

    def __init__(
        self,
        storage: Storage,
        facts: SaveFacts,
        *,
        fence: Callable[[], None],
        committed: Callable[[Manifest], None],
    ) -> None:
        self._storage = storage
        self._facts = facts
        self._fence = fence
        self._committed = committed
        self._folder = checkpoint_folder(facts.name)
        self._save_id = uuid.uuid4().hex

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Refuse another place than the one of `facts`."""
        raise InputError(f"save of {self._facts.name}: got checkpoint_id {checkpoint_id!r} as well")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- the signature of the base class
        """Nothing to set up: folders come into being with their files."""

    def storage_meta(self) -> StorageMeta:
        """Return what `.metadata` says of the storage: names alone, no path of this machine."""
        return StorageMeta(checkpoint_id=str(self._facts.name), save_id=self._save_id)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuse what a manifest cannot hold, while every rank can still be told.

        Raises:
            InputError: an item is no tensor, or of a dtype that a manifest cannot hold.
        """
        for item in plan.items:
            if item.tensor_data is None:
                raise InputError(
                    f"save of {self._facts.name}: {item.index.fqn!r} is no tensor; "
                    "what is no tensor belongs in SaveFacts.state"
                )
            dtype_name(item.tensor_data.properties.dtype)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give every rank the save id of the coordinator."""
        return [
            replace(plan, storage_data=_ShardTask(save_id=self._save_id, rank=rank))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's shard; it is durable when the future is returned."""
        with _portable_errors(self._facts.name):
            results = self._write_shard(plan, planner)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _write_shard(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        task = cast("_ShardTask", plan.storage_data)
        header = ShardHeader(name=self._facts.name, save_id=task.save_id, rank=task.rank)
        name = shard_name(task.rank)
        results = []
        with self._storage.create_stream(f"{self._folder}/{name}") as stream:
            shard = ShardWriter(stream, name=name, header=header)
            for item in plan.items:
                tensor = cast("Tensor", planner.resolve_data(item))
                part = shard.write(tensor, at=tuple(item.index.offset or ()))
                results.append(
                    WriteResult(
                        index=item.index, size_in_bytes=part.container_bytes, storage_data=part
                    )
                )
        file = shard.entry()
        results.append(
            WriteResult(index=MetadataIndex(name), size_in_bytes=file.num_bytes, storage_data=file)
        )
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit: `.metadata`, fence, seal, manifest.

        Raises:
            SaveError: the chunks do not tile the tensors, or the commit stands but `committed`
                failed.
            FormatError: the facts make no manifest that could be read again.
        """
        with _portable_errors(self._facts.name):
            self._commit(metadata, results)

    def _commit(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        facts = self._facts
        written = [
            (result.index, result.storage_data)
            for result in _flat(results)
            if isinstance(result.storage_data, WrittenChunk)
        ]
        files = [
            result.storage_data
            for result in _flat(results)
            if isinstance(result.storage_data, FileEntry)
        ]
        tensors = _tensor_entries(facts.name, metadata, written)
        files.append(self._write_metadata(metadata, written))
        manifest = Manifest(
            name=facts.name,
            save_id=self._save_id,
            created=clock.now_utc(),
            world_size=len(results),
            parent=facts.parent,
            inputs=facts.inputs,
            files=tuple(sorted(files, key=lambda entry: entry.name)),
            tensors=tensors,
            state=facts.state,
            metrics=facts.metrics,
            exact_resume=facts.exact_resume,
        )
        data = manifest.to_bytes()
        Manifest.from_bytes(data, where=self._folder)  # what cannot be read is not committed
        checkpoint_id = CheckpointId(Digest.of(data))
        self._fence()
        self._storage.create(f"{self._folder}/{SEAL_FILE}", seal_bytes(checkpoint_id))
        self._storage.create(f"{self._folder}/{MANIFEST_FILE}", data)
        logger.info(
            "checkpoint committed: name=%s id=%s save_id=%s tensors=%d bytes=%d",
            facts.name,
            checkpoint_id,
            self._save_id,
            len(tensors),
            manifest.num_bytes,
        )
        self._committed(manifest)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 -- the signature of the base class
        """Never chosen by path: a writer is made for one checkpoint."""
        return False

    def _write_metadata(
        self, metadata: Metadata, written: list[tuple[MetadataIndex, WrittenChunk]]
    ) -> FileEntry:
        """Write the index stock readers go by, made of torch's own classes alone."""
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_meta = self.storage_meta()
        metadata.storage_data = {
            index: _StorageInfo(part.chunk.file, part.container_offset, part.container_bytes)
            for index, part in written
        }
        data = pickle.dumps(metadata)
        self._storage.create(f"{self._folder}/{METADATA_FILE}", data)
        return FileEntry(name=METADATA_FILE, num_bytes=len(data), sha256=Digest.of(data))


@contextmanager
def _portable_errors(name: CheckpointName) -> Iterator[None]:
    """Turn what is raised by a storage or a callback into errors that reach every rank.

    An error that cannot be pickled, or not read back, would leave the other ranks waiting.
    """
    try:
        yield
    except StrongroomError:
        raise
    except Exception as error:
        raise SaveError(f"save of {name}: {type(error).__name__}: {error}") from error


def _tensor_entries(
    name: CheckpointName, metadata: Metadata, written: list[tuple[MetadataIndex, WrittenChunk]]
) -> tuple[TensorEntry, ...]:
    """Put the chunks of all ranks together.

    Raises:
        SaveError: they do not tile a tensor, or ranks disagree about its dtype.
    """
    parts: dict[str, list[WrittenChunk]] = {}
    for index, part in written:
        parts.setdefault(index.fqn, []).append(part)
    entries = []
    faults = []
    for fqn in sorted(metadata.state_dict_metadata):
        described = cast("TensorStorageMetadata", metadata.state_dict_metadata[fqn])
        dtypes = sorted({part.dtype for part in parts[fqn]})
        if len(dtypes) > 1:
            faults.append(f"tensor {fqn}: ranks hold it as {' and '.join(dtypes)}")
        entry = TensorEntry(
            name=fqn,
            dtype=dtypes[0],
            shape=tuple(described.size),
            chunks=tuple(
                sorted(
                    (part.chunk for part in parts[fqn]),
                    key=lambda chunk: (chunk.at, chunk.file, chunk.offset),
                )
            ),
        )
        entries.append(entry)
        faults += tile_faults(entry)
    if faults:
        raise SaveError(
            f"save of {name}: expected the chunks of all ranks to tile every tensor, got: "
            f"{'; '.join(faults)}; nothing was committed"
        )
    return tuple(entries)


def _flat(results: list[list[WriteResult]]) -> Iterator[WriteResult]:
    for of_rank in results:
        yield from of_rank
