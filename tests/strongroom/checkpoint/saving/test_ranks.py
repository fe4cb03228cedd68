"""Saving and loading on two ranks: every sharding there is, and errors that reach all ranks."""

from __future__ import annotations

import json
import time
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from strongroom.checkpoint.catalogue import list_checkpoints, read_checkpoint
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveOptions
from strongroom.checkpoint.tiling import row_major_bands
from strongroom.errors import (
    FencedError,
    InputError,
    IntegrityError,
    StorageDeniedError,
    StrongroomError,
)
from strongroom.storage.base import PartWriter
from strongroom.storage.local import LocalStorage
from tests.support.checkpoints import (
    bits,
    checkpoint_name,
    ignore_commit,
    same,
    save_checkpoint,
    save_facts,
    saver_for,
)
from tests.support.ranks import run_ranks

WORLD_SIZE = 2
SAVED_BY_TWO, SAVED_BY_ONE, DENIED, FENCED, UNPICKLABLE, AFTER = 10, 20, 30, 40, 45, 50
FSDP_STEPS = (61, 62, 63)

PLACED: dict[str, tuple[tuple[int, ...], torch.dtype, Placement]] = {
    "even": ((4, 3), torch.float32, Shard(0)),
    "uneven": ((5, 3), torch.bfloat16, Shard(0)),
    "one_row": ((1, 4), torch.float32, Shard(0)),  # the second rank's part is empty
    "no_rows": ((0, 4), torch.float32, Shard(0)),
    "columns": ((3, 6), torch.float32, Shard(1)),
    "uneven_columns": ((2, 5), torch.int64, Shard(1)),
    "replicated": ((3, 2), torch.uint8, Replicate()),
    "replicated_scalar": ((), torch.float32, Replicate()),
}


def whole(name: str) -> Tensor:
    """Return the same whole tensor on every rank and in every process."""
    shape, dtype, _ = PLACED[name]
    seed = sorted(PLACED).index(name)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 50).to(dtype)


def plain(rank: int) -> dict[str, Tensor]:
    """Return the tensors that are not spread: some on both ranks, some on one."""
    return {
        "plain": torch.arange(6, dtype=torch.int64),
        "step": torch.tensor(7.0),
        f"rng.{rank}.torch": torch.full((8,), rank, dtype=torch.uint8),
    }


def spread(mesh: DeviceMesh, *, swapped: bool = False) -> dict[str, Tensor]:
    """Return every tensor of `PLACED`; `swapped`, by another placement than it says."""
    placed: dict[str, Tensor] = {}
    for name, (shape, _, placement) in PLACED.items():
        if swapped and shape:
            placement = Replicate() if isinstance(placement, Shard) else Shard(0)  # noqa: PLW2901 -- that is what swapped means
        placed[name] = distribute_tensor(whole(name), mesh, [placement])
    return placed


def emptied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}


def gathered(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in state.items()
    }


class DenyingStorage(LocalStorage):
    """Refuses to write what fits a pattern, on one rank only."""

    def __init__(self, root: Path, pattern: str) -> None:
        super().__init__(root)
        self.pattern = pattern

    def create_parts(self, key: str, *, num_bytes: int) -> PartWriter:
        if fnmatchcase(key, self.pattern):
            raise StorageDeniedError(f"{key}: refused")
        return super().create_parts(key, num_bytes=num_bytes)


class SlowStorage(LocalStorage):
    """Takes so long to write a shard that the next save begins meanwhile."""

    def create_parts(self, key: str, *, num_bytes: int) -> PartWriter:
        time.sleep(0.3)
        return super().create_parts(key, num_bytes=num_bytes)


def sharded() -> tuple[nn.Module, torch.optim.AdamW]:
    """Return a model and its optimizer under FSDP2; the second rank's parts are smaller."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train_step(model: nn.Module, optimizer: torch.optim.AdamW, rank: int) -> None:
    model(torch.full((2, 7), 1.0 + rank)).square().sum().backward()
    optimizer.step()  # gradients stay


def tensors_of(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {
        f"model.{name}": parameter for name, parameter in model.named_parameters()
    }
    for name, parameter in model.named_parameters():
        held = optimizer.state[parameter].items()
        state |= {f"optim.state.{name}.{key}": value for key, value in held}
    return state


def save_fsdp(folder: Path, rank: int) -> bool:
    """Train and save, each save while the one before is being written; return whether all loads."""
    storage = SlowStorage(folder / "store")
    model, optimizer = sharded()
    wanted: dict[int, dict[str, Tensor]] = {}
    saver = AsyncSaver(
        storage,
        fence=lambda: None,
        on_commit=ignore_commit,
        options=SaveOptions(staging="overlap"),
    )
    with saver:
        for step in FSDP_STEPS:
            train_step(model, optimizer, rank)
            state = tensors_of(model, optimizer)
            wanted[step] = {n: t.detach().clone() for n, t in gathered(state).items()}
            saver.save(state, save_facts(checkpoint_name(step)))
            model(torch.ones(1, 7))  # the next forward runs beside the copy
            saver.wait_staged()
    fresh_model, fresh_optimizer = sharded()
    train_step(fresh_model, fresh_optimizer, rank)  # for its optimizer to have a state at all
    target = tensors_of(fresh_model, fresh_optimizer)
    holds = True
    for step in FSDP_STEPS:
        committed = read_checkpoint(storage, checkpoint_name(step))
        with torch.no_grad():
            CheckpointReader(storage, committed).load_into(target)
        holds &= same(gathered(target), wanted[step])
    return holds


def error_of(saver: AsyncSaver) -> str:
    try:
        saver.close()
    except StrongroomError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def work(rank: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    storage = LocalStorage(folder / "store")
    found: dict[str, object] = {}

    with saver_for(storage) as saver:  # save on two
        saver.save({**spread(mesh), **plain(rank)}, save_facts(checkpoint_name(SAVED_BY_TWO)))
    if rank == 0:
        found["announced"] = len(list_checkpoints(storage))
    dist.barrier()

    for step in (SAVED_BY_TWO, SAVED_BY_ONE):  # load on two, by this and another placement
        reader = CheckpointReader(storage, read_checkpoint(storage, checkpoint_name(step)))
        for swapped in (False, True):
            target = {**emptied(spread(mesh, swapped=swapped)), "plain": torch.zeros(6).long()}
            reader.load_into(target, prefixes=tuple(target))
            wanted = {**{name: whole(name) for name in PLACED}, "plain": plain(rank)["plain"]}
            found[f"loads {step} {swapped}"] = same(gathered(target), wanted)
        own = reader.read(f"rng.{rank}.torch")
        found[f"own rng {step}"] = torch.equal(own, plain(rank)[f"rng.{rank}.torch"])

    saver = saver_for(DenyingStorage(folder / "store", "*/__1_0.distcp"))  # fails on rank 1 alone
    saver.save({**spread(mesh), **plain(rank)}, save_facts(checkpoint_name(DENIED)))
    found["denied"] = error_of(saver)

    saver = AsyncSaver(storage, fence=fenced, on_commit=ignore_commit)  # fails on rank 0 alone
    saver.save({**spread(mesh), **plain(rank)}, save_facts(checkpoint_name(FENCED)))
    found["fenced"] = error_of(saver)

    saver = AsyncSaver(storage, fence=unpicklable, on_commit=ignore_commit)
    saver.save({**spread(mesh), **plain(rank)}, save_facts(checkpoint_name(UNPICKLABLE)))
    found["unpicklable"] = error_of(saver)

    found["fsdp"] = save_fsdp(folder, rank)

    # Training's own collectives go on while a save is in flight, and saves go on after a failure.
    with saver_for(storage) as saver:
        saver.save({**spread(mesh), **plain(rank)}, save_facts(checkpoint_name(AFTER)))
        total = torch.ones(1000)
        for _ in range(20):
            dist.all_reduce(total)
            total /= WORLD_SIZE
    found["trained on"] = bool((total == 1).all())

    # The byte that differs is read by one rank alone; both must hear of it.
    committed = read_checkpoint(storage, checkpoint_name(AFTER))
    entry = committed.manifest.tensor("even")
    damaged = folder / "store" / committed.folder / entry.chunks[1].file
    if rank == 0:
        data = bytearray(damaged.read_bytes())
        data[entry.chunks[1].offset] ^= 1
        damaged.write_bytes(data)
    dist.barrier()
    try:
        CheckpointReader(storage, committed).load_into(
            {"even": emptied(spread(mesh))["even"]}, prefixes=("even",)
        )
    except IntegrityError as error:
        found["damaged"] = [error.file, error.tensor, error.offset]
    try:
        CheckpointReader(storage, committed).load_into({"other": torch.zeros(rank + 1)})
    except InputError as error:
        found["misfit"] = str(error)
    (folder / f"found-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def fenced() -> None:
    raise FencedError("a newer attempt owns the run")


def unpicklable() -> None:
    class LocalError(Exception):
        """A class that no other process can find."""

    raise LocalError("something of a library")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "store").mkdir()
    state = {name: whole(name) for name in PLACED} | plain(0) | plain(1)
    save_checkpoint(LocalStorage(folder / "store"), SAVED_BY_ONE, tensors=state)
    run_ranks(WORLD_SIZE, work, folder)
    return folder


@pytest.fixture(params=range(WORLD_SIZE), ids=lambda rank: f"rank {rank}")
def found(folder: Path, request: pytest.FixtureRequest) -> dict[str, object]:
    text = (folder / f"found-{request.param}.json").read_text(encoding="utf-8")
    document: dict[str, object] = json.loads(text)
    return document


@pytest.mark.parametrize("step", [SAVED_BY_TWO, SAVED_BY_ONE])
def test_two_ranks_load_by_any_placement(found: dict[str, object], step: int) -> None:
    assert found[f"loads {step} False"] is True
    assert found[f"loads {step} True"] is True
    assert found[f"own rng {step}"] is True


def test_saves_of_fsdp_that_overlap_hold_model_and_optimizer_whole(
    found: dict[str, object], folder: Path
) -> None:
    """huggingface/accelerate#3971: the optimizer's `step` too, a plain tensor beside DTensors."""
    assert found["fsdp"] is True
    storage = LocalStorage(folder / "store")
    reader = CheckpointReader(storage, read_checkpoint(storage, checkpoint_name(FSDP_STEPS[-1])))
    steps = [name for name in reader.tensor_names if name.endswith(".step")]
    assert len(steps) == 4
    assert {reader.read(name).item() for name in steps} == {3.0}


def test_one_process_loads_what_two_ranks_saved(folder: Path) -> None:
    storage = LocalStorage(folder / "store")
    reader = CheckpointReader(storage, read_checkpoint(storage, checkpoint_name(SAVED_BY_TWO)))
    wanted = {name: whole(name) for name in PLACED} | plain(0) | plain(1)
    target = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    reader.load_into(target)
    assert same(target, wanted)
    assert same({name: reader.read(name) for name in wanted}, wanted)


def test_stock_dcp_loads_what_two_ranks_saved(folder: Path) -> None:
    wanted = {name: whole(name) for name in PLACED} | plain(0) | plain(1)
    target = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    place = folder / "store" / "runs/nightly-7/attempt-0001/step-00000010"
    dcp.load(target, checkpoint_id=place)  # type: ignore[attr-defined]
    assert same(target, wanted)


def test_the_state_digest_does_not_depend_on_the_sharding(folder: Path) -> None:
    storage = LocalStorage(folder / "store")
    two = read_checkpoint(storage, checkpoint_name(SAVED_BY_TWO))
    state = {name: whole(name) for name in PLACED} | plain(0) | plain(1)
    one = save_checkpoint(storage, 60, tensors=state, state=two.manifest.state)
    assert one.manifest.tensors != two.manifest.tensors
    assert state_digest(CheckpointReader(storage, one)) == state_digest(
        CheckpointReader(storage, two)
    )


def test_rows_cut_along_the_second_dimension_are_put_together(folder: Path) -> None:
    storage = LocalStorage(folder / "store")
    reader = CheckpointReader(storage, read_checkpoint(storage, checkpoint_name(SAVED_BY_TWO)))
    (band,) = row_major_bands(reader.manifest.tensor("columns"))
    assert len(band.chunks) == WORLD_SIZE
    assert all(len(b.chunks) == 1 for b in row_major_bands(reader.manifest.tensor("uneven")))
    for name in PLACED:
        parts = [bits(part) for part in reader.row_major(name)]
        assert torch.equal(torch.cat(parts) if parts else bits(whole(name)), bits(whole(name)))


def test_an_error_of_the_second_rank_reaches_both(found: dict[str, object], folder: Path) -> None:
    message = str(found["denied"])
    assert message.startswith("SaveError: save of nightly-7/attempt-0001/step-00000030")
    assert "rank(s) 1: StorageDeniedError" in message
    assert not (folder / "store/runs/nightly-7/attempt-0001/step-00000030/manifest.json").exists()


def test_an_error_of_the_first_rank_reaches_both(found: dict[str, object], folder: Path) -> None:
    assert found["fenced"] == "FencedError: a newer attempt owns the run"
    assert not (folder / "store/runs/nightly-7/attempt-0001/step-00000040/manifest.json").exists()


def test_an_error_that_cannot_be_pickled_reaches_both(found: dict[str, object]) -> None:
    assert "LocalError: something of a library" in str(found["unpicklable"])


def test_training_goes_on_beside_a_save(found: dict[str, object]) -> None:
    assert found["trained on"] is True


def test_damage_that_one_rank_reads_stops_both(found: dict[str, object], folder: Path) -> None:
    storage = LocalStorage(folder / "store")
    committed = read_checkpoint(storage, checkpoint_name(AFTER))
    chunk = committed.manifest.tensor("even").chunks[1]
    assert found["damaged"] == [f"{committed.folder}/{chunk.file}", "even", chunk.offset]


def test_a_misfit_is_refused_on_both(found: dict[str, object]) -> None:
    assert "the checkpoint lacks other" in str(found["misfit"])
    assert "nothing takes the checkpoint's columns, even" in str(found["misfit"])


def test_each_rank_wrote_one_shard_and_no_byte_twice(folder: Path) -> None:
    storage = LocalStorage(folder / "store")
    manifest = read_checkpoint(storage, checkpoint_name(SAVED_BY_TWO)).manifest
    assert manifest.world_size == WORLD_SIZE
    assert [file.name for file in manifest.files] == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    for entry in manifest.tensors:
        assert sum(entry.raw_bytes(chunk) for chunk in entry.chunks) == entry.num_bytes
