"""How an attempt opens, on rank 0 alone: what was forgotten is entered, then a number is claimed.

Order: mend the ledger, choose where to go on from, claim the attempt with what it is, clear away
what dead writers left, enter the attempt. Nothing is built yet.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from strongroom.canonical import JsonObject
from strongroom.checkpoint.attempts import AttemptRecord, claim_attempt, read_attempt
from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.run_record import RunRecord
from strongroom.errors import FormatError, StorageError, UnknownNameError
from strongroom.names import Attempt, CheckpointId
from strongroom.storage.base import Storage
from strongroom.training.commits import Registrar
from strongroom.training.config import RunConfig
from strongroom.training.exactness import reseeded_ranks, resume_inexactness
from strongroom.training.placement import Placement
from strongroom.training.reporting import Report, committed_event
from strongroom.training.resume import choose_resume_point

ABANDONED_S = 86_400.0
"""An upload that was begun longer ago than this is taken for one whose writer is dead."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What rank 0 found and decided, before anything is built.

    Attributes:
        attempt: None where the run is complete and there is nothing to do.
        resume_from: None for a start at the beginning.
        inexact: why the attempt may not end, bit for bit, as a run that never stopped.
    """

    attempt: Attempt | None
    resume_from: Committed | None
    inexact: tuple[str, ...] = ()

    @property
    def parent(self) -> CheckpointId | None:
        """The id of the checkpoint to go on from."""
        return None if self.resume_from is None else self.resume_from.checkpoint_id


def open_attempt(  # noqa: PLR0913 -- what an attempt is made from
    storage: Storage,
    record: RunRecord,
    config: RunConfig,
    placement: Placement,
    *,
    environment: JsonObject,
    registrar: Registrar,
    report: Report,
    fresh_start: bool,
) -> Opening:
    """Open the next attempt of a run, or find that the run is complete.

    Raises:
        NothingToResumeError: the run has checkpoints, none can be used, and no fresh start was
            asked for.
        ConflictError: other launches of the same run took every number that was tried.
    """
    for committed in registrar.enter_forgotten(storage, record.run):
        report(committed_event(committed.manifest, durable_s=None))
    resume_from = choose_resume_point(
        storage, record.run, registrar.history(), fresh_start=fresh_start
    )
    if resume_from is not None and resume_from.name.step.number >= config.train.steps:
        return Opening(attempt=None, resume_from=resume_from)
    wanted = AttemptRecord(run=record.run, placement=placement.to_json(), environment=environment)
    if resume_from is not None:
        wanted = _going_on(storage, config, wanted, resume_from)
    opening = Opening(
        attempt=claim_attempt(storage, wanted), resume_from=resume_from, inexact=wanted.inexact
    )
    discard_abandoned(storage)
    if opening.attempt is not None:
        registrar.enter_attempt(record.run, opening.attempt, opening.parent)
    return opening


def started_event(
    record: RunRecord, placement: Placement, opening: Opening, *, allreduce_ms: float
) -> JsonObject:
    """Return the event that tells of an attempt that is about to train."""
    reasons = [*record.inexact, *opening.inexact]
    return {
        "kind": "training.started",
        "run": str(record.run),
        "attempt": None if opening.attempt is None else opening.attempt.number,
        "world_size": placement.world_size,
        "strategy": placement.strategy,
        "replicas": placement.replicas,
        "resumed_from": None if opening.resume_from is None else str(opening.resume_from.name),
        "exact": not reasons,
        "inexact": reasons,
        "allreduce_ms": allreduce_ms,
    }


def discard_abandoned(storage: Storage) -> None:
    """Clear away what writers that were killed left in the store; training can do without that."""
    try:
        discarded = storage.discard_unfinished(older_than_s=ABANDONED_S)
    except StorageError as error:
        logger.warning("unfinished uploads were not looked for: %s", error)
        return
    if discarded:
        logger.info("unfinished uploads discarded: count=%d %s", len(discarded), discarded)


def _going_on(
    storage: Storage, config: RunConfig, wanted: AttemptRecord, resume_from: Committed
) -> AttemptRecord:
    """Return what an attempt is that goes on from a checkpoint."""
    return replace(
        wanted,
        resumed_from=resume_from.checkpoint_id,
        inexact=resume_inexactness(config, _attempt_before(storage, resume_from), wanted),
        reseeded_ranks=reseeded_ranks(
            resume_from.manifest.world_size, wanted.placement["world_size"]
        ),
    )


def _attempt_before(storage: Storage, resume_from: Committed) -> AttemptRecord:
    """Return the record of the attempt that made a checkpoint; one that says nothing if it is lost.

    The checkpoint stands without it; that it is lost is recorded as a reason not to be exact.
    """
    run, attempt = resume_from.name.run, resume_from.name.attempt
    try:
        return read_attempt(storage, run, attempt)
    except (UnknownNameError, FormatError) as error:
        logger.warning("the record of the attempt before cannot be read: %s", error)
        return AttemptRecord(run=run, attempt=attempt.number)
