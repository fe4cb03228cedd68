from __future__ import annotations

from dataclasses import replace

import pytest

from strongroom.errors import UnknownNameError
from strongroom.governance.audit import entries_about, gather
from strongroom.governance.policy import DEFAULT_POLICIES
from strongroom.ledger.events import EventKind
from strongroom.names import CheckpointId
from strongroom.signing.statement import PROMOTION
from tests.support.governed import World, digest_of

STEP = 40


@pytest.fixture
def world() -> World:
    made = World()
    made.good(10, 1.41)
    made.good(STEP, 1.07)
    made.promote(STEP, "staging")
    made.review(STEP, "deniz")
    made.review(STEP, "selin", comment="Read and tried.")
    made.review(STEP, "kerem")
    made.promote(STEP, "production")
    return made


def test_a_good_checkpoint_is_explained_without_a_fault(world: World) -> None:
    record = world.audit(STEP)
    assert record.faults == ()
    assert [entry.fault for entry in record.entries] == [""] * len(record.entries)
    assert record.record.stages == ("candidate", "staging", "production")
    assert [decision.policy.stage for decision in record.decisions] == ["staging", "production"]
    assert record.verification is not None
    assert record.evaluation is not None
    assert record.evaluation.report.loss == 1.07
    assert [(p.record.name.step.number, p.subject) for p in record.series] == [
        (10, False),
        (STEP, True),
    ]
    assert [p.report.loss for p in record.series if p.report] == [1.41, 1.07]
    assert record.lineage is not None
    assert record.lineage.subject.digest == world.id_of(STEP)


def test_the_entries_are_the_run_s_creation_and_all_about_the_checkpoint(world: World) -> None:
    record = world.audit(STEP)
    kinds = [entry.event.kind for entry in record.entries]
    assert kinds[0] is EventKind.RUN_CREATED
    assert all(entry.event.checkpoint_id == world.id_of(STEP) for entry in record.entries[1:])
    assert [e.index for e in record.entries] == list(
        entries_about(world.history, world.id_of(STEP))
    )


def test_reviews_say_whether_they_count(world: World) -> None:
    reviews = {r.recorded.fact.actor: r for r in world.audit(STEP).reviews}
    assert reviews["person:selin"].counts
    assert reviews["person:selin"].said is not None
    assert reviews["person:selin"].said.comment == "Read and tried."
    assert not reviews["person:deniz"].counts
    assert reviews["person:deniz"].reasons == ("deniz is the author of the run",)


def test_tensors_are_summed_up_by_what_they_are_for(world: World) -> None:
    groups = {group.name: group for group in world.audit(STEP).tensors}
    assert groups["model"].num_tensors == 2
    assert groups["model"].num_elements == 2 * 8 * 576
    assert groups["model"].num_bytes == 2 * 8 * 576 * 2
    assert groups["optim"].dtypes == ("float32",)


def test_a_promotion_is_decided_again_as_of_its_own_moment(world: World) -> None:
    world.wait(60)
    record = world.audit(STEP)
    assert not next(d for d in record.decisions if d.policy.stage == "production").allowed
    assert [move.faults for move in record.promotions] == [(), ()]


def promote_past_the_rules(world: World) -> None:
    policy = DEFAULT_POLICIES["production"]
    attestation = world.attest(
        STEP,
        PROMOTION,
        {
            "checkpoint_id": str(world.id_of(STEP)),
            "stage": "production",
            "policy": str(policy.digest),
            "evidence": [],
            "approvals": [],
            "replaces": None,
        },
    )
    world.record(
        EventKind.CHECKPOINT_PROMOTED,
        STEP,
        stage="production",
        policy=str(policy.digest),
        attestation=str(attestation),
        replaces=None,
    )


def test_a_promotion_that_was_written_past_the_rules_is_found() -> None:
    world = World()
    world.good(STEP)
    promote_past_the_rules(world)
    rules = [
        "in staging now or before",
        "approved by 2 different persons, none of them the run's author",
    ]
    (move,) = world.audit(STEP).promotions
    assert [reason.partition(":")[0] for reason in move.faults] == rules

    # What came later does not heal it.
    world.promote(STEP, "staging")
    world.review(STEP, "selin")
    world.review(STEP, "kerem")
    early, _ = world.audit(STEP).promotions
    assert [reason.partition(":")[0] for reason in early.faults] == rules


def test_a_promotion_without_its_statement_or_under_an_unknown_policy_is_found(
    world: World,
) -> None:
    record = world.audit(STEP, statements={})
    assert all("its signed statement is missing" in move.faults for move in record.promotions)
    known = {"staging": DEFAULT_POLICIES["staging"]}
    record = gather(world.id_of(STEP), world.source(STEP), known)
    assert record.promotions[0].faults == ()
    assert "is not known here" in record.promotions[1].faults[0]


def test_a_promotion_statement_that_says_something_else_is_found(world: World) -> None:
    said = world.events[-1]
    other = next(
        s.digest
        for s in world.statements[world.id_of(STEP)]
        if s.statement.predicate_type == PROMOTION
    )
    world.events[-1] = replace(said, facts={**said.facts, "attestation": str(other)})
    faults = world.audit(STEP).promotions[-1].faults
    assert faults == ("its signed statement says something else than the ledger",)


def test_an_entry_without_a_proof_or_with_another_s_is_told(world: World) -> None:
    source = world.source(STEP)
    record = world.audit(STEP, proofs=[])
    assert {entry.fault for entry in record.entries} == {"there is no inclusion proof for it"}

    first, second, *rest = source.proofs
    swapped = [replace(first, entry=second.entry), second, *rest]
    faults = [entry.fault for entry in world.audit(STEP, proofs=swapped).entries]
    assert faults[0]
    assert not any(faults[1:])

    altered = list(world.events)
    altered[first.index] = replace(altered[first.index], time="2020-01-01T00:00:00.000Z")
    faults = [entry.fault for entry in world.audit(STEP, events=altered).entries]
    assert faults[0] == "its proof is about another event"


def test_a_proof_of_another_tree_head_is_told(world: World) -> None:
    older = world.source(STEP)
    world.commit(50)
    record = world.audit(STEP, proofs=older.proofs)
    assert {entry.fault for entry in record.entries} == {"its proof belongs to another tree head"}


def test_a_run_record_that_contradicts_the_ledger_is_told(world: World) -> None:
    run = world.run_record()
    forged = replace(run, author="nobody", inputs=replace(run.inputs, dataset=digest_of("other")))
    assert world.audit(STEP, run=forged).faults == (
        "The run's record names other inputs than the ledger does.",
        "The run's record names 'nobody' as author, the ledger 'deniz'; the ledger is believed.",
    )
    edited = replace(run, config={**run.config, "save": {}})
    assert world.audit(STEP, run=edited).faults == (
        "The configuration in the run's record is not the one its digest names.",
    )


def test_what_cannot_be_read_is_a_fault_and_not_an_error(world: World) -> None:
    record = world.audit(STEP, run=None, manifest=None, faults=("attestation x is damaged",))
    assert record.faults == (
        "attestation x is damaged",
        "The checkpoint's manifest cannot be read.",
        "The run's record cannot be read.",
    )
    assert record.tensors == ()


def test_another_manifest_in_its_place_is_told(world: World) -> None:
    record = world.audit(STEP, manifest=world.manifests[10])
    assert "The store holds the manifest of" in record.faults[0]


def test_a_run_the_ledger_never_saw_leaves_no_lineage(world: World) -> None:
    del world.events[1]
    record = world.audit(STEP)
    assert record.run_fact is None
    assert record.lineage is None
    assert "The ledger has no entry for the run that made this checkpoint." in record.faults


def test_the_signers_are_those_who_had_a_part_in_it(world: World) -> None:
    assert [holder.name for holder in world.audit(STEP).signers] == [
        "deniz",
        "kerem",
        "selin",
        "service",
    ]
    assert [holder.name for holder in world.audit(10).signers] == ["service"]


def test_a_checkpoint_the_ledger_does_not_know_is_refused(world: World) -> None:
    with pytest.raises(UnknownNameError, match="the ledger says nothing about it"):
        gather(CheckpointId(digest_of("no such")), world.source(STEP))
