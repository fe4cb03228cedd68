"""What was saved by any number of ranks loads on any other number, bit for bit, and means the same.

Ranks are played one after another in this process: a target that says which box of a tensor it has
is planned for by torch as a DTensor is. `test_world_sizes.py` does it with real ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from strongroom.checkpoint.boxes import Box
from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.container import dtype_of
from strongroom.checkpoint.entries import DTYPE_BYTES
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.names import StateDigest
from strongroom.storage.memory import MemoryStorage
from strongroom.verification.stored import stored_faults
from tests.support.checkpoints import same, write_checkpoint
from tests.support.crafted import craft, spread, whole

MAX_RANKS = 4
State = dict[str, Tensor]


class Part(Tensor):
    """What one rank has of a tensor, in the protocol by which torch plans for sharded tensors."""

    box: Box
    local: Tensor

    @classmethod
    def of(cls, tensor: Tensor, box: Box) -> Part:
        """Return a part, yet to be filled, of a tensor like this."""
        part = torch.empty_like(tensor).as_subclass(cls)
        part.box = box
        part.local = torch.zeros(box.shape, dtype=tensor.dtype)
        return part

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(self.box.at), torch.Size(self.box.shape))]

    def __get_tensor_shard__(self, _index: MetadataIndex) -> Tensor:
        return self.local


def sharded(shape: tuple[int, ...], dim: int, num_ranks: int) -> list[Box]:
    """Return the box of each rank, cut as `Shard(dim)` cuts: the last ranks may have none."""
    rows = -(-shape[dim] // num_ranks)
    boxes = []
    for rank in range(num_ranks):
        start = min(rank * rows, shape[dim])
        end = min(start + rows, shape[dim])
        at = tuple(start if d == dim else 0 for d in range(len(shape)))
        boxes.append(Box(at, (*shape[:dim], end - start, *shape[dim + 1 :])))
    return boxes


@st.composite
def states(draw: st.DrawFn) -> State:
    """Return tensors of any dtype and shape, empty and 0-dim ones too, under nested names."""
    parts = st.sampled_from(["model", "optim", "layers", "0", "1", "w", "ğ"])
    names = draw(
        st.lists(st.lists(parts, min_size=1, max_size=4).map(".".join), min_size=1, max_size=4)
    )
    state = {}
    for name in sorted(set(names)):
        shape = draw(st.lists(st.integers(0, 6), max_size=3).map(tuple))
        dtype = draw(st.sampled_from(sorted(DTYPE_BYTES)))
        source = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
        num_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
        raw = torch.randint(2 if dtype == "bool" else 256, (num_bytes,), generator=source)
        state[name] = raw.to(torch.uint8).view(dtype_of(dtype)).reshape(shape)
    return state


@st.composite
def shardings(draw: st.DrawFn, state: State) -> dict[str, list[list[Box]]]:
    """Return the boxes of each rank, of each tensor: along one dimension, two, or all on one."""
    num_ranks = draw(st.integers(1, MAX_RANKS))
    boxes: dict[str, list[list[Box]]] = {}
    for name, tensor in state.items():
        shape = tuple(tensor.shape)
        of_ranks: list[list[Box]] = [[] for _ in range(num_ranks)]
        if not shape or draw(st.booleans()):
            of_ranks[draw(st.integers(0, num_ranks - 1))] = [Box((0,) * len(shape), shape)]
        else:
            first = draw(st.integers(0, len(shape) - 1))
            second = draw(st.integers(0, len(shape) - 1))
            for rank, box in enumerate(sharded(shape, first, num_ranks)):
                for inner in sharded(box.shape, second, draw(st.integers(1, 3))):
                    of_ranks[rank].append(inner.moved(box.at))
        boxes[name] = of_ranks
    return boxes


def changed(state: State) -> State:
    """Return the state with every second tensor changed, for a delta to be of."""
    return {
        name: tensor if number % 2 else torch.zeros_like(tensor)
        for number, (name, tensor) in enumerate(state.items())
    }


def stored(
    storage: MemoryStorage,
    kind: str,
    state: State,
    boxes: Mapping[str, Sequence[Sequence[Box]]],
) -> Committed:
    if kind == "version 1":
        return craft(storage, spread(state, boxes), version=1)
    base = craft(storage, spread(changed(state), boxes), 5) if kind == "delta" else None
    return craft(storage, spread(state, boxes), base=base)


def check_loads(reader: CheckpointReader, state: State, num_ranks: int, dims: list[int]) -> None:
    for rank in range(num_ranks):
        parts = {}
        for (name, tensor), dim in zip(state.items(), dims, strict=True):
            shape = tuple(tensor.shape)
            whole_box = Box((0,) * len(shape), shape)
            box = sharded(shape, dim % len(shape), num_ranks)[rank] if shape else whole_box
            parts[name] = Part.of(tensor, box)
        reader.load_into(parts)
        wanted = {name: state[name][part.box.slices] for name, part in parts.items()}
        assert same({name: part.local for name, part in parts.items()}, wanted)


@given(st.data(), states(), st.sampled_from(["version 1", "full", "delta"]))
def test_any_number_of_ranks_loads_what_any_other_saved(
    data: st.DataObject, state: State, kind: str
) -> None:
    storage = MemoryStorage()
    committed = stored(storage, kind, state, data.draw(shardings(state)))
    reader = CheckpointReader(storage, committed, threads=data.draw(st.sampled_from([1, 2])))
    assert stored_faults(storage, committed) == []
    assert same({name: reader.read(name) for name in state}, state)
    dims = data.draw(st.lists(st.integers(0, 2), min_size=len(state), max_size=len(state)))
    check_loads(reader, state, data.draw(st.integers(1, MAX_RANKS)), dims)
    assert state_digest(reader) == digest_by_one(state)


def digest_by_one(state: State) -> StateDigest:
    """Return the state digest where one rank saved it all."""
    storage = MemoryStorage()
    return state_digest(CheckpointReader(storage, craft(storage, [whole(state)])))


@given(states(), st.integers(1, MAX_RANKS), st.data())
def test_what_the_writer_saved_loads_on_any_number_of_ranks(
    state: State, num_ranks: int, data: st.DataObject
) -> None:
    storage = MemoryStorage()
    base = write_checkpoint(storage, 5, tensors=changed(state)).manifest
    committed = write_checkpoint(
        storage, tensors=state, base=base if data.draw(st.booleans()) else None
    )
    reader = CheckpointReader(storage, committed)
    assert stored_faults(storage, committed) == []
    dims = data.draw(st.lists(st.integers(0, 2), min_size=len(state), max_size=len(state)))
    check_loads(reader, state, num_ranks, dims)
    assert state_digest(reader) == digest_by_one(state)
