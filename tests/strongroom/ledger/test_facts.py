from __future__ import annotations

from dataclasses import replace

import pytest

from strongroom.errors import FormatError
from strongroom.ledger.events import Event, EventKind
from strongroom.ledger.facts import (
    AttemptFact,
    PromotedFact,
    RefusedFact,
    RunFact,
    StoreFact,
    VerifiedFact,
    fact_of,
)
from tests.support.ledgers import RUN, SERVICE, TIME, about, checkpoint_id, digest_of, run_created

D = str(digest_of("policy"))
REVIEW = {"stage": "production", "policy": D, "attestation": D, "expires": None}

GOOD = {
    EventKind.STORE_CREATED: Event(kind=EventKind.STORE_CREATED, time=TIME, actor=SERVICE.actor),
    EventKind.RUN_CREATED: run_created(),
    EventKind.ATTEMPT_STARTED: Event(
        kind=EventKind.ATTEMPT_STARTED,
        time=TIME,
        actor=SERVICE.actor,
        facts={"run": str(RUN), "attempt": 2, "resumed_from": str(checkpoint_id(1))},
    ),
    EventKind.CHECKPOINT_COMMITTED: about(EventKind.CHECKPOINT_COMMITTED, 1, num_bytes=9),
    EventKind.CHECKPOINT_VERIFIED: about(
        EventKind.CHECKPOINT_VERIFIED, 1, passed=True, rung=3, attestation=D, state_digest=None
    ),
    EventKind.CHECKPOINT_QUARANTINED: about(EventKind.CHECKPOINT_QUARANTINED, 1, reason="flipped"),
    EventKind.CHECKPOINT_EVALUATED: about(
        EventKind.CHECKPOINT_EVALUATED, 1, passed=False, attestation=D
    ),
    EventKind.CHECKPOINT_APPROVED: about(
        EventKind.CHECKPOINT_APPROVED, 1, actor="person:leyla", **REVIEW
    ),
    EventKind.CHECKPOINT_REJECTED: about(
        EventKind.CHECKPOINT_REJECTED, 1, actor="person:deniz", **REVIEW
    ),
    EventKind.CHECKPOINT_PROMOTED: about(
        EventKind.CHECKPOINT_PROMOTED, 1, stage="staging", policy=D, attestation=D, replaces=None
    ),
    EventKind.CHECKPOINT_EXPORTED: about(
        EventKind.CHECKPOINT_EXPORTED, 1, format="dcp", exported=D, num_bytes=9
    ),
    EventKind.PROMOTION_REFUSED: about(
        EventKind.PROMOTION_REFUSED, 1, stage="staging", policy=D, reasons=["loss rose"]
    ),
}


@pytest.mark.parametrize("kind", list(EventKind))
def test_every_kind_can_be_read(kind: EventKind) -> None:
    fact = fact_of(5, GOOD[kind])
    assert (fact.index, fact.time, fact.actor) == (5, TIME, GOOD[kind].actor)


def test_facts_are_typed() -> None:
    assert isinstance(fact_of(0, GOOD[EventKind.STORE_CREATED]), StoreFact)
    run = fact_of(0, GOOD[EventKind.RUN_CREATED])
    assert isinstance(run, RunFact)
    assert (run.key, run.author, run.dataset) == (RUN, "leyla", digest_of("dataset"))
    attempt = fact_of(0, GOOD[EventKind.ATTEMPT_STARTED])
    assert isinstance(attempt, AttemptFact)
    assert (attempt.number, attempt.resumed_from) == (2, checkpoint_id(1))
    verified = fact_of(0, GOOD[EventKind.CHECKPOINT_VERIFIED])
    assert isinstance(verified, VerifiedFact)
    assert (verified.passed, verified.rung, verified.state_digest) == (True, 3, None)
    promoted = fact_of(0, GOOD[EventKind.CHECKPOINT_PROMOTED])
    assert isinstance(promoted, PromotedFact)
    assert (promoted.stage, promoted.replaces) == ("staging", None)
    refused = fact_of(0, GOOD[EventKind.PROMOTION_REFUSED])
    assert isinstance(refused, RefusedFact)
    assert refused.reasons == ("loss rose",)


def test_more_facts_than_needed_are_allowed() -> None:
    event = GOOD[EventKind.CHECKPOINT_COMMITTED]
    assert fact_of(0, replace(event, facts={**event.facts, "pause_s": 0.25})) == fact_of(0, event)


@pytest.mark.parametrize("kind", [kind for kind in EventKind if GOOD[kind].facts])
def test_a_missing_fact_is_named(kind: EventKind) -> None:
    optional = {"state_digest", "resumed_from", "replaces", "expires"}
    for name in GOOD[kind].facts.keys() - optional:
        facts = {key: value for key, value in GOOD[kind].facts.items() if key != name}
        with pytest.raises(FormatError, match=rf"ledger event 5 \({kind}\): facts\.{name}"):
            fact_of(5, replace(GOOD[kind], facts=facts))


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (EventKind.CHECKPOINT_COMMITTED, "num_bytes", True),
        (EventKind.CHECKPOINT_COMMITTED, "num_bytes", -1),
        (EventKind.CHECKPOINT_COMMITTED, "num_bytes", 1.5),
        (EventKind.CHECKPOINT_VERIFIED, "passed", "yes"),
        (EventKind.CHECKPOINT_VERIFIED, "attestation", "abc"),
        (EventKind.CHECKPOINT_VERIFIED, "state_digest", "abc"),
        (EventKind.CHECKPOINT_PROMOTED, "stage", "candidate"),
        (EventKind.CHECKPOINT_PROMOTED, "stage", "prod"),
        (EventKind.CHECKPOINT_APPROVED, "expires", 7),
        (EventKind.PROMOTION_REFUSED, "reasons", "loss rose"),
        (EventKind.PROMOTION_REFUSED, "reasons", [1]),
        (EventKind.RUN_CREATED, "run", "Nightly 7"),
        (EventKind.RUN_CREATED, "author", "Leyla Kaya"),
        (EventKind.RUN_CREATED, "author", "leyla@example.org"),
    ],
)
def test_a_malformed_fact_is_named(kind: EventKind, name: str, value: object) -> None:
    facts = {**GOOD[kind].facts, name: value}
    with pytest.raises(FormatError, match=rf"facts\.{name}: expected .* got"):
        fact_of(5, replace(GOOD[kind], facts=facts))


@pytest.mark.parametrize(
    "actor", ["", "leyla", "person:Leyla Kaya", "person:l@example", "service:x"]
)
def test_an_actor_is_a_pseudonym_or_a_key(actor: str) -> None:
    with pytest.raises(FormatError, match="actor"):
        fact_of(5, replace(GOOD[EventKind.STORE_CREATED], actor=actor))


def test_an_event_about_a_checkpoint_names_it() -> None:
    event = replace(GOOD[EventKind.CHECKPOINT_COMMITTED], checkpoint_id=None)
    with pytest.raises(FormatError, match="checkpoint_id"):
        fact_of(5, event)
