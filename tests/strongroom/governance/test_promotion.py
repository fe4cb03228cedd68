"""Each rule of a promotion, met and not met; and what a decision becomes once it is signed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strongroom.errors import FormatError, InputError
from strongroom.governance.policy import DEFAULT_POLICIES
from strongroom.governance.promotion import Decision, PromotionClaim, decide
from strongroom.ledger.events import EventKind
from strongroom.names import CheckpointId
from strongroom.signing.statement import EVALUATION, VERIFICATION
from tests.support.governed import World, digest_of

STEP = 40


def unmet(decision: Decision) -> list[str]:
    return [check.rule for check in decision.checks if not check.met]


def approved_world() -> World:
    world = World()
    world.good(STEP, 1.07)
    world.promote(STEP, "staging")
    world.review(STEP, "selin")
    world.review(STEP, "kerem")
    return world


def test_staging_takes_a_verified_and_evaluated_checkpoint_and_nobody_s_approval() -> None:
    world = World()
    world.good(STEP)
    decision = world.decide(STEP, "staging")
    assert decision.allowed
    assert decision.reasons == ()
    assert len(decision.evidence) == 2
    assert not any("approved" in check.rule for check in decision.checks)


def test_production_takes_staging_and_two_people() -> None:
    world = approved_world()
    assert world.decide(STEP, "production").allowed
    assert "2 of 2 (selin, kerem)" in str(world.decide(STEP, "production").checks)


def test_every_rule_that_is_not_met_is_told_at_once() -> None:
    world = World()
    world.commit(STEP)
    decision = world.decide(STEP, "production")
    assert not decision.allowed
    assert decision.reasons == (
        "verified up to rung 3: it was never verified",
        "evaluated and passed: it was never evaluated",
        "in staging now or before: it never was",
        "approved by 2 different persons, none of them the run's author: 0 of 2",
    )


def test_an_unknown_checkpoint_is_refused() -> None:
    world = World()
    world.good(STEP)
    context = replace(world.context(STEP), checkpoint_id=CheckpointId(digest_of("no such")))
    decision = decide(context, DEFAULT_POLICIES["staging"])
    assert decision.reasons == ("on record in the ledger: the ledger knows no such checkpoint",)


def test_a_run_the_ledger_does_not_know_is_refused() -> None:
    world = World()
    world.good(STEP)
    del world.events[1]
    assert world.decide(STEP, "staging").reasons == (
        "on record in the ledger: its run is not there",
    )


def test_a_commit_that_was_never_recorded_is_refused() -> None:
    world = World()
    world.good(STEP)
    world.events = [e for e in world.events if e.kind is not EventKind.CHECKPOINT_COMMITTED]
    assert unmet(world.decide(STEP, "staging")) == ["on record in the ledger"]


def test_a_manifest_that_cannot_be_read_is_refused() -> None:
    world = World()
    world.good(STEP)
    decision = decide(replace(world.context(STEP), manifest=None), DEFAULT_POLICIES["staging"])
    assert unmet(decision) == [
        "its manifest is the one that was committed",
        "made from the inputs its run recorded",
    ]


def test_another_manifest_in_its_place_is_refused() -> None:
    world = World()
    world.good(STEP)
    swapped = replace(world.manifests[STEP], save_id="0" * 32)
    decision = decide(replace(world.context(STEP), manifest=swapped), DEFAULT_POLICIES["staging"])
    assert unmet(decision) == ["its manifest is the one that was committed"]


def test_inputs_the_run_did_not_record_are_refused() -> None:
    world = World()
    world.inputs = replace(world.inputs, dataset=digest_of("a poisoned dataset"))
    world.good(STEP)
    decision = world.decide(STEP, "staging")
    assert "made from the inputs its run recorded: it names another dataset" in decision.reasons


def test_a_quarantined_checkpoint_is_refused() -> None:
    world = World()
    world.good(STEP)
    world.record(EventKind.CHECKPOINT_QUARANTINED, STEP, reason="a flipped bit")
    decision = world.decide(STEP, "staging")
    assert decision.reasons == ("not in quarantine: a flipped bit",)


def test_a_verification_that_stopped_short_is_refused() -> None:
    world = World()
    world.commit(STEP)
    world.verify(STEP, rungs=2)
    world.evaluate(STEP)
    assert world.decide(STEP, "staging").reasons == ("verified up to rung 3: passed up to rung 2",)


def test_one_failed_verification_outweighs_all_that_passed() -> None:
    world = World()
    world.good(STEP)
    world.verify(STEP, finding="a flipped bit")
    world.verify(STEP)
    assert "verified up to rung 3" in unmet(world.decide(STEP, "staging"))


def test_a_failed_verification_counts_even_if_the_ledger_never_heard_of_it() -> None:
    world = World()
    world.good(STEP)
    world.verify(STEP, finding="a flipped bit", record=False)
    world.events.pop()  # the quarantine, which the crash prevented too
    decision = world.decide(STEP, "staging")
    assert decision.reasons == ("verified up to rung 3: a verification failed above rung 2",)


def test_looking_again_at_the_bytes_alone_takes_nothing_away() -> None:
    world = World()
    world.good(STEP)
    world.verify(STEP, rungs=1)
    assert world.decide(STEP, "staging").allowed


def test_a_verification_whose_statement_is_gone_is_refused() -> None:
    world = World()
    world.good(STEP)
    world.statements[world.id_of(STEP)] = [
        sealed
        for sealed in world.statements[world.id_of(STEP)]
        if sealed.statement.predicate_type != VERIFICATION
    ]
    decision = world.decide(STEP, "staging")
    assert unmet(decision) == ["verified up to rung 3"]
    assert "is missing, or says something else" in decision.reasons[0]


def test_a_ledger_entry_that_says_more_than_its_statement_is_refused() -> None:
    world = World()
    world.good(STEP)
    world.verify(STEP, rungs=2)
    said = world.events[-1]
    world.events[-1] = replace(said, facts={**said.facts, "rung": 3})
    assert unmet(world.decide(STEP, "staging")) == ["verified up to rung 3"]


def test_a_verification_a_person_signed_is_no_evidence() -> None:
    world = World()
    world.good(STEP)
    honest = next(
        sealed.statement
        for sealed in world.statements[world.id_of(STEP)]
        if sealed.statement.predicate_type == VERIFICATION
    )
    signed = world.attest(STEP, VERIFICATION, honest.predicate, world.people["deniz"])
    world.record(
        EventKind.CHECKPOINT_VERIFIED,
        STEP,
        passed=True,
        rung=3,
        attestation=str(signed),
        state_digest=None,
    )
    assert unmet(world.decide(STEP, "staging")) == ["verified up to rung 3"]


def test_an_evaluation_that_failed_is_refused_with_its_reasons() -> None:
    world = World()
    world.good(STEP)
    world.evaluate(STEP, 1.9, passed=False)
    decision = world.decide(STEP, "staging")
    assert unmet(decision) == ["evaluated and passed"]
    assert "failed: held-out loss 1.9000 against the base's 1.7016" in decision.reasons[0]


def test_an_evaluation_of_another_checkpoint_is_refused() -> None:
    world = World()
    world.good(10)
    world.commit(STEP)
    world.verify(STEP)
    borrowed = next(
        sealed.statement.predicate
        for sealed in world.statements[world.id_of(10)]
        if sealed.statement.predicate_type == EVALUATION
    )
    attestation = world.attest(STEP, EVALUATION, borrowed)
    world.record(EventKind.CHECKPOINT_EVALUATED, STEP, passed=True, attestation=str(attestation))
    assert unmet(world.decide(STEP, "staging")) == ["evaluated and passed"]


def test_an_evaluation_on_other_rows_is_refused() -> None:
    world = World()
    world.commit(STEP)
    world.verify(STEP)
    world.inputs = replace(world.inputs, dataset=digest_of("easier rows"))
    world.evaluate(STEP)
    decision = world.decide(STEP, "staging")
    assert unmet(decision) == ["evaluated and passed"]
    assert "another dataset" in decision.reasons[0]


def test_production_without_staging_is_refused() -> None:
    world = World()
    world.good(STEP)
    world.review(STEP, "selin")
    world.review(STEP, "kerem")
    assert unmet(world.decide(STEP, "production")) == ["in staging now or before"]


def test_having_been_in_staging_is_enough() -> None:
    world = approved_world()
    world.good(50)
    world.promote(50, "staging")
    assert world.history.records[world.id_of(STEP)].stages == ("candidate",)
    assert world.decide(STEP, "production").allowed


def test_one_approval_is_not_two() -> None:
    world = World()
    world.good(STEP)
    world.promote(STEP, "staging")
    world.review(STEP, "selin")
    world.review(STEP, "deniz")
    decision = world.decide(STEP, "production")
    assert decision.reasons == (
        "approved by 2 different persons, none of them the run's author: 1 of 2 (selin); "
        "that of deniz does not count: deniz is the author of the run",
    )


def test_a_standing_rejection_outweighs_any_number_of_approvals() -> None:
    world = approved_world()
    world.review(STEP, "ada", approves=False, comment="Not yet.")
    assert world.decide(STEP, "production").reasons == (
        'no rejection stands: ada rejected it: "Not yet."',
    )


def test_the_author_is_whom_the_ledger_names() -> None:
    # run.json lies unsigned in the store; who can write there must not choose who may approve.
    world = approved_world()
    world.author = "somebody-else"
    world.review(STEP, "deniz")
    decision = world.decide(STEP, "production")
    assert decision.approvals is not None
    assert "deniz" not in decision.approvals.persons


def test_a_malformed_attestation_is_an_error_not_a_pass() -> None:
    world = World()
    world.good(STEP)
    world.attest(STEP, VERIFICATION, {"passed": True})
    with pytest.raises(FormatError, match=r"attestation sha256:.*a field is missing or malformed"):
        world.decide(STEP, "staging")


def test_a_decision_becomes_a_claim_that_survives_its_statement() -> None:
    world = approved_world()
    decision = world.decide(STEP, "production")
    before = CheckpointId(digest_of("the one before"))
    claim = PromotionClaim.of(decision, replaces=before)
    assert claim.stage == "production"
    assert claim.policy == DEFAULT_POLICIES["production"].digest
    assert claim.evidence == decision.evidence
    assert len(claim.approvals) == 2
    statement = claim.to_statement(world.manifests[STEP].name)
    assert PromotionClaim.from_statement(statement) == claim
    for name, value in {"replaces": "none", "approvals": [1], "policy": None}.items():
        broken = replace(statement, predicate={**statement.predicate, name: value})
        with pytest.raises(FormatError, match="promotion"):
            PromotionClaim.from_statement(broken)
    with pytest.raises(FormatError, match="expected a statement of type"):
        PromotionClaim.from_statement(replace(statement, predicate_type=EVALUATION))


def test_a_refusal_cannot_be_signed_as_a_promotion() -> None:
    world = World()
    world.commit(STEP)
    with pytest.raises(InputError, match="a refusal cannot be signed"):
        PromotionClaim.of(world.decide(STEP, "staging"), replaces=None)
