"""Saved by one to four real ranks, sharded or hybrid-sharded, and loaded by any other number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from strongroom.checkpoint.catalogue import list_checkpoints, read_checkpoint
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.storage.local import LocalStorage
from strongroom.verification.stored import stored_faults
from tests.support.checkpoints import checkpoint_name, same, save_facts, saver_for
from tests.support.ranks import run_ranks

WORLD_SIZE = 4
STEPS = [1, 2, 3, 4, 22]  # saved by so many ranks; 22: by 2 x 2
SIZES: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "even": ((8, 3), torch.float32),
    "uneven": ((7, 3), torch.bfloat16),
    "fewer rows than ranks": ((2, 5), torch.float16),
    "one row": ((1, 4), torch.int64),
    "no rows": ((0, 4), torch.float32),
    "eighth": ((9, 2), torch.float8_e4m3fn),
    "flags": ((5,), torch.bool),
    "scalar": ((), torch.float64),
}


def tensors() -> dict[str, Tensor]:
    """Return the same whole tensors on every rank and in every process."""
    source = torch.Generator().manual_seed(5)
    return {
        name: (torch.randn(shape, generator=source) * 50).to(dtype)
        for name, (shape, dtype) in SIZES.items()
    }


class World:
    """Meshes over the first ranks of the world, made by every rank in the same order."""

    def __init__(self) -> None:
        self.meshes = {size: DeviceMesh("cpu", list(range(size))) for size in (1, 2, 3, 4)}
        self.meshes[22] = DeviceMesh("cpu", [[0, 1], [2, 3]])

    def spread(self, mesh: int, *, dim: int = 0, empty: bool = False) -> dict[str, Tensor]:
        """Return the tensors over a mesh, cut along `dim`; the hybrid one has two copies of all."""
        placed: dict[str, Tensor] = {}
        for name, whole in tensors().items():
            cut: Placement = Shard(min(dim, whole.dim() - 1)) if whole.dim() else Replicate()
            placements = [Replicate(), cut] if self.meshes[mesh].ndim > 1 else [cut]
            source = torch.zeros_like(whole) if empty else whole
            # Each rank takes its part of its own copy: gloo sends no float8.
            placed[name] = distribute_tensor(
                source, self.meshes[mesh], placements, src_data_rank=None
            )
        return placed

    def holds(self, mesh: int, state: dict[str, Tensor], *, dim: int) -> bool:
        """Return whether this rank's parts are what they are to be, bit for bit."""
        wanted = self.spread(mesh, dim=dim)
        return same(local(state), local(wanted))


def local(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.to_local() for name, tensor in state.items() if isinstance(tensor, DTensor)
    }


def work(rank: int, folder: Path) -> None:
    world = World()
    storage = LocalStorage(folder / "store")
    with saver_for(storage) as saver:
        for step in STEPS:
            # The same non-tensor state, so that the state digests are comparable.
            facts = save_facts(checkpoint_name(step), state=save_facts(checkpoint_name(1)).state)
            saver.save(world.spread(step), facts)
    found = {}
    for step in STEPS:
        reader = CheckpointReader(storage, read_checkpoint(storage, checkpoint_name(step)))
        for mesh in STEPS:
            for dim in (0, 1):
                target = world.spread(mesh, dim=dim, empty=True)
                reader.load_into(target)
                found[f"{step} to {mesh} along {dim}"] = world.holds(mesh, target, dim=dim)
    (folder / f"found-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world-sizes")
    run_ranks(WORLD_SIZE, work, folder)
    return folder


@pytest.mark.parametrize("rank", range(WORLD_SIZE))
def test_any_number_of_ranks_loads_what_any_other_saved(folder: Path, rank: int) -> None:
    found = json.loads((folder / f"found-{rank}.json").read_text(encoding="utf-8"))
    assert len(found) == len(STEPS) ** 2 * 2
    assert [case for case, holds in found.items() if not holds] == []


def test_one_process_reads_them_all_and_all_mean_the_same(folder: Path) -> None:
    storage = LocalStorage(folder / "store")
    digests = set()
    for committed in list_checkpoints(storage):
        assert stored_faults(storage, committed) == []
        reader = CheckpointReader(storage, committed)
        assert same({name: reader.read(name) for name in reader.tensor_names}, tensors())
        digests.add(state_digest(reader))
    assert len(list_checkpoints(storage)) == len(STEPS)
    assert len(digests) == 1
    boxes = {
        committed.name.step.number: len(committed.manifest.tensor("even").chunks)
        for committed in list_checkpoints(storage)
    }
    assert boxes == {1: 1, 2: 2, 3: 3, 4: 4, 22: 2}
