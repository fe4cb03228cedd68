"""A save killed at any moment leaves no checkpoint or a whole one, and the run can go on."""

from __future__ import annotations

from contextlib import suppress

import pytest

from strongroom.checkpoint.attempts import AttemptRecord, check_fence, claim_attempt, newest_attempt
from strongroom.checkpoint.catalogue import list_checkpoints
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveOptions
from strongroom.checkpoint.writing import shard_plan
from strongroom.errors import FencedError, StrongroomError
from strongroom.storage.memory import Faults, MemoryStorage, SimulatedCrash
from strongroom.verification.ladder import Rung, verify
from strongroom.verification.usable import newest_usable
from tests.support.checkpoints import (
    RUN,
    checkpoint_name,
    ignore_commit,
    same,
    save_facts,
    training_state,
)

STEPS = (10, 20, 30)
PART_BYTES = 512  # small, so that a shard has several parts, and a rank several shards
SHARD_BYTES = 2048


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    make_parts_small(monkeypatch)


def make_parts_small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_plan, "PART_BYTES", PART_BYTES)
    patch.setattr(shard_plan, "SHARD_BYTES", SHARD_BYTES)


def new_storage(faults: Faults | None = None) -> MemoryStorage:
    return MemoryStorage(faults=faults, part_min_bytes=PART_BYTES)


def saves(storage: MemoryStorage, attempt: int = 1) -> None:
    """Save a full checkpoint, a delta and a full one, each called for while the last is written."""
    claim_attempt(storage, AttemptRecord(run=RUN))
    saver = AsyncSaver(
        storage,
        fence=lambda: None,
        on_commit=ignore_commit,
        # One thread, so that the operations come in the same order every time.
        options=SaveOptions(staging="overlap", full_every=2, threads=1),
    )
    with saver:
        for step in STEPS:
            saver.save(training_state(step), save_facts(checkpoint_name(step, attempt)))
            saver.wait_staged()


def operations() -> list[str]:
    storage = new_storage()
    with pytest.MonkeyPatch.context() as patch:
        make_parts_small(patch)
        saves(storage)
    return storage.operations


CRASHES = [
    pytest.param(faults, id=f"{when} {number}")
    for number in range(1, len(operations()) + 1)
    for when, faults in (
        ("before", Faults(crash_before=number)),
        ("after", Faults(crash_after=number)),
    )
]


def test_the_simulation_covers_parts_shards_and_deltas() -> None:
    done = operations()
    first = [line for line in done if "step-00000010" in line]
    assert sum(line.startswith("write") for line in first) > 2 < len(set(first))
    assert any(line.endswith("__0_1.distcp") for line in first)
    storage = new_storage()
    saves(storage)
    assert [committed.manifest.chain for committed in list_checkpoints(storage)] == [0, 1, 0]


def check_whole_or_absent(storage: MemoryStorage) -> list[int]:
    """Check that every checkpoint there is is whole; return their steps."""
    found = list_checkpoints(storage)
    assert not any(ignored.damaged for ignored in found.ignored)
    for committed in found:
        report = verify(storage, committed.name, expected_id=None, up_to=Rung.STRUCTURE)
        assert report.findings == ()
        reader = CheckpointReader(storage, committed)
        read = {name: reader.read(name) for name in reader.tensor_names}
        assert same(read, training_state(committed.name.step.number))
    return [committed.name.step.number for committed in found]


@pytest.mark.parametrize("faults", CRASHES)
def test_a_killed_save_leaves_nothing_or_everything(faults: Faults) -> None:
    storage = new_storage(faults)
    with suppress(SimulatedCrash, StrongroomError):
        saves(storage)
    survivor = storage.reopen()
    steps = check_whole_or_absent(survivor)
    assert steps == list(STEPS[: len(steps)])

    usable, rejected = newest_usable(survivor, RUN)
    assert rejected == []
    assert (None if usable is None else usable.name) == (
        checkpoint_name(steps[-1]) if steps else None
    )
    # The next attempt has names of its own, so nothing of the dead one is in its way, and it
    # changes nothing of what is there.
    before = contents(survivor)
    newest = newest_attempt(survivor, RUN)
    number = 1 if newest is None else newest.number + 1
    saves(survivor, attempt=number)
    assert before.items() <= contents(survivor).items()
    usable, _ = newest_usable(survivor, RUN)
    assert usable is not None
    assert usable.name == checkpoint_name(STEPS[-1], attempt=number)
    # What the dead one left unfinished is no object, and can be swept away.
    before = contents(survivor)
    survivor.discard_unfinished(older_than_s=0.0)
    assert survivor.discard_unfinished(older_than_s=0.0) == []
    assert contents(survivor) == before


def contents(storage: MemoryStorage) -> dict[str, bytes]:
    return {info.key: storage.read(info.key) for info in storage.walk("")}


@pytest.mark.parametrize("capacity_bytes", range(0, 40_000, 2_500))
def test_a_full_disk_leaves_nothing_or_everything(capacity_bytes: int) -> None:
    storage = new_storage(Faults(capacity_bytes=capacity_bytes))
    with suppress(StrongroomError):
        saves(storage)
    check_whole_or_absent(storage.reopen())
    assert storage.discard_unfinished(older_than_s=0.0) == []  # who lives clears up at once


def test_an_attempt_that_was_overtaken_commits_nothing() -> None:
    storage = new_storage()
    first = claim_attempt(storage, AttemptRecord(run=RUN))
    saver = AsyncSaver(
        storage, fence=lambda: check_fence(storage, RUN, first), on_commit=ignore_commit
    )
    saver.save(training_state(10), save_facts(checkpoint_name(10)))
    saver.wait()
    claim_attempt(storage, AttemptRecord(run=RUN))

    def save_on() -> None:
        for step in (20, 30):
            saver.save(training_state(step), save_facts(checkpoint_name(step)))
        saver.wait()

    with pytest.raises(FencedError, match="attempt-0001 may not commit any more"):
        save_on()
    with suppress(FencedError):  # of the other one, where the first was heard of before it ended
        saver.close()
    assert [committed.name for committed in list_checkpoints(storage)] == [checkpoint_name(10)]
