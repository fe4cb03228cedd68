"""Writes one checkpoint: a `torch.distributed.checkpoint` storage writer over our `Storage`.

Invariant: `manifest.json` comes last, so before it there is no checkpoint. Order of a save:

1. the coordinator tells every rank the save's id and, for a delta, which chunks may be borrowed;
2. every rank hashes what could be borrowed, and writes all else, hashed as it is written (durable
   on return);
3. the coordinator checks that the chunks tile every tensor, writes `.metadata` (for stock readers
   only; ours never opens it), checks that what is borrowed is still there, then calls the fence,
   writes `manifest.sha256` and creates `manifest.json`: that is the commit.

A failure of any rank reaches all of them through the collectives of `dcp.save`.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from strongroom import clock
from strongroom.canonical import JsonObject
from strongroom.checkpoint.container import dtype_name
from strongroom.checkpoint.delta import ChunkKey, Loan, loan_of
from strongroom.checkpoint.entries import FileEntry
from strongroom.checkpoint.layout import checkpoint_folder
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE, Inputs, Manifest, seal_bytes
from strongroom.checkpoint.shard import METADATA_FILE
from strongroom.checkpoint.writing.assembly import WrittenItem, tensor_entries
from strongroom.checkpoint.writing.lenders import check_lenders, is_committed
from strongroom.checkpoint.writing.pieces import Piece, boxes_of, pieces_of
from strongroom.checkpoint.writing.rank_writer import RankTask, write_rank
from strongroom.checkpoint.writing.stock_index import stock_index
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


class CheckpointWriter(StorageWriter):
    """Writes the checkpoint that `facts` describe; used once, by `dcp.save`.

    Args:
        storage: where to.
        facts: the coordinator's are recorded.
        fence: called by the coordinator right before the commit; raises FencedError to stop it.
        committed: called by the coordinator right after the commit.
        base: makes the checkpoint a delta: what is equal in this one of the same run is not written
            again. The coordinator's counts, and must be kept until the commit.
        threads: how many of a rank hash and write at the same time.
    """

    def __init__(  # noqa: PLR0913 -- how to save, beside what and where to
        self,
        storage: Storage,
        facts: SaveFacts,
        *,
        fence: Callable[[], None],
        committed: Callable[[Manifest], None],
        base: Manifest | None = None,
        threads: int = 4,
    ) -> None:
        self._storage = storage
        self._facts = facts
        self._fence = fence
        self._committed = committed
        self._base = base
        self._threads = threads
        self._folder = checkpoint_folder(facts.name)
        self._save_id = uuid.uuid4().hex
        self._loan = Loan()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Refuse another place than the one of `facts`."""
        raise InputError(f"save of {self._facts.name}: got checkpoint_id {checkpoint_id!r} as well")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- the signature of the base class
        """Nothing to set up: folders come into being with their files."""

    def storage_meta(self) -> StorageMeta:
        """Return what the planner is told of the storage: names alone."""
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
        """Give every rank the save id of the coordinator, and what its own items may borrow.

        Raises:
            InputError: the base is of another run, or the planner keeps plans from save to save.
        """
        if not all(plan.usable for plan in plans):  # a rank would write under an earlier save's id
            raise InputError(f"save of {self._facts.name}: use a planner that caches no plans")
        with _portable_errors(self._facts.name):
            self._loan = self._agreed_loan()
            return [
                replace(
                    plan,
                    storage_data=RankTask(
                        name=self._facts.name,
                        save_id=self._save_id,
                        rank=rank,
                        lendable={
                            key: self._loan.chunks[key]
                            for item in plan.items
                            for key in _keys_of(item)
                            if key in self._loan.chunks
                        },
                    ),
                )
                for rank, plan in enumerate(plans)
            ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's shards; they are durable when the future is returned."""
        with _portable_errors(self._facts.name):
            results = self._write_rank(plan, planner)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit: `.metadata`, fence, seal, manifest.

        Raises:
            SaveError: the chunks do not tile the tensors, what is borrowed is gone, or the commit
                stands but `committed` failed.
            FormatError: the facts make no manifest that could be read again.
        """
        with _portable_errors(self._facts.name):
            self._commit(metadata, results)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 -- the signature of the base class
        """Never chosen by path: a writer is made for one checkpoint."""
        return False

    def _agreed_loan(self) -> Loan:
        """Return what may be borrowed: nothing where the base is no longer what it was."""
        base = self._base
        if base is None:
            return Loan()
        if base.name.run != self._facts.name.run:
            raise InputError(
                f"save of {self._facts.name}: expected a base of the same run, got {base.name}"
            )
        base_id = base.checkpoint_id
        if not is_committed(self._storage, base.name, base_id):
            logger.warning(
                "checkpoint saved in full: name=%s base=%s reason=base is no longer committed",
                self._facts.name,
                base.name,
            )
            return Loan()
        return loan_of(base, base_id)

    def _write_rank(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        items = [self._pieces(item, planner) for item in plan.items]
        written = write_rank(
            self._storage,
            cast("RankTask", plan.storage_data),
            [piece for pieces in items for piece in pieces],
            threads=self._threads,
        )
        chunks = iter(written.chunks)
        results = []
        for item, pieces in zip(plan.items, items, strict=True):
            data = WrittenItem(
                dtype=dtype_name(_data_of(item).properties.dtype),
                chunks=tuple(next(chunks) for _ in pieces),
            )
            num_bytes = sum(chunk.num_bytes for chunk in data.chunks)
            results.append(WriteResult(item.index, num_bytes, data))
        results += [
            WriteResult(MetadataIndex(file.name), file.num_bytes, file) for file in written.files
        ]
        return results

    def _pieces(self, item: WriteItem, planner: SavePlanner) -> list[Piece]:
        source = cast("Tensor", planner.resolve_data(item)).detach()
        data = _data_of(item)
        if source.shape != data.chunk.sizes or source.dtype != data.properties.dtype:
            raise InputError(
                f"save of {self._facts.name}: {item.index.fqn}: expected "
                f"{data.properties.dtype} {list(data.chunk.sizes)} as planned, got "
                f"{source.dtype} {list(source.shape)}; use a planner that changes no tensor"
            )
        return list(pieces_of(item.index.fqn, tuple(data.chunk.offsets), source))

    def _commit(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        facts = self._facts
        written = [(result.index.fqn, result.storage_data) for of in results for result in of]
        items = [(fqn, data) for fqn, data in written if isinstance(data, WrittenItem)]
        tensors = tensor_entries(facts.name, metadata, items)
        index = stock_index(facts.name, tensors, save_id=self._save_id, paths=metadata.planner_data)
        self._storage.create(f"{self._folder}/{METADATA_FILE}", index)
        used = {chunk.file for entry in tensors for chunk in entry.chunks}
        borrowed = [file for name, file in self._loan.files.items() if name in used]
        files = [
            FileEntry(name=METADATA_FILE, num_bytes=len(index), sha256=Digest.of(index)),
            *(data for _, data in written if isinstance(data, FileEntry)),
            *borrowed,
        ]
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
            chain=self._base.chain + 1 if self._base is not None and borrowed else 0,
        )
        data = manifest.to_bytes()
        Manifest.from_bytes(data, where=self._folder)  # what cannot be read is not committed
        checkpoint_id = CheckpointId(Digest.of(data))
        check_lenders(self._storage, manifest)
        self._fence()
        self._storage.create(f"{self._folder}/{SEAL_FILE}", seal_bytes(checkpoint_id))
        self._storage.create(f"{self._folder}/{MANIFEST_FILE}", data)
        logger.info(
            "checkpoint committed: name=%s id=%s save_id=%s tensors=%d bytes=%d chain=%d "
            "borrowed_share=%.3f",
            facts.name,
            checkpoint_id,
            self._save_id,
            len(tensors),
            manifest.num_bytes,
            manifest.chain,
            manifest.borrowed_share,
        )
        self._committed(manifest)


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


def _data_of(item: WriteItem) -> TensorWriteData:
    """Return what the plan says of an item's tensor; `prepare_local_plan` refused what is none."""
    return cast("TensorWriteData", item.tensor_data)


def _keys_of(item: WriteItem) -> Iterator[ChunkKey]:
    """Yield the keys of the chunks that an item will be saved in."""
    data = _data_of(item)
    dtype = data.properties.dtype
    for box in boxes_of(tuple(data.chunk.sizes), dtype.itemsize):
        at = box.moved(tuple(data.chunk.offsets)).at
        yield ChunkKey(item.index.fqn, dtype_name(dtype), at, box.shape)
