"""What a run is made from: `run.json`, created once and never rewritten.

This module never imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.checkpoint.layout import run_record_key
from strongroom.checkpoint.manifest import Inputs
from strongroom.errors import (
    ConflictError,
    FormatError,
    InputError,
    ObjectMissingError,
    UnknownNameError,
)
from strongroom.names import RunKey
from strongroom.storage.base import Storage

FORMATS = ("strongroom.run/1", "strongroom.run/2")
"""Version 1 says nothing of how exactly the run can be repeated."""

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
        inexact: why the run, repeated as it is, may not come out the same bit for bit; empty where
            nothing stands against it.
        version: of the format.
    """

    run: RunKey
    author: str
    created: str
    config: JsonObject
    inputs: Inputs
    code: JsonObject
    environment: JsonObject
    probe: Probe
    inexact: tuple[str, ...] = ()
    version: int = len(FORMATS)

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: what `run.json` holds."""
        exactness = {} if self.version == 1 else {"inexact": list(self.inexact)}
        return canonical.dumps(
            {
                **exactness,
                "format": FORMATS[self.version - 1],
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
        version = canonical.version_of(document, FORMATS, what=where)
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
                inexact=() if version == 1 else tuple(document["inexact"]),
                version=version,
            )
        except (AttributeError, KeyError, TypeError, InputError) as error:
            raise FormatError(f"{where}: a field is missing or malformed: {error!r}") from error
        if record.to_bytes() != data:
            raise FormatError(f"{where}: holds fields that {FORMATS[version - 1]} does not have")
        return record


def create_run(
    storage: Storage, record: RunRecord, *, free_fields: Collection[str] = ()
) -> RunRecord:
    """Store the record of a new run, or return the one that stands if it means the same run.

    The standing record wins: its author, code and environment are those of the first launch.

    Args:
        storage: where to.
        record: the run as it is wanted.
        free_fields: fields of the configuration, such as `config.train.world_size`, that may be
            others at each attempt.

    Raises:
        ConflictError: a run of that key stands with another configuration or other inputs.
    """
    try:
        storage.create(run_record_key(record.run), record.to_bytes())
    except ConflictError:
        standing = read_run(storage, record.run)
        if differences := _differences(standing, record, free_fields):
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


def _differences(standing: RunRecord, wanted: RunRecord, free_fields: Collection[str]) -> list[str]:
    """Name what differs, down to the field of the configuration; `free_fields` may."""
    names = [
        f"{name} ({getattr(standing.inputs, name).short}, asked for "
        f"{getattr(wanted.inputs, name).short})"
        for name in ("base_model", "dataset", "tokenizer")
        if getattr(standing.inputs, name) != getattr(wanted.inputs, name)
    ]
    fields = _fields(standing.config, wanted.config, "config")
    return names + [text for name, text in fields if name not in free_fields]


def _fields(standing: object, wanted: object, path: str) -> list[tuple[str, str]]:
    """Return the path of every field that differs, and what it is in both."""
    if isinstance(standing, dict) and isinstance(wanted, dict):
        return [
            field
            for key in sorted({*standing, *wanted})
            for field in _fields(standing.get(key), wanted.get(key), f"{path}.{key}")
        ]
    if standing == wanted:
        return []
    return [(path, f"{path} ({standing!r}, asked for {wanted!r})")]
