from __future__ import annotations

import pytest
import torch

from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE
from strongroom.ledger.events import Event, EventKind
from strongroom.ledger.history import History
from strongroom.names import CheckpointId
from strongroom.storage.memory import MemoryStorage
from strongroom.verification.usable import newest_usable
from tests.support.checkpoints import (
    RUN,
    checkpoint_name,
    save_checkpoint,
    some_id,
    training_state,
    write_checkpoint,
)

SERVICE = "service:ed25519-0123456789abcdef"


def event(kind: EventKind, checkpoint_id: CheckpointId, step: int, **facts: object) -> Event:
    return Event(
        kind=kind,
        time="2026-01-31T08:15:00.123Z",
        actor=SERVICE,
        checkpoint_id=checkpoint_id,
        checkpoint=checkpoint_name(step),
        facts=facts,
    )


def test_a_run_without_checkpoints_has_none_and_rejects_none() -> None:
    assert newest_usable(MemoryStorage(), RUN) == (None, [])


def test_the_newest_step_of_the_newest_attempt_is_chosen() -> None:
    storage = MemoryStorage()
    for step, attempt in ((10, 1), (30, 1), (20, 2)):
        save_checkpoint(storage, step, attempt=attempt)
    committed, rejected = newest_usable(storage, RUN)
    assert committed is not None
    assert committed.name == checkpoint_name(20, attempt=2)
    assert rejected == []


def test_what_does_not_hold_is_passed_over_with_its_reason() -> None:
    """Weights alone (step 60) and a save that died (step 20) are not resumed from.

    Reports huggingface/transformers#35782, pytorch/torchtitan#315 and
    NVIDIA-NeMo/Megatron-Bridge#5746.
    """
    storage = MemoryStorage()
    for step in (10, 20, 30, 40, 50):
        save_checkpoint(storage, step)
    save_checkpoint(storage, 60, tensors={"model.w": training_state()["model.layer.bias"]})
    folder = "runs/nightly-7/attempt-0001"
    shard = f"{folder}/step-00000050/__0_0.distcp"
    damaged = bytearray(storage.read(shard))
    damaged[3000] ^= 1
    storage.replace(shard, bytes(damaged))
    storage.delete(f"{folder}/step-00000040/{SEAL_FILE}")
    storage.replace(f"{folder}/step-00000030/manifest.json", b"{}")
    storage.delete(f"{folder}/step-00000020/manifest.json")  # as if its save never ended
    committed, rejected = newest_usable(storage, RUN)
    assert committed is not None
    assert committed.name == checkpoint_name(10)
    assert [name.step.number for name, _ in rejected] == [60, 50, 40, 30]
    reasons = [reason for _, reason in rejected]
    assert "optimizer state" in reasons[0]
    assert shard in reasons[1]
    assert "the seal is missing" in reasons[2]
    assert "contradict" in reasons[3]


def test_nothing_usable_is_told_apart_from_nothing_there() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage, 10)
    storage.delete(f"{committed.folder}/__0_0.distcp")
    found, rejected = newest_usable(storage, RUN)
    assert found is None
    assert [name for name, _ in rejected] == [checkpoint_name(10)]


def test_what_the_ledger_quarantined_is_passed_over_although_it_holds() -> None:
    storage = MemoryStorage()
    ids = {step: save_checkpoint(storage, step).checkpoint_id for step in (10, 20)}
    history = History.of(
        [
            event(EventKind.CHECKPOINT_COMMITTED, ids[10], 10, num_bytes=1),
            event(EventKind.CHECKPOINT_COMMITTED, ids[20], 20, num_bytes=1),
            event(EventKind.CHECKPOINT_QUARANTINED, ids[20], 20, reason="loss went up"),
        ]
    )
    committed, rejected = newest_usable(storage, RUN, history=history)
    assert committed is not None
    assert committed.name == checkpoint_name(10)
    assert rejected == [(checkpoint_name(20), "quarantined: loss went up")]


def test_another_checkpoint_in_the_place_of_the_committed_one_is_passed_over() -> None:
    storage = MemoryStorage()
    save_checkpoint(storage, 20)
    history = History.of(
        [event(EventKind.CHECKPOINT_COMMITTED, some_id("the one committed"), 20, num_bytes=1)]
    )
    committed, rejected = newest_usable(storage, RUN, history=history)
    assert committed is None
    assert "another manifest stands than the one the ledger recorded" in rejected[0][1]


@pytest.fixture
def chain() -> tuple[MemoryStorage, Committed, Committed]:
    """Return a full checkpoint of step 20 and a delta on it of step 30, after a full one of 10."""
    storage = MemoryStorage()
    write_checkpoint(storage, 10)
    full = write_checkpoint(storage, 20)
    changed = {**training_state(20), "rng.0.numpy": torch.arange(5)}
    delta = write_checkpoint(storage, 30, tensors=changed, base=full.manifest)
    assert delta.manifest.lenders == {full.name: full.checkpoint_id}
    return storage, full, delta


def test_a_delta_is_as_usable_as_a_full_checkpoint(
    chain: tuple[MemoryStorage, Committed, Committed],
) -> None:
    storage, _, delta = chain
    assert newest_usable(storage, RUN) == (delta, [])


def test_a_delta_whose_lender_is_damaged_or_gone_is_passed_over_by_name(
    chain: tuple[MemoryStorage, Committed, Committed],
) -> None:
    storage, full, delta = chain
    (chunk,) = delta.manifest.tensor("model.layer.weight").chunks
    shard = delta.manifest.key_of(chunk.file)
    assert shard == f"{full.folder}/__0_0.distcp"
    right = storage.read(shard)
    broken = bytearray(right)
    broken[chunk.offset + chunk.num_bytes // 2] ^= 1
    storage.replace(shard, bytes(broken))
    committed, rejected = newest_usable(storage, RUN)
    assert committed is not None
    assert committed.name == checkpoint_name(10)
    assert [name.step.number for name, _ in rejected] == [30, 20]
    assert all(shard in reason and "model.layer.weight" in reason for _, reason in rejected)
    storage.replace(shard, right)
    storage.delete(f"{full.folder}/{MANIFEST_FILE}")
    committed, rejected = newest_usable(storage, RUN)
    assert committed is not None
    assert committed.name == checkpoint_name(10)
    ((name, reason),) = rejected
    assert name == delta.name
    assert f"{full.folder}/{MANIFEST_FILE}" in reason
    assert "lends files is gone" in reason
