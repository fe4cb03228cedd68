"""Which attempts of a run there are, what each is, and which may write: `attempt.json`.

Order: `claim_attempt` once per process launch, and once per return to an earlier checkpoint, then
checkpoints. A record is created, never rewritten; its existence fences off every lower attempt.
This module never imports torch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from strongroom import canonical, clock
from strongroom.canonical import JsonObject
from strongroom.checkpoint.entries import count, text
from strongroom.checkpoint.layout import attempt_record_key, run_folder
from strongroom.errors import (
    ConflictError,
    FencedError,
    FormatError,
    InputError,
    ObjectMissingError,
    UnknownNameError,
)
from strongroom.names import Attempt, CheckpointId, Digest, RunKey
from strongroom.storage.base import Storage

FORMATS = ("strongroom.attempt/1", "strongroom.attempt/2")
"""Version 1 says nothing of how the attempt is spread, on what, and how exactly it goes on."""
MAX_CLAIMS = 20
"""How often a launch tries the next number before it gives up; each try lost means that another
process of the same run started in that moment."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRecord:
    """One attempt; what `attempt.json` holds.

    Attributes:
        attempt: its number; 0 in a record that has not been claimed yet.
        started: when, UTC.
        resumed_from: the checkpoint it goes on from; None for a start at the beginning.
        placement: how its work is spread, as JSON; empty where it was not recorded.
        environment: what rank 0 computes on, and by which versions; empty as above.
        inexact: why what it computes may not equal, bit for bit, a run that never stopped; empty
            where nothing stands against it.
        reseeded_ranks: ranks whose random state was not in the checkpoint, and was seeded from the
            run's seed, the rank and the step.
    """

    run: RunKey
    attempt: int = 0
    started: str = ""
    resumed_from: CheckpointId | None = None
    placement: JsonObject = field(default_factory=dict)
    environment: JsonObject = field(default_factory=dict)
    inexact: tuple[str, ...] = ()
    reseeded_ranks: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the canonical bytes of version 2."""
        resumed_from = None if self.resumed_from is None else str(self.resumed_from)
        return canonical.dumps(
            {
                "format": FORMATS[-1],
                "run": str(self.run),
                "attempt": self.attempt,
                "started": self.started,
                "resumed_from": resumed_from,
                "placement": self.placement,
                "environment": self.environment,
                "inexact": list(self.inexact),
                "reseeded_ranks": list(self.reseeded_ranks),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> AttemptRecord:
        """Read `attempt.json`; `where` names it in errors.

        Raises:
            FormatError: not canonical, of an unknown format version, or of the wrong shape.
        """
        document = canonical.loads(data, what=where)
        version = canonical.version_of(document, FORMATS, what=where)
        try:
            record = cls(
                run=RunKey.parse(document["run"]),
                attempt=count(document["attempt"]),
                started=text(document["started"]),
            )
            if version == 1:
                return record
            resumed_from = document["resumed_from"]
            record = replace(
                record,
                resumed_from=None
                if resumed_from is None
                else CheckpointId(Digest.parse(resumed_from)),
                placement=dict(document["placement"]),
                environment=dict(document["environment"]),
                inexact=tuple(text(reason) for reason in document["inexact"]),
                reseeded_ranks=tuple(count(rank) for rank in document["reseeded_ranks"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError, InputError) as error:
            raise FormatError(f"{where}: a field is missing or malformed: {error!r}") from error
        if record.to_bytes() != data:
            raise FormatError(f"{where}: holds fields that {FORMATS[-1]} does not have")
        return record


def claim_attempt(storage: Storage, wanted: AttemptRecord) -> Attempt:
    """Take the next attempt number of a run; from now on lower attempts may not commit.

    Args:
        storage: what holds the run.
        wanted: what the attempt is; its number and time are found here.

    Raises:
        ConflictError: other launches of the same run took every number that was tried.
    """
    run = wanted.run
    number = max((attempt.number for attempt in _attempts(storage, run)), default=0)
    for _ in range(MAX_CLAIMS):
        number += 1
        attempt = Attempt(number)
        record = replace(wanted, attempt=number, started=clock.now_utc())
        try:
            storage.create(attempt_record_key(run, attempt), record.to_bytes())
        except ConflictError:
            continue
        logger.info("attempt started: run=%s attempt=%d", run, number)
        return attempt
    raise ConflictError(
        f"run {run}: {MAX_CLAIMS} attempt numbers up to {number} were taken by other processes; "
        "find out what keeps launching this run, stop it, and try again"
    )


def read_attempt(storage: Storage, run: RunKey, attempt: Attempt) -> AttemptRecord:
    """Return the record of an attempt.

    Raises:
        UnknownNameError: there is no such attempt.
        FormatError: its record is malformed, or is that of another.
    """
    key = attempt_record_key(run, attempt)
    try:
        data = storage.read(key)
    except ObjectMissingError as error:
        raise UnknownNameError(f"run {run}: expected {key}, got no such object") from error
    record = AttemptRecord.from_bytes(data, where=key)
    if (record.run, record.attempt) != (run, attempt.number):
        raise FormatError(
            f"{key}: expected the record of {run} {attempt}, got that of {record.run} "
            f"attempt {record.attempt}"
        )
    return record


def newest_attempt(storage: Storage, run: RunKey) -> Attempt | None:
    """Return the highest attempt that was claimed, or None before the first."""
    for attempt in sorted(_attempts(storage, run), reverse=True):
        if storage.stat(attempt_record_key(run, attempt)) is not None:
            return attempt
    return None


def check_fence(storage: Storage, run: RunKey, attempt: Attempt) -> None:
    """Return if `attempt` is the newest of its run: the check before every commit.

    Raises:
        FencedError: a newer attempt owns the run.
    """
    newest = newest_attempt(storage, run)
    if newest != attempt:
        raise FencedError(
            f"run {run}: {attempt} may not commit any more: expected it to be the newest, got "
            f"{newest}; stop this process, the newer one goes on"
        )


def _attempts(storage: Storage, run: RunKey) -> list[Attempt]:
    attempts = []
    for folder in storage.folders(run_folder(run)):
        try:
            attempts.append(Attempt.parse(folder))
        except InputError:
            continue  # not ours: left alone, and reported by the catalogue
    return attempts
