"""Verify a checkpoint and make the result a matter of record.

Order: climb the ladder -> sign and store the verification record -> append the event -> where it
failed, quarantine. A machine that cannot climb (no storage, no base model) proves nothing about the
checkpoint: that is an error of its own and quarantines nothing.
"""

from __future__ import annotations

import logging

from strongroom.checkpoint.run_record import read_run
from strongroom.custody.context import Custody
from strongroom.ledger.events import EventKind
from strongroom.ledger.history import History
from strongroom.names import CheckpointId, CheckpointName
from strongroom.signing.statement import VERIFICATION, Statement
from strongroom.verification.ladder import Rung, VerificationReport, verify

logger = logging.getLogger(__name__)


def verify_checkpoint(
    custody: Custody, name: CheckpointName, *, up_to: Rung = Rung.LOAD
) -> VerificationReport:
    """Climb the ladder for one checkpoint, record the result, quarantine it if it failed.

    The id is the ledger's, not the stored manifest's: what was committed is what must be there.
    """
    history = custody.history()
    expected_id = _committed_id(history, name)
    report = verify(
        custody.storage,
        name,
        expected_id=expected_id,
        up_to=up_to,
        record=read_run(custody.storage, name.run),
        cache=custody.cache,
    )
    checkpoint_id = expected_id or report.checkpoint_id
    if checkpoint_id is None:
        # Neither ledger nor manifest gives an id: there is nothing a record could be about.
        return report
    attestation = custody.attest(
        Statement(
            subject_name=str(name),
            subject=checkpoint_id,
            predicate_type=VERIFICATION,
            predicate=report.to_json(),
        )
    )
    custody.record(
        EventKind.CHECKPOINT_VERIFIED,
        checkpoint_id=checkpoint_id,
        checkpoint=name,
        passed=report.passed,
        rung=int(report.rungs[-1].rung),
        attestation=str(attestation),
        state_digest=None if report.state_digest is None else str(report.state_digest),
    )
    if not report.passed:
        _quarantine(custody, history, checkpoint_id, name, report)
    logger.info(
        "checkpoint verified: checkpoint=%s id=%s passed=%s rung=%d seconds=%.2f",
        name,
        checkpoint_id,
        report.passed,
        report.highest,
        report.seconds,
    )
    return report


def _committed_id(history: History, name: CheckpointName) -> CheckpointId | None:
    record = history.by_name(name)
    return None if record is None else record.checkpoint_id


def _quarantine(
    custody: Custody,
    history: History,
    checkpoint_id: CheckpointId,
    name: CheckpointName,
    report: VerificationReport,
) -> None:
    record = history.records.get(checkpoint_id)
    if record is None or record.quarantined is not None:
        return
    custody.record(
        EventKind.CHECKPOINT_QUARANTINED,
        checkpoint_id=checkpoint_id,
        checkpoint=name,
        reason=f"verification failed at rung {int(report.failed_at or 0)}: {report.findings[0]}",
    )
    logger.warning("checkpoint quarantined: checkpoint=%s id=%s", name, checkpoint_id)
