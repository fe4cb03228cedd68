"""Whatever is committed loads by stock `torch.distributed.checkpoint`: from disk, and from S3.

Two ranks write, with tensors spread in every way; stock readers of one process put them together.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from strongroom.checkpoint import boxes
from strongroom.checkpoint.catalogue import Committed, list_checkpoints, read_checkpoint
from strongroom.checkpoint.entries import Chunk, TensorEntry
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.writing import shard_plan
from strongroom.checkpoint.writing.stock_index import stock_index
from strongroom.checkpoint.writing.writer import CheckpointWriter
from strongroom.names import Digest
from strongroom.storage.local import LocalStorage
from strongroom.storage.s3 import S3Storage
from strongroom.storage.s3_settings import S3Settings
from tests.support.checkpoints import (
    checkpoint_name,
    mixed_state,
    same,
    save_facts,
    write_checkpoint,
    zeros_like,
)
from tests.support.ranks import run_ranks

WORLD_SIZE = 2
CHUNK_BYTES = 4096
FULL, DELTA, NEXT_ATTEMPT = (10, 1), (20, 1), (30, 2)  # step and attempt

PLACED: dict[str, tuple[tuple[int, ...], Placement]] = {
    "rows": ((3001, 3), Shard(0)),
    "columns": ((40, 301), Shard(1)),
    "one_row": ((1, 4), Shard(0)),  # the second rank's part is empty
    "no_rows": ((0, 4), Shard(0)),
    "replicated": ((1500,), Replicate()),
    "counter": ((), Replicate()),
}


def whole(step: int) -> dict[str, Tensor]:
    """Return the tensors of a step, whole: `rows` and `counter` change from step to step."""
    state = {
        name: torch.randn(shape, generator=torch.Generator().manual_seed(index))
        for index, (name, (shape, _)) in enumerate(PLACED.items())
    }
    state["rows"][-1] = step
    state["counter"].fill_(step)
    return {**state, **mixed_state()}


def work(rank: int, folder: Path) -> None:
    boxes.CHUNK_BYTES = CHUNK_BYTES
    shard_plan.PART_BYTES = 1024
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    storage = LocalStorage(folder / "store")
    last: Manifest | None = None
    for step, attempt in (FULL, DELTA, NEXT_ATTEMPT):
        state = whole(step)
        for name, (_, placement) in PLACED.items():
            state[name] = distribute_tensor(state[name], mesh, [placement])
        writer = CheckpointWriter(
            storage,
            save_facts(checkpoint_name(step, attempt)),
            fence=lambda: None,
            committed=lambda _manifest: None,
            base=last if rank == 0 else None,
        )
        save_distributed(state, storage_writer=writer)
        last = read_checkpoint(storage, checkpoint_name(step, attempt)).manifest


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stock")
    run_ranks(WORLD_SIZE, work, folder)
    return folder / "store"


def committed(store: Path, step: int, attempt: int) -> Committed:
    return read_checkpoint(LocalStorage(store), checkpoint_name(step, attempt))


def test_two_ranks_write_a_chain(store: Path) -> None:
    full, delta, third = (committed(store, *at).manifest for at in (FULL, DELTA, NEXT_ATTEMPT))
    assert [manifest.chain for manifest in (full, delta, third)] == [0, 1, 2]
    assert [file.name for file in full.files] == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert full.num_bytes > 10 * CHUNK_BYTES
    assert delta.num_bytes < full.num_bytes / 2
    changed = {
        (entry.name, chunk.at)
        for entry in delta.tensors
        for chunk in entry.chunks
        if "/" not in chunk.file
    }
    assert {name for name, _ in changed} == {"rows", "counter"}
    assert len(changed) == 2
    assert set(third.lenders) == {full.name}


@pytest.mark.parametrize("at", [FULL, DELTA, NEXT_ATTEMPT], ids=["full", "delta", "next attempt"])
def test_stock_dcp_loads_it_from_disk(store: Path, at: tuple[int, int]) -> None:
    wanted = whole(at[0])
    target = zeros_like(wanted)
    dcp.load(target, checkpoint_id=store / committed(store, *at).folder)  # type: ignore[attr-defined]
    assert same(target, wanted)


def test_stock_tools_convert_it(store: Path, tmp_path: Path) -> None:
    dcp_to_torch_save(store / committed(store, *DELTA).folder, tmp_path / "all.pt")
    assert same(torch.load(tmp_path / "all.pt", weights_only=True), whole(DELTA[0]))


def test_stock_tools_find_names_nested_as_they_were(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "store")
    state: dict[str, Any] = {"model": {"layers": [torch.ones(2), torch.zeros(3)]}}
    saved = write_checkpoint(storage, tensors=state)
    dcp_to_torch_save(tmp_path / "store" / saved.folder, tmp_path / "all.pt")
    layers = torch.load(tmp_path / "all.pt", weights_only=True)["model"]["layers"]
    assert [layer.tolist() for layer in layers] == [[1, 1], [0, 0, 0]]


def test_an_empty_chunk_hides_none_that_begins_where_it_does() -> None:
    full, empty = (
        Chunk(at=(0,), shape=(size,), file="f", offset=size, num_bytes=9, sha256=Digest.of(b""))
        for size in (2, 0)
    )
    entry = TensorEntry(name="w", dtype="uint8", shape=(2,), chunks=(full, empty))
    data = stock_index(checkpoint_name(1), [entry], save_id="0" * 32)
    index = pickle.loads(data)  # noqa: S301 -- our own
    assert index.storage_data[MetadataIndex("w", [0])].offset == 2
    assert [chunk.sizes for chunk in index.state_dict_metadata["w"].chunks] == [torch.Size([2])]
    assert index.planner_data == {"w": ("w",)}


def test_the_index_names_no_path_of_this_machine(store: Path) -> None:
    data = (store / committed(store, *NEXT_ATTEMPT).folder / ".metadata").read_bytes()
    assert str(store).encode() not in data
    assert b"../../attempt-0001/step-00000010/__0_0.distcp" in data


def test_stock_dcp_loads_it_from_s3(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = S3Settings.from_url(s3_url)
    storage = S3Storage(settings)
    monkeypatch.setattr(boxes, "CHUNK_BYTES", 6 * 2**20)
    state = {**mixed_state(), "large": torch.randn(3 * 2**20), "rows": torch.randn(700, 900)}
    saved = write_checkpoint(storage, tensors=state)
    assert len(saved.manifest.tensor("large").chunks) == 2
    target = zeros_like(state)
    reader = FsspecReader(
        f"s3://{settings.bucket}/{settings.prefix}/{saved.folder}",
        endpoint_url=settings.endpoint_url,
    )
    dcp.load(target, storage_reader=reader)  # type: ignore[attr-defined]
    assert same(target, state)
    assert [found.checkpoint_id for found in list_checkpoints(storage)] == [saved.checkpoint_id]
