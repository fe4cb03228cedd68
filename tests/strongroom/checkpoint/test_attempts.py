"""Attempts: numbered, recorded, and each fencing off those before it."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest

from strongroom import canonical
from strongroom.checkpoint.attempts import (
    MAX_CLAIMS,
    AttemptRecord,
    check_fence,
    claim_attempt,
    newest_attempt,
    read_attempt,
)
from strongroom.errors import ConflictError, FencedError, FormatError, UnknownNameError
from strongroom.names import Attempt, RunKey
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import some_id

RUN = RunKey("nightly-7")


def test_attempts_count_up_and_fence_off_lower_ones() -> None:
    storage = MemoryStorage()
    assert newest_attempt(storage, RUN) is None
    first, second = (
        claim_attempt(storage, AttemptRecord(run=RUN)),
        claim_attempt(storage, AttemptRecord(run=RUN)),
    )
    assert (first, second) == (Attempt(1), Attempt(2))
    assert newest_attempt(storage, RUN) == second
    check_fence(storage, RUN, second)
    with pytest.raises(FencedError, match="attempt-0001 may not commit any more"):
        check_fence(storage, RUN, first)


def test_claiming_passes_over_what_is_no_attempt() -> None:
    storage = MemoryStorage()
    claim_attempt(storage, AttemptRecord(run=RUN))
    storage.create("runs/nightly-7/attempt-9.bak/attempt.json", b"{}")
    storage.create("runs/nightly-7/attempt-0005/left-over", b"")  # of a process that died early
    assert newest_attempt(storage, RUN) == Attempt(1)
    assert claim_attempt(storage, AttemptRecord(run=RUN)) == Attempt(6)


def test_runs_of_near_names_do_not_share_attempts() -> None:
    storage = MemoryStorage()
    assert claim_attempt(storage, AttemptRecord(run=RunKey("a"))) == Attempt(1)
    assert claim_attempt(storage, AttemptRecord(run=RunKey("a-1"))) == Attempt(1)


def test_launches_at_the_same_moment_get_different_numbers() -> None:
    storage = MemoryStorage()
    barrier = Barrier(8)
    taken: list[Attempt] = []

    def launch() -> None:
        barrier.wait()
        taken.append(claim_attempt(storage, AttemptRecord(run=RUN)))

    threads = [Thread(target=launch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [Attempt(number) for number in range(1, 9)]


def test_a_storm_of_launches_is_given_up_on() -> None:
    class Stale(MemoryStorage):
        def folders(self, folder: str) -> list[str]:
            return [name for name in super().folders(folder) if name == "none of them"]

    storage = Stale()
    for number in range(1, MAX_CLAIMS + 1):
        storage.create(f"runs/nightly-7/{Attempt(number)}/attempt.json", b"{}")
    with pytest.raises(ConflictError, match="were taken by other processes"):
        claim_attempt(storage, AttemptRecord(run=RUN))


def test_what_an_attempt_is_can_be_read_again() -> None:
    storage = MemoryStorage()
    wanted = AttemptRecord(
        run=RUN,
        resumed_from=some_id("base"),
        placement={"strategy": "zero3", "world_size": 4},
        environment={"device": "NVIDIA H200", "torch": "2.13.0"},
        inexact=("dropout",),
        reseeded_ranks=(2, 3),
    )
    record = read_attempt(storage, RUN, claim_attempt(storage, wanted))
    assert record.attempt == 1
    assert record.started
    for name in ("resumed_from", "placement", "environment", "inexact", "reseeded_ranks"):
        assert getattr(record, name) == getattr(wanted, name)
    with pytest.raises(UnknownNameError, match=r"attempt-0002/attempt\.json"):
        read_attempt(storage, RUN, Attempt(2))


def test_a_record_of_version_1_says_less() -> None:
    storage = MemoryStorage()
    document = {
        "format": "strongroom.attempt/1",
        "run": str(RUN),
        "attempt": 1,
        "started": "2026-11-30T10:00:00Z",
    }
    storage.create(f"runs/{RUN}/attempt-0001/attempt.json", canonical.dumps(document))
    record = read_attempt(storage, RUN, Attempt(1))
    assert record == AttemptRecord(run=RUN, attempt=1, started="2026-11-30T10:00:00Z")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "strongroom.attempt/9"}, "a release of strongroom that knows it"),
        ({"attempt": "1"}, "missing or malformed"),
        ({"inexact": [3]}, "missing or malformed"),
        ({"resumed_from": "yesterday"}, "missing or malformed"),
        ({"attempt": 2}, "expected the record of nightly-7"),
        ({"more": 1}, "fields that strongroom.attempt/2 does not have"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_record_is_refused(change: dict[str, object], words: str) -> None:
    storage = MemoryStorage()
    made = AttemptRecord(run=RUN, attempt=1, started="now").to_bytes()
    document = canonical.loads(made, what="made") | change
    storage.create(f"runs/{RUN}/attempt-0001/attempt.json", canonical.dumps(document))
    with pytest.raises(FormatError, match=words):
        read_attempt(storage, RUN, Attempt(1))
