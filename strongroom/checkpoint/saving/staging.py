"""The copy off the device: what a save writes is what the state was when the save was called.

Must: the buffers own every byte, 0-dim CPU tensors such as an optimizer's `step` included, before
the state may change (docs/checkpoint-format.md, write order 1; pytorch/pytorch#144657), and no
buffer is filled again while a save still reads it: a stager shared by two saves under way gives the
first the values of the second. So a set of buffers belongs to one save at a time.

What there is to copy is DCP's own answer, `DefaultSavePlanner`'s, for tensors and DTensors alike,
worked out once for a state of one structure. After that a save costs the copy itself, into one
piece of memory that is kept, because a copy into fresh pages takes seven times as long.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem
from torch.distributed.tensor import DTensor

from strongroom.checkpoint.flat_range import FlatRange
from strongroom.errors import InputError

ALIGNMENT = 64
"""Bytes; every tensor begins at a multiple of it, so that any dtype fits and none shares a line of
the processor's cache with another."""

BUFFER_SETS = 2
"""One for the save that is being written, one for the save that is being staged."""
COPIERS_MAX = 4
"""Most threads that copy at a time: few of them use up what memory can give."""

Allocate = Callable[[int, bool], Tensor]
"""Returns a uint8 [num_bytes] tensor; told whether it is filled from an accelerator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """This rank's part of a state, copied.

    Attributes:
        buffers: number of the set of buffers that holds it.
        items: what there is to write, in DCP's words; they can be pickled.
        tensors: the values of `items`: contiguous, in CPU memory.
    """

    buffers: int
    items: tuple[WriteItem, ...]
    tensors: tuple[Tensor, ...]


def private_memory(num_bytes: int, from_accelerator: bool) -> Tensor:
    """Return memory of this process: pinned where an accelerator writes into it."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=from_accelerator)


def num_bytes_of(items: Sequence[WriteItem]) -> int:
    """Return how many bytes of memory `items` take, laid out by `tensors_in`."""
    return sum(map(_room_bytes, items))


def tensors_in(memory: Tensor, items: Sequence[WriteItem]) -> tuple[Tensor, ...]:
    """Return a view of `memory`, uint8 [at least num_bytes_of(items)], for each item.

    The place of an item follows from the items alone, so that two processes find the same.
    """
    tensors, start = [], 0
    for item in items:
        raw = memory[start : start + _num_bytes(item)]
        tensors.append(raw.view(_data(item).properties.dtype).view(_shape(item)))
        start += _room_bytes(item)
    return tuple(tensors)


class StagingBuffers:
    """One set of buffers, kept from save to save; belongs to one save at a time.

    Args:
        number: tells this set from others.
        allocate: where the memory comes from.
    """

    def __init__(self, number: int = 0, allocate: Allocate = private_memory) -> None:
        self._number = number
        self._allocate = allocate
        self._structure: tuple[object, ...] | None = None
        self._items: tuple[WriteItem, ...] = ()
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._tensors: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def begin(self, state: Mapping[str, Tensor]) -> Copying:
        """Return the copy that is to be taken; not a byte is copied yet.

        Raises:
            InputError: something in the state is no tensor.
        """
        structure = _structure(state)
        # Not flattened: the state is flat, and to find that out anew at each save takes time.
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(dict(state), is_coordinator=False)
        if structure != self._structure:
            self._structure = None  # should what follows fail, nothing half done is taken for whole
            self._lay_out(planner)
            self._structure = structure
        return Copying(
            sources=_resolved(planner, self._items),
            staged=Staged(buffers=self._number, items=self._items, tensors=self._tensors),
        )

    def copy(self, state: Mapping[str, Tensor]) -> Staged:
        """Copy `state` in this thread; the result is valid until the next copy into these."""
        copying = self.begin(state)
        for part in copying.parts(1):
            part()
        return copying.staged

    def _lay_out(self, planner: DefaultSavePlanner) -> None:
        items = tuple(_plain(item) for item in planner.create_local_plan().items)
        sources = _resolved(planner, items)
        for item, source in zip(items, sources, strict=True):
            if source.shape != _shape(item):  # copying would repeat its values, without a word
                raise InputError(
                    f"state {item.index.fqn!r}: expected this rank's part to be of shape "
                    f"{tuple(_shape(item))}, as its placement says, got {tuple(source.shape)}"
                )
        self._items, self._tensors = items, ()
        if self._memory.nbytes < num_bytes_of(items):
            self._memory = torch.empty(0, dtype=torch.uint8)  # given back before more is asked for
            from_accelerator = any(not source.is_cpu for source in sources)
            self._memory = self._allocate(num_bytes_of(items), from_accelerator)
        self._tensors = tensors_in(self._memory, items)


class Copying:
    """A copy begun: `parts` take it, in whichever threads; until then the state must not change.

    Args:
        sources: this rank's tensors as they are now, one for each of `staged.tensors`.
        staged: what there is when all parts have been taken; it owes nothing to the state then.
    """

    def __init__(self, *, sources: list[Tensor], staged: Staged) -> None:
        self.staged = staged
        self._sources = sources
        self._ready = {
            device: torch.cuda.current_stream(device).record_event()
            for device in {source.device for source in sources if source.is_cuda}
        }

    def parts(self, count: int) -> list[Callable[[], None]]:
        """Return `count` calls that copy everything together, the same number of bytes each."""
        ends = list(accumulate(tensor.nbytes for tensor in self.staged.tensors))
        whole = ends[-1] if ends else 0
        cuts = [self._cut(ends, whole * number // count) for number in range(count)]
        return [partial(self._take, *part) for part in pairwise([*cuts, (len(ends), 0)])]

    def _cut(self, ends: list[int], at_byte: int) -> tuple[int, int]:
        """Return the place in the copy at `at_byte`: which tensor, and which of its elements."""
        index = bisect_right(ends, at_byte)
        if index == len(ends) or not self._sources[index].is_contiguous():
            return index, 0
        target = self.staged.tensors[index]
        return index, (at_byte - ends[index] + target.nbytes) // target.itemsize

    @torch.no_grad()
    def _take(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Copy what lies between two places."""
        pieces = [
            (index, slice(start[1] if index == start[0] else 0, None))
            for index in range(start[0], end[0])
        ]
        if end[1]:
            pieces.append((end[0], slice(start[1] if end[0] == start[0] else 0, end[1])))
        targets = [_elements(self.staged.tensors[index], piece) for index, piece in pieces]
        sources = [_elements(self._sources[index], piece) for index, piece in pieces]
        for device, event in self._ready.items():
            torch.cuda.current_stream(device).wait_event(event)
        if targets:
            # One call, in which other threads may run: a loop here would have each of thousands
            # of small copies wait for its turn beside a training step.
            torch._foreach_copy_(  # no public name, but optimizers rest on it
                targets, sources, non_blocking=bool(self._ready)
            )
        for device in self._ready:  # copies into pinned memory return before they are done
            torch.cuda.current_stream(device).synchronize()


def _elements(tensor: Tensor, piece: slice) -> Tensor:
    """Return some elements, in row-major order; all of them as they are."""
    return tensor if piece == slice(0, None) else tensor.view(-1)[piece]


class Copiers:
    """Threads that copy, each by itself: as many as torch computes with here, within reason.

    Torch's own way to copy with several threads has all of them meet at every tensor. Where cores
    are shared, with a store on the same machine or another rank, each meeting waits for one that
    has no core just then, and a copy of hundreds of tensors takes seconds.
    """

    def __init__(self) -> None:
        threads = torch.get_num_threads()
        self._count = min(threads, COPIERS_MAX)
        self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="stage")
        all_here = threading.Barrier(self._count)
        for started in [self._pool.submit(_compute_alone, all_here) for _ in range(self._count)]:
            started.result()
        torch.set_num_threads(threads)  # of threads to come; this one's and the copiers' stay

    def start(self, copying: Copying) -> list[Future[None]]:
        """Take a copy; it is whole when all that is returned has ended well."""
        return [self._pool.submit(part) for part in copying.parts(self._count)]

    def close(self) -> None:
        """End the threads, once they have done what was begun."""
        self._pool.shutdown()


def _compute_alone(all_here: threading.Barrier) -> None:
    """Have torch use this thread alone for what is called in it."""
    torch.get_num_threads()  # asked once first: it takes what holds for all threads, and keeps it
    torch.set_num_threads(1)
    all_here.wait()


def _structure(state: Mapping[str, Tensor]) -> tuple[object, ...]:
    """Return all that decides what there is to copy and where it goes."""
    return tuple(_described(name, tensor) for name, tensor in state.items())


def _described(name: str, tensor: Tensor) -> tuple[object, ...]:
    if not isinstance(tensor, Tensor):
        raise InputError(
            f"state {name!r}: expected a tensor, got {type(tensor).__name__}; what is no tensor "
            "belongs in SaveFacts.state"
        )
    return name, tensor.shape, tensor.dtype, tensor.device, _spread(tensor)


def _spread(tensor: Tensor) -> tuple[object, ...] | None:
    """Return what part of the tensor is here."""
    if isinstance(tensor, DTensor):
        return tensor.device_mesh, tensor.placements
    if isinstance(tensor, FlatRange):
        return tensor.start, tensor.elements.numel()
    return None


def _resolved(planner: DefaultSavePlanner, items: Sequence[WriteItem]) -> list[Tensor]:
    return [cast("Tensor", planner.resolve_data(item)) for item in items]


def _plain(item: WriteItem) -> WriteItem:
    """Return the item as its copy will be: contiguous, pageable, without a gradient."""
    properties = TensorProperties(dtype=_data(item).properties.dtype)
    return replace(item, tensor_data=replace(_data(item), properties=properties))


def _data(item: WriteItem) -> TensorWriteData:
    return cast("TensorWriteData", item.tensor_data)  # every item is a tensor


def _shape(item: WriteItem) -> torch.Size:
    return _data(item).chunk.sizes


def _num_bytes(item: WriteItem) -> int:
    return math.prod(_shape(item)) * _data(item).properties.dtype.itemsize


def _room_bytes(item: WriteItem) -> int:
    return -(-_num_bytes(item) // ALIGNMENT) * ALIGNMENT
