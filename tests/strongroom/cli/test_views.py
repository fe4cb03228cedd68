from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strongroom.checkpoint.attempts import AttemptRecord
from strongroom.checkpoint.catalogue import Ignored
from strongroom.cli.output import jsonable
from strongroom.cli.render import plain
from strongroom.cli.views.audit import report_blocks, report_document
from strongroom.cli.views.dossier import dossier_blocks, dossier_document
from strongroom.cli.views.evaluation import evaluation_blocks
from strongroom.cli.views.lineage import lineage_document, lineage_tree
from strongroom.cli.views.listing import id_digits, listing_blocks
from strongroom.cli.views.verification import failure_of
from strongroom.cli.views.verification import report_blocks as ladder_blocks
from strongroom.custody.evaluate import Evaluation
from strongroom.custody.listing import Line, StoreListing
from strongroom.errors import IntegrityError, StrongroomError, VerificationError
from strongroom.evaluation.report import EvaluationReport, Verdict
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, RunKey, Step
from strongroom.verification.ladder import Rung, RungResult, VerificationReport
from tests.support.governed import World, digest_of

NOW = "2026-01-31T12:00:00.000Z"
NAME = CheckpointName(RunKey("chat"), Attempt(1), Step(10))


@pytest.fixture
def world() -> World:
    """A run that was resumed from step 10, with one damaged and one promoted checkpoint."""
    world = World()
    world.good(10)
    world.good(20, 1.1)
    world.launch(resumed_from=10)
    world.commit(30)
    world.verify(30, rungs=1, finding="digest differs in __0_0.distcp")
    world.promote(20, "staging")
    world.review(20, "selin", comment="reads well")
    world.review(20, "deniz")
    return world


# --- ls -------------------------------------------------------------------------------


def line(step: int, attempt: int = 1, run: str = "chat", **changes: Any) -> Line:  # noqa: ANN401 -- fields
    name = CheckpointName(RunKey(run), Attempt(attempt), Step(step))
    fields: dict[str, Any] = {
        "name": name,
        "checkpoint_id": CheckpointId(digest_of(str(name))),
        "created": "2026-01-31T11:58:00.000Z",
        "num_bytes": 12_300_000,
        "metrics": {"train_loss": 1.31},
        "recorded": True,
        "verified": None,
        "rung": None,
        "quarantined": None,
        "evaluated": None,
        "report": None,
        "stages": ("candidate",),
    }
    return Line(**{**fields, **changes})


def listed(*lines: Line, ignored: tuple[Ignored, ...] = ()) -> list[str]:
    listing = StoreListing(lines=lines, ignored=ignored)
    return plain(listing_blocks(listing, now=NOW, empty="nothing yet")).splitlines()


def test_the_list_is_sorted_by_run_and_step() -> None:
    shown = listed(line(100), line(20), line(3, run="a"))
    assert [row.split()[0] for row in shown] == ["CHECKPOINT", "a/3", "chat/20", "chat/100"]


def test_a_row_says_how_far_a_checkpoint_has_come() -> None:
    first = line(10)
    report = EvaluationReport(
        checkpoint_id=first.checkpoint_id,
        dataset=digest_of("d"),
        base_model=digest_of("b"),
        num_rows=1,
        num_tokens=1,
        loss=1.2,
        bits_per_byte=1.0,
        base_loss=1.7,
        base_bits_per_byte=1.5,
    )
    done = line(
        20, verified=True, rung=3, evaluated=True, report=report, stages=("candidate", "staging")
    )
    _, new, old = listed(first, done)
    assert new.split() == [
        *("chat/10", first.checkpoint_id.hex[:8], "2m", "12.3", "MB", "1.3100"),
        *("-", "-", "-", "candidate"),
    ]
    assert old.split()[5:] == ["1.3100", "1.2000", "rung", "3", "passed", "staging"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verified": False, "rung": 0}, "failed"),
        ({"verified": False, "rung": 0, "quarantined": "damaged"}, "quarantined"),
        ({"recorded": False, "stages": ()}, "not in ledger"),
        ({"verified": True, "rung": 3, "evaluated": False}, "failed"),
    ],
)
def test_a_row_says_what_is_wrong(changes: dict[str, Any], said: str) -> None:
    assert said in listed(line(10, **changes))[1]


def test_an_older_attempt_is_named_as_such() -> None:
    _, old, new = listed(line(10, attempt=2), line(10))
    assert old.startswith("chat/10 (attempt-0001)")
    assert new.startswith("chat/10  ")


def test_ids_are_as_long_as_it_takes_to_tell_them_apart() -> None:
    near = [Digest("ab" * 10 + end * 44) for end in "01"]
    assert id_digits(near) == 21
    assert id_digits([digest_of("a"), digest_of("b")]) == 8
    assert id_digits([]) == 8
    assert id_digits([near[0], near[0]]) == 8


def test_what_is_ignored_is_said_with_its_reason() -> None:
    ignored = Ignored(folder="runs/chat/attempt-0001/step-00000020", reason="unfinished")
    assert listed(ignored=(ignored,)) == [
        "nothing yet",
        "ignored: runs/chat/attempt-0001/step-00000020: unfinished",
    ]


# --- show, lineage, audit -------------------------------------------------------------


def test_show_has_every_section_and_what_each_must_say(world: World) -> None:
    shown = plain(dossier_blocks(world.audit(20)))
    for section in ("contents", "made from", "verification", "evaluation", "stages", "events"):
        assert f"\n{section}\n" in shown
    for fact in (
        str(world.id_of(20)),
        str(world.inputs.dataset),
        "rung 3",
        "1.1000 (base model: 1.7016)",
        "reads well",
        "no: deniz is the author of the run",
        "checkpoint.promoted",
    ):
        assert fact in shown


def test_show_of_a_quarantined_checkpoint_says_so_first_and_why(world: World) -> None:
    shown = plain(dossier_blocks(world.audit(30)))
    assert "Quarantined" in shown.splitlines()[0]
    assert "digest differs in __0_0.distcp" in shown


def test_show_of_an_untouched_checkpoint_says_what_to_do(world: World) -> None:
    world.commit(50)
    shown = plain(dossier_blocks(world.audit(50)))
    assert "strongroom verify support-chat-2026-01-31/50" in shown
    assert "strongroom evaluate support-chat-2026-01-31/50" in shown


def test_show_without_a_manifest_shows_what_the_ledger_knows(world: World) -> None:
    record = world.audit(20, manifest=None, faults=("The manifest cannot be read: gone",))
    shown = plain(dossier_blocks(record))
    assert "The manifest cannot be read: gone" in shown
    assert dossier_document(record)["manifest"] is None


def test_show_says_how_an_attempt_computed_and_why_it_is_not_exact(world: World) -> None:
    attempt = AttemptRecord(
        run=world.run_key,
        attempt=1,
        placement={"strategy": "zero3", "world_size": 2, "replicas": 1},
        environment={"device": "NVIDIA H200", "torch": "2.13.0"},
        inexact=("world_size 4 -> 2: sums are rounded in another order",),
    )
    shown = plain(dossier_blocks(world.audit(20, attempt=attempt)))
    for fact in ("zero3, 1 replica(s)", "NVIDIA H200", "world_size 4 -> 2: sums are rounded"):
        assert fact in shown
    older = replace(attempt, placement={}, environment={}, inexact=())
    shown = plain(dossier_blocks(world.audit(20, attempt=older)))
    for words in ("spread by", "computed on", "not exact"):
        assert words not in shown


def test_show_as_json_holds_manifest_run_and_events_in_full(world: World) -> None:
    document = json.loads(json.dumps(jsonable(dossier_document(world.audit(20)))))
    assert document["manifest"]["step"] == 20
    assert document["run"]["author"] == "deniz"
    assert [review["counts"] for review in document["reviews"]] == [True, False]
    assert all(event["proved"] for event in document["events"])
    assert document["events"][-1]["kind"] == "checkpoint.approved"
    assert {item["stage"]: item["allowed"] for item in document["decisions"]}["production"] is False


def test_a_resumed_attempt_hangs_under_the_checkpoint_it_came_from(world: World) -> None:
    lineage = world.audit(20).lineage
    assert lineage is not None
    shown = plain([lineage_tree(lineage)])
    marked = [text for text in shown.splitlines() if "<- this one" in text]
    assert len(marked) == 1
    assert "step 20" in marked[0]
    paths = {
        text.strip("|`- ").split("  ")[0]: text.index(text.strip("|`- "))
        for text in shown.splitlines()
    }
    order = list(paths)
    assert order.index("attempt 2") == order.index("checkpoint step 10") + 1
    assert paths["attempt 2"] > paths["checkpoint step 10"] > paths["attempt 1"]
    assert paths["checkpoint step 30"] > paths["attempt 2"]
    assert order[-1] == "stage staging"


def test_lineage_as_json_is_a_graph_whose_edges_join_its_nodes(world: World) -> None:
    lineage = world.audit(20).lineage
    assert lineage is not None
    document = json.loads(json.dumps(jsonable(lineage_document(lineage))))
    keys = {node["key"] for node in document["nodes"]}
    assert document["subject"] == str(world.id_of(20))
    assert all({edge["source"], edge["target"]} <= keys for edge in document["edges"])


def test_an_audit_is_said_in_short_with_its_file(world: World) -> None:
    record = world.audit(20)
    shown = plain(report_blocks(record, Path("out.html")))
    assert shown.startswith("support-chat-2026-01-31/20: In staging")
    assert str(Path("out.html").absolute()) in shown
    assert report_document(record, Path("out.html"))["answers"]["Is it intact?"].startswith("Yes")


# --- verify, evaluate -----------------------------------------------------------------

DAMAGE = IntegrityError(
    "chunk digest differs", file="f.distcp", tensor="w", offset=704, expected="a", got="b"
)


def ladder(*faults: StrongroomError, at: Rung = Rung.BYTES) -> VerificationReport:
    results = [RungResult(rung=rung, seconds=0.5, findings=()) for rung in Rung if rung < at]
    last = RungResult(rung=at, seconds=0.25, findings=tuple(map(str, faults)), faults=tuple(faults))
    return VerificationReport(
        name=NAME, checkpoint_id=None, rungs=(*results, last), state_digest=None
    )


def test_a_checkpoint_that_holds_is_one_line() -> None:
    assert plain(list(ladder_blocks(ladder(at=Rung.STRUCTURE)))) == (
        "chat/10: holds (rung 1 bytes 0.50 s, rung 2 structure 0.25 s)\n"
    )
    assert failure_of([ladder()]) is None


def test_every_finding_is_shown_with_its_place_and_what_became_of_it() -> None:
    shown = plain(list(ladder_blocks(ladder(DAMAGE, VerificationError("other thing")))))
    assert "f.distcp, tensor w, byte offset 704" in shown
    assert "other thing" in shown
    assert "quarantined" in shown


def test_damage_anywhere_decides_the_exit_code() -> None:
    whole, other, damaged = ladder(), ladder(VerificationError("x"), at=Rung.LOAD), ladder(DAMAGE)
    assert failure_of([whole, other, damaged]) is DAMAGE
    assert isinstance(failure_of([whole, other]), VerificationError)


def test_an_evaluation_says_every_rule_and_the_change() -> None:
    report = EvaluationReport(
        checkpoint_id=CheckpointId(digest_of("c")),
        dataset=digest_of("d"),
        base_model=digest_of("b"),
        num_rows=64,
        num_tokens=2187,
        loss=float("nan"),
        bits_per_byte=1.0,
        base_loss=1.7,
        base_bits_per_byte=1.5,
    )
    verdict = Verdict(passed=False, reasons=("failed: a metric is not a finite number",))
    shown = plain(evaluation_blocks(Evaluation(report=report, verdict=verdict), NAME))
    assert "chat/10: failed on 64 rows" in shown
    assert "not a finite number" in shown
    assert "-0.5000" in shown
