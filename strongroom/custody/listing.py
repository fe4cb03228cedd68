"""What stands in a store: one line for each committed checkpoint, joined with the ledger's word."""

from __future__ import annotations

from dataclasses import dataclass

from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import Committed, Ignored, list_checkpoints
from strongroom.custody.context import Custody
from strongroom.evaluation.report import EvaluationReport
from strongroom.ledger.attestations import attestations_of
from strongroom.ledger.history import CheckpointRecord, History
from strongroom.names import CheckpointId, CheckpointName, RunKey
from strongroom.signing.statement import EVALUATION


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One checkpoint as a list shows it; None where a thing has not happened.

    Attributes:
        recorded: whether the ledger knows this checkpoint under this id.
        stages: stages that point to it, `candidate` included.
    """

    name: CheckpointName
    checkpoint_id: CheckpointId
    created: str
    num_bytes: int
    metrics: dict[str, float]
    recorded: bool
    verified: bool | None
    rung: int | None
    quarantined: str | None
    evaluated: bool | None
    report: EvaluationReport | None
    stages: tuple[str, ...]

    def to_json(self) -> JsonObject:
        """Return it as JSON."""
        return {
            "name": str(self.name),
            "run": str(self.name.run),
            "step": self.name.step.number,
            "checkpoint_id": str(self.checkpoint_id),
            "created": self.created,
            "num_bytes": self.num_bytes,
            "metrics": self.metrics,
            "recorded": self.recorded,
            "verified": self.verified,
            "rung": self.rung,
            "quarantined": self.quarantined,
            "evaluated": self.evaluated,
            "evaluation": None if self.report is None else self.report.to_json(),
            "stages": list(self.stages),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreListing:
    """Every committed checkpoint by run and step, and what else was found beside them."""

    lines: tuple[Line, ...]
    ignored: tuple[Ignored, ...]


def list_store(custody: Custody, run: RunKey | None = None) -> StoreListing:
    """List the checkpoints of one run, or of all.

    Raises:
        IntegrityError: a manifest is damaged.
    """
    listing = list_checkpoints(custody.storage, run)
    history = custody.history()
    lines = [_line(custody, committed, history) for committed in listing.checkpoints]
    return StoreListing(lines=tuple(lines), ignored=listing.ignored)


def latest_evaluation(custody: Custody, record: CheckpointRecord) -> EvaluationReport | None:
    """Return the report of the evaluation that the ledger names last, None before the first."""
    if record.evaluated is None:
        return None
    keyring = custody.keys.keyring()
    for sealed in attestations_of(custody.storage, record.checkpoint_id, keyring):
        statement = sealed.statement
        if sealed.digest == record.evaluated.attestation and statement.predicate_type == EVALUATION:
            return EvaluationReport.from_json(statement.predicate["report"])
    return None


def _line(custody: Custody, committed: Committed, history: History) -> Line:
    record = history.records.get(committed.checkpoint_id)
    verified = None if record is None else record.verified
    evaluated = None if record is None else record.evaluated
    return Line(
        name=committed.name,
        checkpoint_id=committed.checkpoint_id,
        created=committed.manifest.created,
        num_bytes=committed.manifest.num_bytes,
        metrics=dict(committed.manifest.metrics),
        recorded=record is not None and record.committed is not None,
        verified=None if verified is None else verified.passed,
        rung=None if verified is None else verified.rung,
        quarantined=None if record is None else record.quarantined,
        evaluated=None if evaluated is None else evaluated.passed,
        report=None if record is None else latest_evaluation(custody, record),
        stages=() if record is None else record.stages,
    )
