"""What a soak is, what came of it, and what must hold of it: plain data, nothing is run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.reliability.cells import Spread
from benchmarks.reliability.kills import Moment
from benchmarks.reliability.marks import Phase
from strongroom.canonical import JsonObject
from strongroom.names import CheckpointName, StateDigest
from strongroom.training.reporting import ReportKind

EVERY_STEPS = 5
INTERVALS_A_KILL = 2
"""The run has so many save intervals for each kill: more than one launch gets through."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One soak.

    Attributes:
        supervised: whether one launch lasts through all kills, and starts its ranks again.
    """

    name: str
    spread: Spread
    moments: Sequence[Moment]
    supervised: bool = False

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return EVERY_STEPS * (INTERVALS_A_KILL * len(self.moments) + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """What a kill met, and what it cost.

    Attributes:
        last_step: the last step that was taken before it.
        resume_step: the step of the newest checkpoint after it; 0 where there is none.
    """

    moment: Moment
    phase: Phase
    last_step: int
    resume_step: int

    @property
    def lost_steps(self) -> int:
        """Steps that are taken again."""
        return self.last_step - self.resume_step

    @property
    def lost_intervals(self) -> int:
        """Save points that were passed and whose checkpoints never came to be."""
        return self.last_step // EVERY_STEPS - self.resume_step // EVERY_STEPS


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftAlone:
    """The same run, never killed: its losses by step, and the state it ended in."""

    losses: dict[int, float]
    digest: StateDigest


def by_attempt(events: Iterable[JsonObject]) -> list[list[JsonObject]]:
    """Return what was reported by each attempt of one launch."""
    attempts: list[list[JsonObject]] = [[]]
    for event in events:
        if event["kind"] == ReportKind.RESTARTING:
            attempts.append([])
        else:
            attempts[-1].append(event)
    return attempts


@dataclass(kw_only=True, slots=True)
class Soaked:
    """What came of a soak.

    Attributes:
        losses: all that were ever reported, by step.
        resumes: what each attempt that began to train said it goes on from.
        verified: the checkpoints that passed rungs 1 and 2 after a kill.
    """

    plan: Plan
    kills: list[Kill] = field(default_factory=list)
    losses: dict[int, set[float]] = field(default_factory=dict)
    resumes: list[str | None] = field(default_factory=list)
    verified: set[CheckpointName] = field(default_factory=set)
    restarts: int = 0
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def hear(
        self, events: Iterable[JsonObject], *, goes_on_from: CheckpointName | None
    ) -> int | None:
        """Take in what an attempt reported; return its last step, None where it took none.

        Args:
            events: of one attempt.
            goes_on_from: what it had to say that it goes on from.
        """
        last: int | None = None
        for event in events:
            if event["kind"] == ReportKind.STARTED:
                self.resumes.append(event["resumed_from"])
                expected = None if goes_on_from is None else str(goes_on_from)
                if event["resumed_from"] != expected:
                    self.faults.append(
                        f"attempt {event['attempt']}: expected it to go on from {expected}, "
                        f"got {event['resumed_from']}"
                    )
            if event["kind"] == ReportKind.STEP:
                last = event["step"]
                self.losses.setdefault(event["step"], set()).add(event["loss"])
        return last

    def add(self, kill: Kill) -> None:
        """Take in a kill, and say so where it cost more than it may."""
        self.kills.append(kill)
        if kill.lost_intervals > 1:
            self.faults.append(
                f"kill {len(self.kills)} ({kill.moment}): expected at most one save interval to be "
                f"lost, got {kill.lost_intervals}: from step {kill.last_step} back to "
                f"{kill.resume_step}"
            )

    def check_end(self, expected: LeftAlone, digest: StateDigest | None) -> None:
        """Say what is not as in the run that was left alone, once it has ended.

        Args:
            expected: that run.
            digest: the state that the killed run ended in; None where it did not.
        """
        if self.losses.keys() != expected.losses.keys():
            missing = sorted(expected.losses.keys() - self.losses.keys())
            self.faults.append(f"losses: expected one of every step, got none of {missing}")
        other = [step for step, got in self.losses.items() if got != {expected.losses.get(step)}]
        if other:
            self.faults.append(f"losses: steps {other} differ from the run left alone")
        if digest != expected.digest:
            self.faults.append(f"final state: expected {expected.digest}, got {digest}")
        if self.plan.supervised and self.restarts != len(self.kills):
            self.faults.append(f"expected {len(self.kills)} restarts, got {self.restarts}")

    def to_json(self) -> JsonObject:
        """Return it as the document holds it."""
        return {
            "soak": self.plan.name,
            "steps": self.plan.steps,
            "kills": len(self.kills),
            "phases": dict(Counter(kill.phase for kill in self.kills)),
            "targets": dict(Counter(kill.moment.target for kill in self.kills)),
            "attempts": len(self.resumes),
            "restarts": self.restarts,
            "checkpoints": len(self.verified),
            "lost_steps": sum(kill.lost_steps for kill in self.kills),
            "most_lost_steps": max(kill.lost_steps for kill in self.kills),
            "most_lost_intervals": max(kill.lost_intervals for kill in self.kills),
            "faults": self.faults,
            "seconds": round(self.seconds, 1),
        }
