"""What the ledger's events add up to: a pure fold from events to the state of every checkpoint.

Invariant: the same events give the same history, whoever computes it; there is no other record of
a checkpoint's state.

An event may name a checkpoint whose commit was never recorded (a crash came between the manifest
and the ledger): its record stands, with `committed_at` None, so that a quarantine is never lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from strongroom.ledger.events import Event
from strongroom.ledger.facts import (
    CANDIDATE,
    PRODUCTION,
    STAGES,
    STAGING,
    ApprovedFact,
    AttemptFact,
    CheckpointFact,
    CommittedFact,
    EvaluatedFact,
    Fact,
    PromotedFact,
    QuarantinedFact,
    RefusedFact,
    RejectedFact,
    RunFact,
    VerifiedFact,
    fact_of,
)
from strongroom.names import CheckpointId, CheckpointName, RunKey

__all__ = [
    "CANDIDATE",
    "PRODUCTION",
    "STAGES",
    "STAGING",
    "ApprovedFact",
    "AttemptFact",
    "CheckpointRecord",
    "CommittedFact",
    "EvaluatedFact",
    "History",
    "PromotedFact",
    "QuarantinedFact",
    "RefusedFact",
    "RejectedFact",
    "RunFact",
    "VerifiedFact",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRecord:
    """Everything the ledger says about one checkpoint.

    Attributes:
        committed_at: ledger index of the commit; None where the commit is not (yet) recorded.
        committed: the commit itself, None as above.
        verified: the latest verification, None before the first.
        quarantined: the latest reason, None while the checkpoint may be loaded.
        stages: those it holds now, in rising order.
        indexes: ledger indexes of all events about it, rising.
    """

    checkpoint_id: CheckpointId
    name: CheckpointName
    committed: CommittedFact | None = None
    verified: VerifiedFact | None = None
    quarantined: str | None = None
    evaluated: EvaluatedFact | None = None
    approvals: tuple[ApprovedFact, ...] = ()
    rejections: tuple[RejectedFact, ...] = ()
    refusals: tuple[RefusedFact, ...] = ()
    stages: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()

    @property
    def committed_at(self) -> int | None:
        """Ledger index of the commit."""
        return None if self.committed is None else self.committed.index


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The state of everything, as of the last event.

    Attributes:
        records: every checkpoint an event names, in the order of first mention.
        runs: every run, in the order of creation.
        moves: every promotion, in ledger order.
        num_events: how many events it was computed from.
    """

    records: Mapping[CheckpointId, CheckpointRecord]
    runs: Mapping[RunKey, RunFact]
    moves: tuple[PromotedFact, ...]
    num_events: int

    @classmethod
    def of(cls, events: Iterable[Event]) -> History:
        """Fold all events of a ledger, the first being index 0.

        Raises:
            FormatError: an event lacks a fact its kind must have; the message names its index.
        """
        fold = _Fold()
        num_events = 0
        for index, event in enumerate(events):
            fold.add(fact_of(index, event))
            num_events += 1
        return cls(
            records=MappingProxyType(fold.records_with_stages()),
            runs=MappingProxyType(fold.runs),
            moves=tuple(fold.moves),
            num_events=num_events,
        )

    def by_name(self, name: CheckpointName) -> CheckpointRecord | None:
        """Return the record of that name; a committed one before one that is only mentioned."""
        named = [record for record in self.records.values() if record.name == name]
        committed = [record for record in named if record.committed is not None]
        return next(iter(committed + named), None)

    def in_stage(self, stage: str) -> CheckpointId | None:
        """Return who holds `stage` now; None where nobody does, and for `candidate`."""
        moves = self.stage_moves(stage)
        return moves[-1].checkpoint_id if moves else None

    def stage_moves(self, stage: str) -> tuple[PromotedFact, ...]:
        """Return every move of `stage`, in ledger order."""
        return tuple(move for move in self.moves if move.stage == stage)


class _Fold:
    """The state while events are folded in."""

    def __init__(self) -> None:
        self.records: dict[CheckpointId, CheckpointRecord] = {}
        self.runs: dict[RunKey, RunFact] = {}
        self.moves: list[PromotedFact] = []

    def add(self, fact: Fact) -> None:
        match fact:
            case RunFact():
                self.runs.setdefault(fact.key, fact)
            case AttemptFact():
                # An attempt of a run whose creation was lost to a crash belongs to nothing here.
                if (run := self.runs.get(fact.run)) is not None:
                    self.runs[fact.run] = replace(run, attempts=(*run.attempts, fact))
            case CheckpointFact():
                record = self.records.get(fact.checkpoint_id) or CheckpointRecord(
                    checkpoint_id=fact.checkpoint_id, name=fact.name
                )
                self.records[fact.checkpoint_id] = replace(
                    record, indexes=(*record.indexes, fact.index), **_change(record, fact)
                )
                if isinstance(fact, PromotedFact):
                    self.moves.append(fact)

    def records_with_stages(self) -> dict[CheckpointId, CheckpointRecord]:
        """Return the records, each told which stages it holds."""
        holders = {move.stage: move.checkpoint_id for move in self.moves}
        return {
            checkpoint_id: replace(
                record,
                stages=tuple(
                    stage
                    for stage in STAGES
                    if holders.get(stage) == checkpoint_id
                    or (stage == CANDIDATE and record.committed is not None)
                ),
            )
            for checkpoint_id, record in self.records.items()
        }


def _change(record: CheckpointRecord, fact: CheckpointFact) -> dict[str, Any]:  # noqa: PLR0911 -- one line a kind
    """Return the fields of `record` that `fact` changes."""
    match fact:
        case CommittedFact():
            return {"committed": record.committed or fact}
        case VerifiedFact():
            return {"verified": fact}
        case QuarantinedFact():
            return {"quarantined": fact.reason}
        case EvaluatedFact():
            return {"evaluated": fact}
        case ApprovedFact():
            return {"approvals": (*record.approvals, fact)}
        case RejectedFact():
            return {"rejections": (*record.rejections, fact)}
        case RefusedFact():
            return {"refusals": (*record.refusals, fact)}
        case _:
            return {}
