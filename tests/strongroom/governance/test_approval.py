"""Who may approve what: each way an approval fails to count, one test each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strongroom.governance.approval import ApprovalVerdict
from strongroom.ledger.events import EventKind
from strongroom.names import Digest
from tests.support.governed import World, digest_of, signer_of

STEP = 40


@pytest.fixture
def world() -> World:
    made = World()
    made.good(10)
    made.good(STEP, 1.07)
    made.promote(STEP, "staging")
    return made


def verdict(world: World) -> ApprovalVerdict:
    found = world.decide(STEP, "production").approvals
    assert found is not None
    return found


def reasons(world: World) -> list[str]:
    return [reason for refused in verdict(world).refused for reason in refused.reasons]


def test_two_people_who_are_not_the_author_count(world: World) -> None:
    selin = world.review(STEP, "selin")
    kerem = world.review(STEP, "kerem")
    found = verdict(world)
    assert found.persons == ("selin", "kerem")
    assert [item.attestation for item in found.counted] == [selin, kerem]
    assert not found.refused
    assert not found.rejections


def test_the_author_does_not_count(world: World) -> None:
    world.review(STEP, "deniz")
    assert verdict(world).counted == ()
    assert reasons(world) == ["deniz is the author of the run"]


def test_the_author_does_not_count_when_the_run_names_an_actor() -> None:
    world = World(author="person:deniz")
    world.good(STEP)
    world.review(STEP, "deniz")
    assert verdict(world).counted == ()


def test_one_person_counts_once_and_the_later_word_is_taken(world: World) -> None:
    world.review(STEP, "selin")
    later = world.review(STEP, "selin")
    found = verdict(world)
    assert [item.attestation for item in found.counted] == [later]
    assert reasons(world) == ["the same person approved again later, and counts once"]


def test_a_person_with_two_keys_is_one_person(world: World) -> None:
    from strongroom.signing.keyring import Holder, Role

    second = signer_of("selin's second key")
    world.keyring = world.keyring.with_holder(Holder.of("selin", Role.PERSON, second))
    world.review(STEP, "selin")
    world.review(STEP, "selin", signer=second)
    assert verdict(world).persons == ("selin",)


def test_a_service_key_never_approves(world: World) -> None:
    service = f"service:{world.service.key_id}"
    world.review(STEP, "selin", signer=world.service, actor=service)
    assert verdict(world).counted == ()
    assert reasons(world) == [f"{service} is a service: services attest, they never review"]


def test_a_service_cannot_sign_in_a_person_s_name(world: World) -> None:
    world.review(STEP, "selin", signer=world.service)
    assert verdict(world).counted == ()
    assert "services attest, they never review" in reasons(world)[0]


def test_one_person_cannot_sign_in_another_s_name(world: World) -> None:
    world.review(STEP, "kerem", signer=world.people["selin"])
    assert verdict(world).counted == ()
    assert reasons(world) == ["the ledger names kerem, the signature is that of selin"]


def test_an_approval_whose_statement_is_gone_does_not_count(world: World) -> None:
    world.review(STEP, "selin")
    world.statements[world.id_of(STEP)].pop()
    assert verdict(world).counted == ()
    assert reasons(world) == ["its signed statement is missing, or signed by no known key"]


def test_an_approval_the_ledger_never_recorded_does_not_count(world: World) -> None:
    world.review(STEP, "selin")
    world.events.pop()
    assert not verdict(world).counted
    assert not verdict(world).refused


def test_an_approval_expires(world: World) -> None:
    world.review(STEP, "selin", days=2)
    world.wait(1.9)
    assert verdict(world).persons == ("selin",)
    world.wait(0.2)
    assert verdict(world).counted == ()
    assert "it expired at 2026-02-02T" in reasons(world)[0]


def test_an_approval_that_runs_too_long_does_not_count(world: World) -> None:
    world.review(STEP, "selin", days=400)
    assert verdict(world).counted == ()
    assert "longer than the 30 days the policy allows" in reasons(world)[0]


def test_an_approval_is_for_one_policy(world: World) -> None:
    world.review(STEP, "selin", policy=digest_of("an older policy"))
    assert verdict(world).counted == ()
    assert "it was given under policy" in reasons(world)[0]


def test_an_approval_is_for_one_checkpoint(world: World) -> None:
    borrowed = world.review(10, "selin")
    sealed = next(s for s in world.statements[world.id_of(10)] if s.digest == borrowed)
    world.statements[world.id_of(STEP)].append(sealed)
    world.events[-1] = replace(
        world.events[-1], checkpoint_id=world.id_of(STEP), checkpoint=world.manifests[STEP].name
    )
    assert verdict(world).counted == ()
    assert "the ledger says checkpoint" in reasons(world)[0]


def test_an_approval_is_for_one_stage(world: World) -> None:
    world.review(STEP, "selin", stage="staging")
    assert not verdict(world).counted
    assert not verdict(world).refused
    borrowed = world.events.pop()
    world.events.append(
        replace(borrowed, facts={**borrowed.facts, "stage": "production"}),
    )
    assert verdict(world).counted == ()
    assert "the ledger says stage production, the signed statement says staging" in reasons(world)


def test_the_signed_expiry_is_the_one_that_counts(world: World) -> None:
    world.review(STEP, "selin", days=2)
    said = world.events.pop()
    world.events.append(replace(said, facts={**said.facts, "expires": "2026-02-20T00:00:00Z"}))
    assert verdict(world).counted == ()
    assert "the ledger says expiry" in reasons(world)[0]


def test_an_approval_that_names_no_evidence_does_not_count(world: World) -> None:
    world.review(STEP, "selin", evidence=())
    assert reasons(world) == [
        "it does not name the verification that is relied on now",
        "it does not name the evaluation that is relied on now",
    ]


def test_a_new_evaluation_makes_approvals_void(world: World) -> None:
    world.review(STEP, "selin")
    world.evaluate(STEP, 1.05)
    assert verdict(world).counted == ()
    assert reasons(world) == ["it does not name the evaluation that is relied on now"]


def test_verifying_again_does_not(world: World) -> None:
    world.review(STEP, "selin")
    world.verify(STEP)
    assert verdict(world).persons == ("selin",)


def test_a_rejection_blocks_and_withdraws_the_person_s_approval(world: World) -> None:
    world.review(STEP, "selin")
    rejection = world.review(STEP, "selin", approves=False, comment="The rows were not curated.")
    found = verdict(world)
    assert found.counted == ()
    assert [(r.person, r.attestation, r.comment) for r in found.rejections] == [
        ("selin", rejection, "The rows were not curated.")
    ]
    assert reasons(world) == ["the same person rejected later"]


def test_a_rejection_stands_until_the_same_person_approves(world: World) -> None:
    world.review(STEP, "selin", approves=False)
    world.review(STEP, "kerem")
    world.review(STEP, "ada")
    assert [r.person for r in verdict(world).rejections] == ["selin"]
    world.wait(400)
    assert [r.person for r in verdict(world).rejections] == ["selin"]
    world.review(STEP, "selin")
    assert verdict(world).rejections == ()
    assert "taken back: the same person approved later" in reasons(world)


def test_the_author_may_reject_and_take_it_back_yet_never_counts(world: World) -> None:
    world.review(STEP, "deniz", approves=False)
    assert [r.person for r in verdict(world).rejections] == ["deniz"]
    world.review(STEP, "deniz")
    assert verdict(world).rejections == ()
    assert verdict(world).counted == ()


def test_a_rejection_whose_statement_is_gone_still_blocks(world: World) -> None:
    world.review(STEP, "selin", approves=False)
    world.statements[world.id_of(STEP)].pop()
    assert [r.person for r in verdict(world).rejections] == ["selin"]


def test_an_invented_approval_does_not_lift_a_rejection(world: World) -> None:
    world.review(STEP, "selin", approves=False)
    world.record(
        EventKind.CHECKPOINT_APPROVED,
        STEP,
        actor="person:selin",
        stage="production",
        policy=str(world.decide(STEP, "production").policy.digest),
        attestation=str(digest_of("nothing")),
        expires="2026-02-14T00:00:00Z",
    )
    assert [r.person for r in verdict(world).rejections] == ["selin"]


def test_an_old_approval_recorded_again_does_not_lift_a_rejection(world: World) -> None:
    world.review(STEP, "selin")
    approval = world.events[-1]
    world.review(STEP, "selin", approves=False)
    world.events.append(replace(approval, time=world.now))
    assert [r.person for r in verdict(world).rejections] == ["selin"]
    assert verdict(world).counted == ()
    assert "the same signed statement was recorded before" in reasons(world)


def test_a_rejection_for_one_stage_leaves_the_other_alone(world: World) -> None:
    world.review(STEP, "selin", stage="production", approves=False)
    staging = world.decide(STEP, "staging").approvals
    assert staging is not None
    assert staging.rejections == ()


def test_a_malformed_statement_does_not_count(world: World) -> None:
    from strongroom.signing.statement import APPROVAL

    attestation: Digest = world.attest(
        STEP, APPROVAL, {"stage": "production"}, world.people["selin"]
    )
    world.record(
        EventKind.CHECKPOINT_APPROVED,
        STEP,
        actor="person:selin",
        stage="production",
        policy=str(world.decide(STEP, "production").policy.digest),
        attestation=str(attestation),
        expires="2026-02-14T00:00:00Z",
    )
    assert verdict(world).counted == ()
    assert "a field is missing or malformed" in reasons(world)[0]
