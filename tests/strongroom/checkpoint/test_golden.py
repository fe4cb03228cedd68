"""A checkpoint that an earlier release wrote still reads, verifies and means the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from strongroom.checkpoint.catalogue import list_checkpoints, read_checkpoint
from strongroom.checkpoint.reader import CheckpointReader
from strongroom.checkpoint.run_record import newest_attempt, read_run
from strongroom.checkpoint.state import state_digest
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, RunKey, StateDigest
from strongroom.storage.local import LocalStorage
from tests.support.checkpoints import same

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "checkpoint-1"
NAME = CheckpointName.parse("golden-1/attempt-0001/step-00000002")
CHECKPOINT_ID = CheckpointId(
    Digest("aa3e6b42d5d696686df17ee6db7bf56e2a0811efec4ce1060840383b664dc8b9")
)
STATE_DIGEST = StateDigest(
    Digest("55275b5be92ba6df29bd5621b2088f141fefe516c91251057a4f059676e85c51")
)


@pytest.fixture
def storage() -> LocalStorage:
    return LocalStorage(GOLDEN)


def expected() -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    for name, shape, dtype in (
        ("layer.weight", (7, 3), torch.bfloat16),
        ("head.weight", (2, 5), torch.float32),
    ):
        count = shape[0] * shape[1]
        kinds = (f"model.{name}", *(f"optim.state.{name}.{m}" for m in ("exp_avg", "exp_avg_sq")))
        for index, key in enumerate(kinds):
            values = torch.arange(count, dtype=torch.float32) - count / 2 + index
            state[key] = values.reshape(shape).div(8).to(dtype)
        state[f"optim.state.{name}.step"] = torch.tensor(2.0)
    for rank in range(2):
        state[f"rng.{rank}.torch"] = torch.arange(16, dtype=torch.uint8) + rank
        state[f"rng.{rank}.python"] = torch.arange(4) + rank
        state[f"rng.{rank}.numpy"] = torch.arange(4) - rank
    return state


def test_it_is_the_checkpoint_it_was(storage: LocalStorage) -> None:
    committed = read_checkpoint(storage, NAME)
    assert committed.checkpoint_id == CHECKPOINT_ID
    assert [item.name for item in list_checkpoints(storage)] == [NAME]
    assert state_digest(CheckpointReader(storage, committed)) == STATE_DIGEST


def test_every_value_is_what_it_was(storage: LocalStorage) -> None:
    reader = CheckpointReader(storage, read_checkpoint(storage, NAME))
    assert same({name: reader.read(name) for name in reader.tensor_names}, expected())


def test_stock_dcp_loads_it() -> None:
    target = {name: torch.zeros_like(tensor) for name, tensor in expected().items()}
    dcp.load(target, checkpoint_id=GOLDEN / "runs" / str(NAME))  # type: ignore[attr-defined]
    assert same(target, expected())


def test_its_run_reads_as_it_was_written(storage: LocalStorage) -> None:
    record = read_run(storage, RunKey("golden-1"))
    assert record.author == "deniz"
    assert record.probe.token_ids == (1, 2, 3)
    assert record.inputs == read_checkpoint(storage, NAME).manifest.inputs
    assert newest_attempt(storage, record.run) == Attempt(1)
