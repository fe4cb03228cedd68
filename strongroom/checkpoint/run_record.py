"""What a run is made from, and which of its attempts may write: `run.json` and `attempt.json`.

Order: `create_run` once per run, `claim_attempt` once per process launch, then checkpoints. Both
documents are created, never rewritten; an attempt's existence fences off every lower one.
This module never imports torch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from strongroom import canonical, clock
from strongroom.canonical import JsonObject
from strongroom.checkpoint.layout import attempt_record_key, run_folder, run_record_key
from strongroom.checkpoint.manifest import Inputs
from strongroom.errors import (
    ConflictError,
    FencedError,
    FormatError,
    InputError,
    ObjectMissingError,
    UnknownNameError,
)
from strongroom.names import Attempt, RunKey
from strongroom.storage.base import Storage

FORMAT = "strongroom.run/1"
ATTEMPT_FORMAT = "strongroom.attempt/1"
MAX_CLAIMS = 20
"""How often a launch tries the next number before it gives up; each try lost means that another
process of the same run started in that moment."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """The row whose loss is recorded at every save and computed again by verification.

    Attributes:
        token_ids: int [T], the rendered conversation.
        trained: bool [T], which of them count in the loss.
    """

    token_ids: tuple[int, ...]
    trained: tuple[bool, ...]

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.trained):
            raise InputError(
                f"probe: expected one 'trained' flag for each of {len(self.token_ids)} tokens, "
                f"got {len(self.trained)}"
            )
        if not any(self.trained[1:]):  # nothing predicts the first token
            raise InputError("probe: expected a trained token after the first, got none")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """Everything a run is made from; what `run.json` holds.

    Attributes:
        author: pseudonym of the person who asked for the run; may not approve its checkpoints.
        config: the run's configuration as JSON; its digest is `inputs.config`.
        code: revision of the code that made the record.
        environment: versions of what it ran with.
    """

    run: RunKey
    author: str
    created: str
    config: JsonObject
    inputs: Inputs
    code: JsonObject
    environment: JsonObject
    probe: Probe

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: what `run.json` holds."""
        return canonical.dumps(
            {
                "format": FORMAT,
                "run": str(self.run),
                "author": self.author,
                "created": self.created,
                "config": self.config,
                "inputs": self.inputs.to_json(),
                "code": self.code,
                "environment": self.environment,
                "probe": {
                    "token_ids": list(self.probe.token_ids),
                    "trained": list(self.probe.trained),
                },
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> RunRecord:
        """Read `run.json`; `where` names it in errors.

        Raises:
            FormatError: not canonical, of an unknown format version, or of the wrong shape.
        """
        document = canonical.loads(data, what=where)
        if document.get("format") != FORMAT:
            raise FormatError(
                f"{where}: expected format {FORMAT!r}, got {document.get('format')!r}; "
                "use a release of strongroom that knows it"
            )
        try:
            record = cls(
                run=RunKey.parse(document["run"]),
                author=document["author"],
                created=document["created"],
                config=document["config"],
                inputs=Inputs.from_json(document["inputs"]),
                code=document["code"],
                environment=document["environment"],
                probe=Probe(
                    token_ids=tuple(document["probe"]["token_ids"]),
                    trained=tuple(document["probe"]["trained"]),
                ),
            )
        except (AttributeError, KeyError, TypeError, InputError) as error:
            raise FormatError(f"{where}: a field is missing or malformed: {error!r}") from error
        if record.to_bytes() != data:
            raise FormatError(f"{where}: holds fields that {FORMAT} does not have")
        return record


def create_run(storage: Storage, record: RunRecord) -> RunRecord:
    """Store the record of a new run, or return the one that stands if it means the same run.

    The standing record wins: its author, code and environment are those of the first launch.

    Raises:
        ConflictError: a run of that key stands with another configuration or other inputs.
    """
    try:
        storage.create(run_record_key(record.run), record.to_bytes())
    except ConflictError:
        standing = read_run(storage, record.run)
        if differences := _differences(standing, record):
            raise ConflictError(
                f"run {record.run}: exists already with another {', '.join(differences)}; "
                "a run's inputs never change: choose another run key, or give what it was "
                "created with to go on with it"
            ) from None
        return standing
    logger.info("run created: run=%s author=%s", record.run, record.author)
    return record


def read_run(storage: Storage, run: RunKey) -> RunRecord:
    """Return the record of a run.

    Raises:
        UnknownNameError: there is no such run.
        FormatError: its record is malformed, or is that of another run.
    """
    key = run_record_key(run)
    try:
        data = storage.read(key)
    except ObjectMissingError as error:
        raise UnknownNameError(
            f"run {run}: there is no such run in {storage.url}; `strongroom ls` lists those there"
        ) from error
    record = RunRecord.from_bytes(data, where=key)
    if record.run != run:
        raise FormatError(f"{key}: expected the record of run {run}, got that of {record.run}")
    return record


def claim_attempt(storage: Storage, run: RunKey) -> Attempt:
    """Take the next attempt number of a run; from now on lower attempts may not commit.

    Raises:
        ConflictError: other launches of the same run took every number that was tried.
    """
    number = max((attempt.number for attempt in _attempts(storage, run)), default=0)
    for _ in range(MAX_CLAIMS):
        number += 1
        attempt = Attempt(number)
        document = {
            "format": ATTEMPT_FORMAT,
            "run": str(run),
            "attempt": number,
            "started": clock.now_utc(),
        }
        try:
            storage.create(attempt_record_key(run, attempt), canonical.dumps(document))
        except ConflictError:
            continue
        logger.info("attempt started: run=%s attempt=%d", run, number)
        return attempt
    raise ConflictError(
        f"run {run}: {MAX_CLAIMS} attempt numbers up to {number} were taken by other processes; "
        "find out what keeps launching this run, stop it, and try again"
    )


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


def _differences(standing: RunRecord, wanted: RunRecord) -> list[str]:
    """Name what differs, down to the field of the configuration."""
    names = [
        f"{name} ({getattr(standing.inputs, name).short}, asked for "
        f"{getattr(wanted.inputs, name).short})"
        for name in ("base_model", "dataset", "tokenizer", "config")
        if getattr(standing.inputs, name) != getattr(wanted.inputs, name)
    ]
    return names + _fields(standing.config, wanted.config, "config")


def _fields(standing: object, wanted: object, path: str) -> list[str]:
    if isinstance(standing, dict) and isinstance(wanted, dict):
        return [
            field
            for key in sorted({*standing, *wanted})
            for field in _fields(standing.get(key), wanted.get(key), f"{path}.{key}")
        ]
    return [] if standing == wanted else [f"{path} ({standing!r}, asked for {wanted!r})"]
