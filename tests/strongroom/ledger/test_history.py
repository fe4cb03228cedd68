from __future__ import annotations

from strongroom.ledger.events import Event, EventKind
from strongroom.ledger.history import CheckpointRecord, History
from strongroom.names import RunKey
from tests.support.ledgers import (
    RUN,
    SERVICE,
    TIME,
    about,
    checkpoint_id,
    checkpoint_name,
    committed,
    digest_of,
    run_created,
)

D = str(digest_of("evidence"))


def verified(number: int, *, passed: bool) -> Event:
    kind = EventKind.CHECKPOINT_VERIFIED
    return about(kind, number, passed=passed, rung=3, attestation=D, state_digest=D)


def quarantined(number: int, reason: str = "flipped bit") -> Event:
    return about(EventKind.CHECKPOINT_QUARANTINED, number, reason=reason)


def promoted(number: int, stage: str, replaces: int | None = None) -> Event:
    return about(
        EventKind.CHECKPOINT_PROMOTED,
        number,
        stage=stage,
        policy=D,
        attestation=D,
        replaces=None if replaces is None else str(checkpoint_id(replaces)),
    )


def reviewed(kind: EventKind, number: int, person: str) -> Event:
    return about(
        kind,
        number,
        actor=f"person:{person}",
        stage="production",
        policy=D,
        attestation=D,
        expires="2026-12-31T00:00:00.000Z",
    )


def attempt(number: int, run: RunKey = RUN) -> Event:
    return Event(
        kind=EventKind.ATTEMPT_STARTED,
        time=TIME,
        actor=SERVICE.actor,
        facts={"run": str(run), "attempt": number, "resumed_from": None},
    )


def record_of(history: History, number: int) -> CheckpointRecord:
    return history.records[checkpoint_id(number)]


def test_no_events_are_an_empty_history() -> None:
    history = History.of([])
    assert (dict(history.records), dict(history.runs), history.moves) == ({}, {}, ())
    assert history.in_stage("production") is None


def test_a_committed_checkpoint_is_a_candidate() -> None:
    history = History.of([run_created(), committed(10)])
    record = record_of(history, 10)
    assert (record.name, record.committed_at, record.stages) == (
        checkpoint_name(10),
        1,
        ("candidate",),
    )
    assert record.committed is not None
    assert record.committed.num_bytes == 1010
    assert history.num_events == 2


def test_the_latest_verification_counts() -> None:
    record = record_of(
        History.of([committed(10), verified(10, passed=True), verified(10, passed=False)]), 10
    )
    assert record.verified is not None
    assert (record.verified.passed, record.verified.index) == (False, 2)
    assert record.verified.state_digest == digest_of("evidence")


def test_a_quarantine_stays() -> None:
    record = record_of(History.of([committed(10), quarantined(10), verified(10, passed=True)]), 10)
    assert record.quarantined == "flipped bit"


def test_a_quarantine_before_the_commit_is_recorded_is_not_lost() -> None:
    history = History.of([quarantined(10)])
    assert record_of(history, 10).committed_at is None
    assert record_of(history, 10).stages == ()
    history = History.of([quarantined(10), committed(10)])
    record = record_of(history, 10)
    assert (record.quarantined, record.committed_at) == ("flipped bit", 1)


def test_a_commit_recorded_twice_counts_once() -> None:
    record = record_of(History.of([committed(10), committed(10)]), 10)
    assert (record.committed_at, record.indexes) == (0, (0, 1))


def test_a_stage_moves() -> None:
    history = History.of(
        [
            committed(10),
            committed(20),
            promoted(10, "staging"),
            promoted(10, "production"),
            promoted(20, "staging", replaces=10),
        ]
    )
    assert history.in_stage("staging") == checkpoint_id(20)
    assert history.in_stage("production") == checkpoint_id(10)
    assert history.in_stage("candidate") is None
    assert record_of(history, 10).stages == ("candidate", "production")
    assert record_of(history, 20).stages == ("candidate", "staging")
    moves = history.stage_moves("staging")
    assert [move.checkpoint_id for move in moves] == [checkpoint_id(10), checkpoint_id(20)]
    assert [move.replaces for move in moves] == [None, checkpoint_id(10)]


def test_reviews_and_refusals_gather() -> None:
    approved, rejected = EventKind.CHECKPOINT_APPROVED, EventKind.CHECKPOINT_REJECTED
    refused = about(
        EventKind.PROMOTION_REFUSED, 10, stage="production", policy=D, reasons=["one approval"]
    )
    evaluated = about(EventKind.CHECKPOINT_EVALUATED, 10, passed=True, attestation=D)
    record = record_of(
        History.of(
            [
                committed(10),
                evaluated,
                reviewed(approved, 10, "leyla"),
                reviewed(approved, 10, "deniz"),
                reviewed(rejected, 10, "aylin"),
                refused,
            ]
        ),
        10,
    )
    assert [fact.actor for fact in record.approvals] == ["person:leyla", "person:deniz"]
    assert [fact.actor for fact in record.rejections] == ["person:aylin"]
    assert [fact.reasons for fact in record.refusals] == [("one approval",)]
    assert record.evaluated is not None
    assert record.evaluated.passed
    assert record.approvals[0].expires == "2026-12-31T00:00:00.000Z"
    assert record.indexes == (0, 1, 2, 3, 4, 5)


def test_runs_know_author_and_attempts() -> None:
    history = History.of([run_created(author="leyla"), attempt(1), attempt(2)])
    run = history.runs[RUN]
    assert (run.author, [fact.number for fact in run.attempts]) == ("leyla", [1, 2])
    assert run.facts["dataset"] == str(digest_of("dataset"))


def test_the_first_creation_of_a_run_stands() -> None:
    history = History.of([run_created(author="leyla"), run_created(author="deniz")])
    assert history.runs[RUN].author == "leyla"


def test_an_attempt_of_an_unknown_run_changes_nothing() -> None:
    assert dict(History.of([attempt(1)]).runs) == {}


def test_a_name_finds_the_committed_record() -> None:
    other = about(EventKind.CHECKPOINT_QUARANTINED, 10, reason="forged manifest")
    forged = Event(
        kind=other.kind,
        time=other.time,
        actor=other.actor,
        checkpoint_id=checkpoint_id(99),
        checkpoint=checkpoint_name(10),
        facts=other.facts,
    )
    history = History.of([forged, committed(10)])
    record = history.by_name(checkpoint_name(10))
    assert record is not None
    assert record.checkpoint_id == checkpoint_id(10)
    assert history.by_name(checkpoint_name(11)) is None
