"""A state sharded by elements: saved from any number of ranks, loaded into any other sharding."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from strongroom.checkpoint.catalogue import list_checkpoints
from strongroom.checkpoint.flat_range import FlatRange
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.errors import InputError
from strongroom.storage.local import LocalStorage
from tests.support.checkpoints import checkpoint_name, save_facts, saver_for
from tests.support.ranks import run_ranks

SHAPES = {"matrix": (5, 3), "cube": (3, 2, 4), "vector": (7,), "empty": (0, 4), "one": (1, 1)}


def whole(name: str) -> Tensor:
    shape = SHAPES[name]
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) + len(name)


def part(tensor: Tensor, rank: int, size: int) -> FlatRange:
    """Return what ZeRO-3 gives a rank: an equal range, the last ones shorter."""
    each = -(-tensor.numel() // size)
    start = min(rank * each, tensor.numel())
    elements = tensor.flatten()[start : min(start + each, tensor.numel())].clone()
    return FlatRange(elements, start=start, shape=tensor.shape)


def _save(rank: int, folder: Path) -> None:
    size = dist.get_world_size()
    state: dict[str, Tensor] = {name: part(whole(name), rank, size) for name in SHAPES}
    state["step"] = torch.tensor(3.0)
    with saver_for(LocalStorage(folder / "store")) as saver:
        saver.save(state, save_facts(checkpoint_name(1)))


def _load(rank: int, folder: Path) -> None:
    storage = LocalStorage(folder.parent / "store")
    reader = CheckpointReader(storage, list_checkpoints(storage).checkpoints[0])
    size = dist.get_world_size()
    flat: dict[str, Tensor] = {
        name: part(torch.full(SHAPES[name], -1.0), rank, size) for name in SHAPES
    }
    reader.load_into({**flat, "step": torch.zeros(())})
    for name, loaded in flat.items():
        assert isinstance(loaded, FlatRange)
        assert torch.equal(loaded.elements, part(whole(name), rank, size).elements)
    mesh = init_device_mesh("cpu", (size,))
    rows: dict[str, Tensor] = {
        name: distribute_tensor(torch.full(shape, -1.0), mesh, [Shard(0)])
        for name, shape in SHAPES.items()
    }
    reader.load_into({**rows, "step": torch.zeros(())})
    for name, spread in rows.items():
        assert isinstance(spread, DTensor)
        assert torch.equal(spread.full_tensor(), whole(name))


@pytest.mark.parametrize("saved_by", [1, 2, 3])
def test_any_number_of_ranks_saves_what_any_other_loads(saved_by: int, tmp_path: Path) -> None:
    run_ranks(saved_by, _save, tmp_path)
    storage = LocalStorage(tmp_path / "store")
    (committed,) = list_checkpoints(storage)
    reader = CheckpointReader(storage, committed)
    for name in SHAPES:
        assert torch.equal(reader.read(name), whole(name))
    stock = {name: torch.zeros(shape) for name, shape in SHAPES.items() if name != "empty"}
    load(stock, storage_reader=FileSystemReader(tmp_path / "store" / committed.folder))
    assert all(torch.equal(tensor, whole(name)) for name, tensor in stock.items())
    for loaded_by in {1, 2} - {saved_by}:
        (tmp_path / str(loaded_by)).mkdir()
        run_ranks(loaded_by, _load, tmp_path / str(loaded_by))


def test_the_state_digest_is_that_of_the_whole_tensors(tmp_path: Path) -> None:
    digests = set()
    for size in (1, 2):
        folder = tmp_path / str(size)
        folder.mkdir()
        run_ranks(size, _save, folder)
        storage = LocalStorage(folder / "store")
        digests.add(
            state_digest(CheckpointReader(storage, list_checkpoints(storage).checkpoints[0]))
        )
    assert len(digests) == 1


def test_it_has_the_shape_of_the_whole_and_none_of_its_values() -> None:
    half = FlatRange(torch.zeros(4), start=2, shape=torch.Size((3, 2)))
    assert half.shape == (3, 2)
    assert half.dtype == torch.float32
    assert repr(half) == "FlatRange(2:6 of [3, 2], torch.float32)"
    with pytest.raises(InputError, match="cannot be computed on a part"):
        half + 1


@pytest.mark.parametrize(
    ("elements", "start"),
    [(torch.zeros(5), 2), (torch.zeros(2, 2), 0), (torch.zeros(4)[::2], 0)],
    ids=["ends after the tensor", "not flat", "not contiguous"],
)
def test_what_is_no_run_of_elements_is_refused(elements: Tensor, start: int) -> None:
    with pytest.raises(InputError, match="expected contiguous elements"):
        FlatRange(elements, start=start, shape=torch.Size((3, 2)))
