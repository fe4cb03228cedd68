"""Checkpoints that earlier releases wrote still read, verify and mean the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from strongroom.checkpoint.attempts import newest_attempt
from strongroom.checkpoint.catalogue import list_checkpoints, read_checkpoint
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.checkpoint.run_record import read_run
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, RunKey, StateDigest
from strongroom.storage.local import LocalStorage
from strongroom.verification.rungs import check_bytes, check_structure
from tests.support import golden
from tests.support.checkpoints import same, zeros_like

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def expected_of_the_first_version() -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Sealed:
    """A checkpoint of `tests/golden`, and what is known of it."""

    store: str
    name: CheckpointName
    checkpoint_id: CheckpointId
    state_digest: StateDigest
    lenders: tuple[CheckpointName, ...]
    expected: Callable[[], dict[str, Tensor]]

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(GOLDEN / self.store)


SEALED = {
    "version 1": Sealed(
        store="checkpoint-1",
        name=CheckpointName.parse("golden-1/attempt-0001/step-00000002"),
        checkpoint_id=CheckpointId(
            Digest("aa3e6b42d5d696686df17ee6db7bf56e2a0811efec4ce1060840383b664dc8b9")
        ),
        state_digest=StateDigest(
            Digest("55275b5be92ba6df29bd5621b2088f141fefe516c91251057a4f059676e85c51")
        ),
        lenders=(),
        expected=expected_of_the_first_version,
    ),
    "version 2, full": Sealed(
        store="checkpoint-2",
        name=golden.FULL,
        checkpoint_id=CheckpointId(
            Digest("0fc2b20283651fbbc37ea8df0f0f99dbf5e10d966312459bf9301244c53305fe")
        ),
        state_digest=StateDigest(
            Digest("e9e38b4eb412af99f6e8fb5afe6d42b34fd4ea9e197f1d55d4bdf95422248440")
        ),
        lenders=(),
        expected=lambda: golden.expected(2),
    ),
    "version 2, delta": Sealed(
        store="checkpoint-2",
        name=golden.DELTA,
        checkpoint_id=CheckpointId(
            Digest("9d88b87e6b4c4890decbd67b837d0a715bcf579b8f10e686a75816c8bc8dfacc")
        ),
        state_digest=StateDigest(
            Digest("68779b09de8296cf5ef90c7d200965414a69005a2a9ad2895770152f55fdc471")
        ),
        lenders=(golden.FULL,),
        expected=lambda: golden.expected(4),
    ),
    "version 2, delta of the next attempt": Sealed(
        store="checkpoint-2",
        name=golden.NEXT_DELTA,
        checkpoint_id=CheckpointId(
            Digest("f1fd582f2b48153e90d160d9ef8badf8bf186505c69089eb3a081556a3a3fe54")
        ),
        state_digest=StateDigest(
            Digest("31173918b6cde0a2908c0aee586ba9f38be6e65cd5f2737bfc1fe66ffd6b93d2")
        ),
        lenders=(golden.FULL, golden.DELTA),
        expected=lambda: golden.expected(6),
    ),
}


@pytest.fixture(params=SEALED.values(), ids=list(SEALED))
def sealed(request: pytest.FixtureRequest) -> Sealed:
    found: Sealed = request.param
    return found


def test_it_is_the_checkpoint_it_was(sealed: Sealed) -> None:
    committed = read_checkpoint(sealed.storage, sealed.name)
    assert committed.checkpoint_id == sealed.checkpoint_id
    assert tuple(sorted(committed.manifest.lenders)) == sealed.lenders
    assert state_digest(CheckpointReader(sealed.storage, committed)) == sealed.state_digest


def test_it_verifies(sealed: Sealed) -> None:
    committed, faults = check_bytes(sealed.storage, sealed.name, expected_id=sealed.checkpoint_id)
    assert (committed is not None, faults) == (True, [])
    assert committed is not None
    evidence = check_structure(sealed.storage, committed)
    assert (evidence.faults, evidence.state_digest) == ([], sealed.state_digest)


def test_every_value_is_what_it_was(sealed: Sealed) -> None:
    reader = CheckpointReader(sealed.storage, read_checkpoint(sealed.storage, sealed.name))
    wanted = sealed.expected()
    assert same({name: reader.read(name) for name in reader.tensor_names}, wanted)
    target = zeros_like(wanted)
    reader.load_into(target)
    assert same(target, wanted)


def test_stock_dcp_loads_it(sealed: Sealed) -> None:
    wanted = sealed.expected()
    target = zeros_like(wanted)
    place = GOLDEN / sealed.store / "runs" / str(sealed.name)
    dcp.load(target, checkpoint_id=place)  # type: ignore[attr-defined]
    assert same(target, wanted)


def test_nothing_else_is_in_the_stores() -> None:
    found = [
        committed.name
        for store in ("checkpoint-1", "checkpoint-2")
        for committed in list_checkpoints(LocalStorage(GOLDEN / store))
    ]
    assert found == [sealed.name for sealed in SEALED.values()]


@pytest.mark.parametrize(("version", "attempts"), [(1, 1), (2, 2)])
def test_its_run_reads_as_it_was_written(version: int, attempts: int) -> None:
    storage = LocalStorage(GOLDEN / f"checkpoint-{version}")
    record = read_run(storage, RunKey(f"golden-{version}"))
    assert record.author == "deniz"
    assert record.probe.token_ids == (1, 2, 3)
    for committed in list_checkpoints(storage):
        assert record.inputs == committed.manifest.inputs
    assert newest_attempt(storage, record.run) == Attempt(attempts)


def test_what_is_written_today_means_the_same(tmp_path: Path) -> None:
    golden.make(tmp_path / "store")
    storage = LocalStorage(tmp_path / "store")
    wanted = [sealed for sealed in SEALED.values() if sealed.store == "checkpoint-2"]
    for committed, sealed in zip(list_checkpoints(storage), wanted, strict=True):
        assert committed.name == sealed.name
        assert state_digest(CheckpointReader(storage, committed)) == sealed.state_digest
        assert tuple(sorted(committed.manifest.lenders)) == sealed.lenders
