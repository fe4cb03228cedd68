"""What the soak notes, plans and asks; whole soaks are in tests/e2e."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks.reliability.cells import Spread
from benchmarks.reliability.kills import TARGETS, Moment
from benchmarks.reliability.launcher import EVENTS, Launcher, marked_command
from benchmarks.reliability.marked_rank import SlowWriter
from benchmarks.reliability.marks import PHASES, SAVING, Marks, Notes, Phase, furthest, read_notes
from benchmarks.reliability.plans import AIMED, SLOW_S, WITHIN_S, long_plans, short_plans
from benchmarks.reliability.soaked import EVERY_STEPS, Kill, LeftAlone, Plan, Soaked, by_attempt
from strongroom.names import Attempt, CheckpointName, Digest, RunKey, StateDigest, Step
from strongroom.storage.local import LocalStorage
from strongroom.training.launching import torchrun
from strongroom.training.launching.spec import Launch, LaunchSettings

DIGEST = StateDigest(Digest.of(b"the end"))
NAME = CheckpointName(RunKey("r"), Attempt(1), Step(5))


# --- notes ----------------------------------------------------------------------------


def test_a_note_is_there_as_soon_as_it_is_made(tmp_path: Path) -> None:
    marks = Marks(tmp_path, 1)
    told: list[tuple[Phase, Phase | None]] = []
    for phase in ("starting", "restoring", "training", "staging", "shards"):
        marks.at(phase)
        (notes,) = read_notes(tmp_path)
        told.append((notes.training, notes.saving))
    assert told == [
        ("starting", None),
        ("restoring", None),
        ("training", None),
        ("training", "staging"),
        ("training", "shards"),
    ]
    marks.saved()
    (notes,) = read_notes(tmp_path)
    assert (notes.training, notes.saving) == ("training", None)
    assert (notes.rank, notes.pid, notes.agent) == (1, os.getpid(), os.getppid())
    assert notes.phases.count("shards") == 1


def test_a_rank_that_has_noted_nothing_yet_is_starting(tmp_path: Path) -> None:
    Marks(tmp_path, 0)
    assert [(note.training, note.saving) for note in read_notes(tmp_path)] == [("starting", None)]
    assert furthest([]) == "starting"


def notes(rank: int, training: Phase = "training", saving: Phase | None = None) -> Notes:
    phases = (training,) if saving is None else (training, saving)
    return Notes(
        rank=rank, pid=100 + rank, agent=99, phases=phases, saving=saving, training=training
    )


@pytest.mark.parametrize(
    ("of_ranks", "phase"),
    [
        ([notes(0), notes(1)], "training"),
        ([notes(0, "restoring"), notes(1, "starting")], "restoring"),
        ([notes(0, saving="agreeing"), notes(1, saving="shards")], "shards"),
        ([notes(0, saving="manifest"), notes(1, saving="agreeing")], "manifest"),
        ([notes(0), notes(1, saving="staging")], "staging"),
    ],
)
def test_what_a_kill_met_is_the_furthest_that_any_rank_had_come(
    of_ranks: list[Notes], phase: Phase
) -> None:
    assert furthest(of_ranks) == phase


def test_a_file_of_a_save_is_half_there_while_its_writer_waits(tmp_path: Path) -> None:
    storage, seen = LocalStorage(tmp_path), []

    def look(_seconds: float) -> None:
        half = [path.read_bytes() for path in (tmp_path / ".tmp").glob("*")]
        seen.append((half, (tmp_path / "key").exists()))

    writer = SlowWriter(storage.create_stream("key"), 1.0, lambda: None)
    with patch("time.sleep", look), writer:
        writer.write(b"half")
    assert seen == [([b"half"], False), ([], True)]


# --- moments --------------------------------------------------------------------------


def test_a_moment_has_come_when_any_rank_noted_it_often_enough() -> None:
    moment = Moment(target="rank 1", phase="shards", times=2)
    once = notes(0, saving="shards")
    twice = Notes(
        rank=1, pid=7, agent=9, phases=("shards", "shards"), saving="shards", training="training"
    )
    assert not moment.has_come([])
    assert not moment.has_come([once, notes(1)])
    assert moment.has_come([once, twice])


@pytest.mark.parametrize(
    ("target", "pid"), [("launcher", 1), ("agent", 99), ("rank 0", 100), ("rank 1", 101)]
)
def test_the_process_that_is_meant_is_hit(target: Any, pid: int) -> None:  # noqa: ANN401 -- a literal
    assert Moment(target=target, phase="training").process(1, [notes(0), notes(1)]) == pid


def test_a_moment_that_never_comes_is_told() -> None:
    moment = Moment(target="launcher", phase="ledger")
    with pytest.raises(RuntimeError, match=r"ended before Moment.*'ledger'"):
        moment.wait(lambda: [notes(0), notes(1)], lambda: True)
    with pytest.raises(RuntimeError, match="ended before"):  # both ranks must be there
        Moment(target="rank 1", phase="training").wait(lambda: [notes(0)], lambda: True)
    here = [notes(0), notes(1)]
    assert Moment(target="launcher", phase="training").wait(lambda: here, lambda: True) == here


def test_each_strategy_is_killed_more_than_fifty_times_everywhere_and_by_chance() -> None:
    plans = {plan.name: plan for plan in long_plans(1)}
    assert [*plans] == ["fsdp2", "hsdp", "zero3", "fsdp2, supervised"]
    for plan in plans.values():
        targets = Counter(moment.target for moment in plan.moments)
        phases = Counter(moment.phase for moment in plan.moments)
        assert set(phases) == {"starting", "restoring", "training", *AIMED}
        assert plan.moments[0].phase == "ledger"  # from then on there is something to restore
        assert all(0 <= m.after_s <= WITHIN_S.get(m.phase, SLOW_S) for m in plan.moments)
        assert set(targets) == set(TARGETS) - ({"launcher"} if plan.supervised else set())
        if not plan.supervised:
            assert len(plan.moments) == 56
            assert set(targets.values()) == {14}
    assert long_plans(1) == long_plans(1)
    for one, other in zip(long_plans(1), long_plans(2), strict=True):
        assert one.moments != other.moments
    orders = [[moment.phase for moment in plan.moments] for plan in plans.values()]
    assert orders[0] != orders[1] != sorted(orders[1])


def test_the_short_soak_meets_what_matters_most() -> None:
    plans = short_plans(1)
    phases = {moment.phase for plan in plans for moment in plan.moments}
    assert phases >= {"training", "staging", "shards", "manifest"}  # as issue and page have them
    assert {moment.target for plan in plans for moment in plan.moments} == set(TARGETS)
    assert {plan.spread.strategy for plan in plans} == {"fsdp2", "zero3"}
    assert any(plan.supervised for plan in plans)
    assert short_plans(1) != short_plans(2)


# --- what came of it ------------------------------------------------------------------

PLAN = Plan(name="try", spread=Spread("fsdp2", 2), moments=[Moment(target="agent", phase="index")])


def kill(last_step: int, resume_step: int, phase: Phase = "training") -> Kill:
    return Kill(moment=PLAN.moments[0], phase=phase, last_step=last_step, resume_step=resume_step)


def started(resumed_from: str | None) -> dict[str, Any]:
    return {"kind": "training.started", "attempt": 2, "resumed_from": resumed_from}


def step(number: int, loss: float) -> dict[str, Any]:
    return {"kind": "training.step", "step": number, "loss": loss}


def test_a_run_outlasts_its_kills() -> None:
    assert PLAN.steps == 3 * EVERY_STEPS


@pytest.mark.parametrize(
    ("last_step", "resume_step", "steps", "intervals"),
    [(5, 5, 0, 0), (9, 5, 4, 0), (10, 5, 5, 1), (12, 5, 7, 1), (4, 0, 4, 0), (10, 0, 10, 2)],
)
def test_what_a_kill_cost(last_step: int, resume_step: int, steps: int, intervals: int) -> None:
    cost = kill(last_step, resume_step)
    assert (cost.lost_steps, cost.lost_intervals) == (steps, intervals)
    soaked = Soaked(plan=PLAN)
    soaked.add(cost)
    assert (soaked.faults == []) is (intervals <= 1)


def test_an_attempt_must_go_on_from_the_newest_checkpoint() -> None:
    soaked = Soaked(plan=PLAN)
    assert soaked.hear([started(None), step(1, 2.0), step(2, 1.0)], goes_on_from=None) == 2
    assert soaked.hear([started(str(NAME))], goes_on_from=NAME) is None
    assert soaked.hear([], goes_on_from=NAME) is None
    assert soaked.faults == []
    soaked.hear([step(2, 1.5)], goes_on_from=NAME)
    assert soaked.losses == {1: {2.0}, 2: {1.0, 1.5}}  # all there ever were
    soaked.hear([started(None)], goes_on_from=NAME)
    assert soaked.faults == [f"attempt 2: expected it to go on from {NAME}, got None"]
    assert soaked.resumes == [None, str(NAME), None]


def ended(losses: dict[int, set[float]], *, restarts: int = 0, supervised: bool = False) -> Soaked:
    plan = Plan(name="try", spread=PLAN.spread, moments=PLAN.moments, supervised=supervised)
    soaked = Soaked(plan=plan, losses=losses, restarts=restarts)
    soaked.add(kill(5, 5))
    return soaked


@pytest.mark.parametrize(
    ("soaked", "digest", "fault"),
    [
        (ended({1: {2.0}, 2: {1.0}}), DIGEST, None),
        (ended({1: {2.0}, 2: {1.0}}), None, "final state"),
        (ended({1: {2.0}, 2: {1.0}}), StateDigest(Digest.of(b"other")), "final state"),
        (ended({1: {2.0}}), DIGEST, "losses: expected one of every step, got none of [2]"),
        (ended({1: {2.0}, 2: {1.5}}), DIGEST, "losses: steps [2] differ"),
        # A step that was taken twice must come out the same twice.
        (ended({1: {2.0, 2.5}, 2: {1.0}}), DIGEST, "losses: steps [1] differ"),
        (ended({1: {2.0}, 2: {1.0}}, supervised=True), DIGEST, "expected 1 restarts, got 0"),
        (ended({1: {2.0}, 2: {1.0}}, supervised=True, restarts=1), DIGEST, None),
    ],
)
def test_what_differs_from_the_run_left_alone_is_told(
    soaked: Soaked, digest: StateDigest | None, fault: str | None
) -> None:
    soaked.check_end(LeftAlone(losses={1: 2.0, 2: 1.0}, digest=DIGEST), digest)
    assert len(soaked.faults) == (fault is not None)
    assert fault is None or soaked.faults[0].startswith(fault)


def test_the_document_counts_what_was_met() -> None:
    soaked = Soaked(plan=PLAN, verified={NAME}, resumes=[None, str(NAME)])
    soaked.add(kill(9, 5, "shards"))
    soaked.add(kill(10, 5, "shards"))
    soaked.add(kill(7, 5, "training"))
    document = soaked.to_json()
    assert document["phases"] == {"shards": 2, "training": 1}
    assert document["targets"] == {"agent": 3}
    assert (document["lost_steps"], document["most_lost_steps"]) == (11, 5)
    assert (document["most_lost_intervals"], document["checkpoints"]) == (1, 1)
    assert json.loads(json.dumps(document)) == document


# --- the launcher ---------------------------------------------------------------------


def test_events_are_told_apart_by_attempt() -> None:
    restarting = {"kind": "training.restarting"}
    assert by_attempt([]) == [[]]
    assert by_attempt([step(1, 2.0), restarting, restarting, step(2, 1.0)]) == [
        [step(1, 2.0)],
        [],
        [step(2, 1.0)],
    ]


class Ended(Launcher):
    """A launcher that was killed before it had read everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder


def test_what_a_killed_launcher_had_not_read_is_heard_once(tmp_path: Path) -> None:
    def write(file: Path, events: list[dict[str, Any]], rest: str = "") -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(event) + "\n" for event in events) + rest)

    write(tmp_path / EVENTS, [started(None), step(1, 2.0)], rest='{"kind": "trai')
    left = tmp_path / "strongroom-training-x" / "events.jsonl"
    write(left, [started(None), step(1, 2.0), step(2, 1.0)], rest='{"ki')
    assert Ended(tmp_path).events() == [started(None), step(1, 2.0), step(2, 1.0)]


def test_torchrun_starts_the_rank_that_notes_where_it_stands() -> None:
    spec = Launch(
        store_url="nowhere",
        run=RunKey("r"),
        keys=Path("/keys"),
        cache=Path("/cache"),
        settings=LaunchSettings(placement=PLAN.spread.placement("lora")),
    )
    plain = torchrun.command(spec, Path("/events"))
    marked = marked_command(Path("/notes"), "0.5", "0.25")(spec, Path("/events"))
    place = plain.index("strongroom.training")
    assert (plain[place - 1], plain[:place]) == ("-m", marked[:place])
    assert marked[place:] == [
        *("benchmarks.reliability.marked_rank", "/notes", "0.5", "0.25"),
        *plain[place + 1 :],
    ]


def test_phases_of_a_save_come_after_those_of_training() -> None:
    assert [*PHASES][-len(SAVING) :] == [*SAVING]
    assert set(AIMED) == set(SAVING) - {"agreeing"}
