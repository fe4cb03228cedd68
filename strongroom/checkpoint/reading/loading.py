"""Lets `dcp.load` plan a resharding, and reads chunks by the manifest.

torch plans which part of which chunk goes where, for plain tensors and DTensors of any placement,
and tells every rank of an error of one. Stock DCP ignores extra names and casts in silence; here
names, shapes and dtypes are compared before.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
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
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from strongroom.checkpoint.boxes import Box
from strongroom.checkpoint.container import dtype_name, dtype_of
from strongroom.checkpoint.entries import TensorEntry
from strongroom.checkpoint.reading.filling import Destination, Wanted
from strongroom.checkpoint.reading.spans import Span
from strongroom.errors import InputError, StrongroomError
from strongroom.names import CheckpointName

# Reading in one process is what verification is meant to do.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")


@dataclass(frozen=True, kw_only=True, slots=True)
class Exceptions:
    """What need not fit, by name.

    Attributes:
        ignore: the checkpoint's tensors that nothing takes.
        keep: targets that the checkpoint lacks.
        cast: targets of another dtype.
    """

    ignore: Collection[str] = ()
    keep: Collection[str] = ()
    cast: Collection[str] = ()


def check_targets(
    checkpoint: CheckpointName,
    offered: Mapping[str, TensorEntry],
    state: Mapping[str, Tensor],
    exceptions: Exceptions,
) -> None:
    """Compare names, shapes and dtypes of a checkpoint and what it is loaded into.

    Raises:
        InputError: something does not fit, or an exception is for nothing; all is listed.
    """
    common = sorted(set(offered) & set(state))
    extra, missing = set(offered) - set(state), set(state) - set(offered)
    other_dtype = {name for name in common if offered[name].dtype != dtype_name(state[name].dtype)}
    faults = []
    if names := sorted(missing - set(exceptions.keep)):
        faults.append(f"the checkpoint lacks {', '.join(names)}")
    if names := sorted(extra - set(exceptions.ignore)):
        faults.append(f"nothing takes the checkpoint's {', '.join(names)}")
    for name in common:
        entry, tensor = offered[name], state[name]
        is_cast = name in other_dtype and name in exceptions.cast
        if entry.shape != tuple(tensor.shape) or (name in other_dtype and not is_cast):
            faults.append(
                f"{name} is {entry.dtype} {list(entry.shape)} in the checkpoint, "
                f"{dtype_name(tensor.dtype)} {list(tensor.shape)} in the target"
            )
        if tensor.is_meta:
            faults.append(f"{name} is on the meta device: the target has no memory")
    for what, excepted, needed in (
        ("ignore", exceptions.ignore, extra),
        ("keep", exceptions.keep, missing),
        ("cast", exceptions.cast, other_dtype),
    ):
        if for_nothing := sorted(set(excepted) - needed):
            faults.append(f"{what} names {', '.join(for_nothing)}, without need")
    if faults:
        raise InputError(
            f"checkpoint {checkpoint} does not fit what it is loaded into: {'; '.join(faults)}; "
            "build the model that the run's record describes, or name what need not fit"
        )


def load(
    state: dict[str, Tensor],
    reader: ManifestReader,
    *,
    process_group: dist.ProcessGroup | None,
) -> None:
    """Fill `state`, on all ranks of a process group; each raises the error of the first that fails.

    Raises:
        StrongroomError: as the reader's `fill`.
    """
    try:
        load_distributed(
            state,
            storage_reader=reader,
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=process_group,
            no_dist=not dist.is_initialized(),
        )
    except CheckpointException as failure:
        raise _first_cause(failure) from failure


class ManifestReader(StorageReader):
    """The storage reader of one load.

    Args:
        entries: the tensors to load.
        fill: reads what this rank wants.
    """

    def __init__(self, entries: Sequence[TensorEntry], fill: Callable[[Wanted], None]) -> None:
        self._entries = entries
        self._fill = fill
        # An empty chunk needs no read, and may share its position with one that does.
        self._spans = {
            MetadataIndex(entry.name, chunk.at): Span(tensor=entry, chunk=chunk)
            for entry in entries
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
                for entry in self._entries
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
        """Read each chunk once, and put every part where it is asked for."""
        wanted: dict[Span, list[Destination]] = {}
        for item in plan.items:
            box = Box(tuple(item.storage_offsets), tuple(item.lengths))
            target = planner.resolve_tensor(item).detach()
            span = self._spans[item.storage_index]
            wanted.setdefault(span, []).append(Destination(box=box, target=target))
        self._fill(wanted)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 -- the signature of the base class
        """Never chosen by path: a reader is made for one checkpoint."""
        return False


def _first_cause(failure: CheckpointException) -> BaseException:
    """Return the error of the lowest rank that has one of ours, else DCP's own exception."""
    for _, (error, _) in sorted(failure.failures.items()):
        if isinstance(error, StrongroomError):
            return error
    return failure
