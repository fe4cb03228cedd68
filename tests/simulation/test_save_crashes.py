"""A save killed at any moment leaves no checkpoint or a whole one, and the run can go on."""

from __future__ import annotations

from contextlib import suppress

import pytest
from torch.distributed.checkpoint.api import CheckpointException

from strongroom.checkpoint.catalogue import list_checkpoints
from strongroom.checkpoint.reader import CheckpointReader
from strongroom.checkpoint.run_record import check_fence, claim_attempt, newest_attempt
from strongroom.checkpoint.save import AsyncSaver
from strongroom.errors import FencedError, SaveError, StrongroomError
from strongroom.storage.memory import Faults, MemoryStorage, SimulatedCrash
from strongroom.verification.ladder import Rung, verify
from strongroom.verification.usable import newest_usable
from tests.support.checkpoints import (
    RUN,
    checkpoint_name,
    ignore_commit,
    same,
    save_checkpoint,
    save_facts,
    training_state,
)


def two_saves(storage: MemoryStorage, attempt: int = 1) -> None:
    claim_attempt(storage, RUN)
    for step in (10, 20):
        save_checkpoint(storage, step, attempt=attempt)


def operations() -> int:
    storage = MemoryStorage()
    two_saves(storage)
    return len(storage.operations)


CRASHES = [
    pytest.param(faults, id=f"{when} {number}")
    for number in range(1, operations() + 1)
    for when, faults in (
        ("before", Faults(crash_before=number)),
        ("after", Faults(crash_after=number)),
    )
]


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
    storage = MemoryStorage(faults=faults)
    with suppress(SimulatedCrash, StrongroomError, CheckpointException):
        two_saves(storage)
    survivor = storage.reopen()
    steps = check_whole_or_absent(survivor)
    assert steps in ([], [10], [10, 20])

    usable, rejected = newest_usable(survivor, RUN)
    assert rejected == []
    assert (None if usable is None else usable.name) == (
        checkpoint_name(steps[-1]) if steps else None
    )
    # The next attempt has names of its own, so nothing of the dead one is in its way.
    newest = newest_attempt(survivor, RUN)
    number = 1 if newest is None else newest.number + 1
    two_saves(survivor, attempt=number)
    usable, _ = newest_usable(survivor, RUN)
    assert usable is not None
    assert usable.name == checkpoint_name(20, attempt=number)


@pytest.mark.parametrize("capacity_bytes", range(0, 40_000, 2_500))
def test_a_full_disk_leaves_nothing_or_everything(capacity_bytes: int) -> None:
    storage = MemoryStorage(faults=Faults(capacity_bytes=capacity_bytes))
    with suppress(SaveError, StrongroomError):
        two_saves(storage)
    check_whole_or_absent(storage.reopen())


def test_an_attempt_that_was_overtaken_commits_nothing() -> None:
    storage = MemoryStorage()
    first = claim_attempt(storage, RUN)
    saver = AsyncSaver(
        storage, fence=lambda: check_fence(storage, RUN, first), on_commit=ignore_commit
    )
    saver.save(training_state(10), save_facts(checkpoint_name(10)))
    saver.wait()
    claim_attempt(storage, RUN)
    saver.save(training_state(20), save_facts(checkpoint_name(20)))
    with pytest.raises(FencedError, match="attempt-0001 may not commit any more"):
        saver.close()
    assert [committed.name for committed in list_checkpoints(storage)] == [checkpoint_name(10)]
