from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from strongroom.checkpoint.saving.process import SharedMemory
from strongroom.checkpoint.saving.staging import (
    ALIGNMENT,
    Copiers,
    Staged,
    StagingBuffers,
    num_bytes_of,
    private_memory,
    tensors_in,
)
from strongroom.errors import InputError
from tests.support.checkpoints import mixed_state, same
from tests.support.ranks import run_ranks


def by_name(staged: Staged) -> dict[str, Tensor]:
    names = [item.index.fqn for item in staged.items]
    return dict(zip(names, staged.tensors, strict=True))


@pytest.mark.parametrize("memory", ["private", "shared"])
def test_a_copy_owns_every_byte(memory: str) -> None:
    allocate = private_memory if memory == "private" else SharedMemory.new().allocate
    state = mixed_state()
    before = {name: tensor.clone() for name, tensor in state.items()}
    staged = StagingBuffers(allocate=allocate).copy(state)
    for tensor in state.values():
        tensor.zero_()
    assert same(by_name(staged), before)
    for tensor in staged.tensors:
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % ALIGNMENT == 0 or tensor.numel() == 0


def test_memory_is_kept_and_follows_the_state() -> None:
    buffers = StagingBuffers()
    first = by_name(buffers.copy({"a": torch.ones(40), "b": torch.ones(2)}))
    second = buffers.copy({"a": torch.zeros(40), "b": torch.zeros(2)})
    assert by_name(second)["a"].data_ptr() == first["a"].data_ptr()
    assert torch.equal(by_name(second)["a"], torch.zeros(40))
    third = buffers.copy({"a": torch.zeros(40), "b": torch.zeros(2)})
    assert third.items is second.items  # the structure was not worked out again
    other_dtype = by_name(buffers.copy({"a": torch.ones(40).bfloat16(), "c": torch.ones(2)}))
    assert other_dtype["a"].data_ptr() == first["a"].data_ptr()  # it fits where the others were
    assert other_dtype.keys() == {"a", "c"}
    larger = by_name(buffers.copy({"a": torch.ones(4000)}))
    assert torch.equal(larger["a"], torch.ones(4000))
    assert buffers.copy({}).tensors == ()


def test_names_and_their_order_are_structure_too() -> None:
    buffers = StagingBuffers()
    buffers.copy({"other": torch.ones(3), "b": torch.zeros(3)})
    buffers.copy({"a": torch.ones(3), "b": torch.zeros(3)})
    swapped = by_name(buffers.copy({"b": torch.zeros(3), "a": torch.ones(3)}))
    assert torch.equal(swapped["a"], torch.ones(3))
    assert torch.equal(swapped["b"], torch.zeros(3))


def test_one_set_shared_by_two_saves_gives_the_first_the_values_of_the_second() -> None:
    """Why a set of buffers belongs to one save: this is what a shared one does."""
    shared = StagingBuffers()
    first = shared.copy({"a": torch.full((3,), 1.0)})
    shared.copy({"a": torch.full((3,), 2.0)})
    assert torch.equal(by_name(first)["a"], torch.full((3,), 2.0))
    one, other = StagingBuffers(0), StagingBuffers(1)
    first = one.copy({"a": torch.full((3,), 1.0)})
    other.copy({"a": torch.full((3,), 2.0)})
    assert torch.equal(by_name(first)["a"], torch.full((3,), 1.0))


def test_parameters_are_copied_without_their_history() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    staged = StagingBuffers().copy({"p": parameter})
    assert not staged.tensors[0].requires_grad
    assert staged.items[0].tensor_data is not None
    assert not staged.items[0].tensor_data.properties.requires_grad


def test_a_copy_that_was_begun_takes_the_values_there_are_when_it_is_taken() -> None:
    state = {"a": torch.ones(3), "step": torch.tensor(1.0)}
    copying = StagingBuffers().begin(state)
    state["a"].fill_(5)
    copiers = Copiers()
    for copy in copiers.start(copying):
        copy.result()
    copiers.close()
    assert torch.equal(by_name(copying.staged)["a"], torch.full((3,), 5.0))


@pytest.mark.parametrize("count", range(1, 40, 3))
def test_the_parts_of_a_copy_are_all_of_it_in_any_number(count: int) -> None:
    strided = torch.randn(30, 20).t()
    state = {**mixed_state(), "large": torch.randn(100), "strided": strided, "e": torch.ones(0, 2)}
    buffers = StagingBuffers()
    buffers.copy({name: torch.zeros_like(tensor) for name, tensor in state.items()})
    copying = buffers.begin(state)
    parts = copying.parts(count)
    assert len(parts) == count
    for part in reversed(parts):
        part()
    assert same(by_name(copying.staged), state)
    for part in StagingBuffers().begin({}).parts(count):
        part()


def test_a_large_tensor_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    monkeypatch.setattr(
        torch, "_foreach_copy_", lambda to, _, **__: copied.append(sum(t.nbytes for t in to))
    )
    copying = StagingBuffers().begin(
        {"a": torch.ones(6), "b": torch.ones(1000), "c": torch.ones(2)}
    )
    for part in copying.parts(4):
        part()
    assert copied == [1008] * 4


def test_copiers_compute_alone_and_nobody_else_does() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    copiers = Copiers()
    try:
        here = threading.Barrier(3)

        def ask() -> int:
            here.wait(60)  # so that each is asked
            return torch.get_num_threads()

        assert [f.result() for f in [copiers._pool.submit(ask) for _ in range(3)]] == [1, 1, 1]
        assert torch.get_num_threads() == 3
        with ThreadPoolExecutor(1) as others:
            assert others.submit(torch.get_num_threads).result() == 3
    finally:
        copiers.close()
        torch.set_num_threads(before)


def test_what_is_no_tensor_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"state 'epoch': expected a tensor, got int"):
        StagingBuffers().copy(cast("Any", {"a": torch.ones(1), "epoch": 3}))


def test_a_refused_state_leaves_buffers_that_work() -> None:
    def refuse(num_bytes: int, from_accelerator: bool) -> Tensor:
        if num_bytes > 1000:
            raise MemoryError(f"no room for {num_bytes} bytes")
        return private_memory(num_bytes, from_accelerator)

    buffers = StagingBuffers(allocate=refuse)
    buffers.copy({"a": torch.ones(3)})
    for _ in range(2):
        with pytest.raises(MemoryError):
            buffers.copy({"a": torch.ones(3000)})
    assert torch.equal(buffers.copy({"a": torch.ones(4)}).tensors[0], torch.ones(4))


def test_another_process_finds_every_tensor_in_the_shared_memory() -> None:
    memory = SharedMemory.new()
    state = mixed_state(3)
    staged = StagingBuffers(allocate=memory.allocate).copy(state)
    there = SharedMemory(os.dup(memory.descriptor))  # mapped a second time, as over there
    items = pickle.loads(pickle.dumps(staged.items))  # noqa: S301 -- our own
    found = tensors_in(there.tensor(num_bytes_of(items)), items)
    assert same(dict(zip(state, found, strict=True)), state)
    StagingBuffers(allocate=memory.allocate).copy({"a": torch.ones(100_000)})  # it grew
    assert torch.equal(tensors_in(there.tensor(400_000), items)[0].view(-1)[:9], torch.ones(9))


def work(rank: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(15.0).view(5, 3)
    state = {
        "uneven": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole, mesh, [Shard(1)]),
        "everywhere": distribute_tensor(whole, mesh, [Replicate()]),
        "no_rows_here": distribute_tensor(torch.ones(1, 4), mesh, [Shard(0)]),
        "step": torch.tensor(float(rank)),
    }
    buffers = StagingBuffers()
    for _ in range(2):
        staged = buffers.copy(state)
    told = pickle.loads(pickle.dumps(staged))  # noqa: S301 -- our own
    offsets = {item.index.fqn: tuple(item.index.offset) for item in told.items}
    torch.save((by_name(told), offsets), folder / f"staged-{rank}.pt")
    moved = {**state, "uneven": distribute_tensor(whole, mesh, [Replicate()])}
    torch.save(by_name(buffers.copy(moved))["uneven"], folder / f"moved-{rank}.pt")
    dist.barrier()


def test_each_rank_copies_its_own_part_of_what_is_spread(tmp_path: Path) -> None:
    run_ranks(2, work, tmp_path)
    (first, first_at), (second, second_at) = (
        torch.load(tmp_path / f"staged-{rank}.pt") for rank in range(2)
    )
    whole = torch.arange(15.0).view(5, 3)
    assert (first_at["uneven"], second_at["uneven"]) == ((0, 0), (3, 0))
    assert torch.equal(torch.cat([first["uneven"], second["uneven"]]), whole)
    assert torch.equal(torch.cat([first["columns"], second["columns"]], dim=1), whole)
    for part in (first, second):
        assert torch.equal(part["everywhere"], whole)
    assert first["no_rows_here"].shape == (1, 4)
    assert second["no_rows_here"].shape == (0, 4)
    assert second["step"].item() == 1.0
    assert torch.equal(torch.load(tmp_path / "moved-1.pt"), whole)  # placements are structure too


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Threads that share cores with other tests measure those."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
def test_a_later_copy_costs_little_more_than_its_bytes() -> None:
    """The bound is loose, since the machine is shared; `make bench` measures the ratio."""
    state = {str(number): torch.randn(64, 1024) for number in range(200)}
    flat, target = torch.randn(200 * 64, 1024), torch.empty(200 * 64, 1024)
    buffers = StagingBuffers()
    copying = best_of_5(lambda: buffers.copy(state))
    assert copying < 3 * best_of_5(lambda: target.copy_(flat)) + 0.01


def best_of_5(work: Callable[[], object]) -> float:
    """Return the seconds `work` takes once it is warm."""
    times = []
    for _ in range(6):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times[1:])
