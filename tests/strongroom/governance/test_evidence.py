from __future__ import annotations

from dataclasses import replace

from strongroom.governance.evidence import evidence_of, verifications_of
from strongroom.ledger.events import EventKind
from strongroom.signing.statement import VERIFICATION
from tests.support.governed import World

STEP = 10


def test_what_the_ledger_names_last_is_in_force() -> None:
    world = World()
    world.commit(STEP)
    first = world.verify(STEP)
    second = world.verify(STEP)
    evaluated = world.evaluate(STEP, 1.3)
    record = world.history.records[world.id_of(STEP)]
    found = evidence_of(record, world.statements[world.id_of(STEP)])
    assert found.digests == (second, evaluated)
    assert found.verification is not None
    assert {item.attestation for item in found.verifications} == {first, second}
    assert found.evaluation is not None
    assert found.evaluation.report.loss == 1.3


def test_the_verification_that_climbed_highest_is_in_force() -> None:
    world = World()
    world.commit(STEP)
    world.verify(STEP, rungs=1)
    highest = world.verify(STEP, rungs=3)
    world.verify(STEP, rungs=2)
    record = world.history.records[world.id_of(STEP)]
    found = evidence_of(record, world.statements[world.id_of(STEP)])
    assert found.digests == (highest,)


def test_nothing_on_record_is_no_evidence() -> None:
    world = World()
    world.commit(STEP)
    world.verify(STEP, record=False)
    record = world.history.records[world.id_of(STEP)]
    found = evidence_of(record, world.statements[world.id_of(STEP)])
    assert found.verification is None
    assert found.digests == ()


def test_a_statement_that_says_something_else_than_the_ledger_is_no_evidence() -> None:
    for name, value in {"rung": 2, "passed": False}.items():
        world = World()
        world.good(STEP)
        event = next(e for e in world.events if e.kind is EventKind.CHECKPOINT_VERIFIED)
        place = world.events.index(event)
        world.events[place] = replace(event, facts={**event.facts, name: value})
        record = world.history.records[world.id_of(STEP)]
        found = evidence_of(record, world.statements[world.id_of(STEP)])
        assert found.verification is None, name
        assert found.evaluation is not None


def test_a_rung_reached_means_every_rung_below_it_too() -> None:
    world = World()
    world.commit(STEP)
    world.verify(STEP, rungs=3)
    (found,) = verifications_of(world.id_of(STEP), world.statements[world.id_of(STEP)])
    assert (found.highest, found.passed) == (3, True)
    assert found.reaches(3)
    assert not found.reaches(4)
    assert not replace(found, rungs=found.rungs[1:]).reaches(3)
    assert not replace(found, rungs=()).passed
    assert not replace(found, rungs=()).reaches(1)


def test_a_failed_rung_is_told_with_its_finding() -> None:
    world = World()
    world.commit(STEP)
    world.verify(STEP, rungs=2, finding="a gap in tensor w")
    (found,) = verifications_of(world.id_of(STEP), world.statements[world.id_of(STEP)])
    assert (found.highest, found.passed) == (1, False)
    assert found.rungs[-1].findings == ("a gap in tensor w",)
    assert not found.reaches(1)


def test_a_record_the_ladder_wrote_is_read_as_it_was_meant() -> None:
    from strongroom.verification.ladder import Rung, RungResult, VerificationReport

    world = World()
    world.commit(STEP)
    report = VerificationReport(
        name=world.manifests[STEP].name,
        checkpoint_id=world.id_of(STEP),
        rungs=(
            RungResult(rung=Rung.BYTES, seconds=0.5, findings=()),
            RungResult(rung=Rung.STRUCTURE, seconds=0.25, findings=("a gap in tensor w",)),
        ),
        state_digest=None,
    )
    world.attest(STEP, VERIFICATION, report.to_json())
    (found,) = verifications_of(world.id_of(STEP), world.statements[world.id_of(STEP)])
    assert (found.passed, found.highest) == (report.passed, report.highest)
    assert [(r.rung, r.passed, r.seconds, r.findings) for r in found.rungs] == [
        (int(r.rung), r.passed, r.seconds, r.findings) for r in report.rungs
    ]
