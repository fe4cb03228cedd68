"""Attestations: signed statements, kept beside the ledger under the digest they are about.

Invariant: an attestation lies at `attestations/<subject hex>/<digest of its bytes, hex>.json`, so
its name proves its bytes and its folder is what its statement says; both are checked on every read.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Final

from strongroom.errors import ConflictError, InputError, SignatureError
from strongroom.names import Digest
from strongroom.signing.envelope import SealedStatement, open_sealed, subject_of
from strongroom.signing.keyring import Keyring
from strongroom.storage.base import Storage

logger = logging.getLogger(__name__)

ATTESTATIONS: Final = "attestations"
_NAME = re.compile(r"(?P<hex>[0-9a-f]{64})\.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttestationReading:
    """What stands about one subject: the statements that verify, and why others do not."""

    statements: tuple[SealedStatement, ...]
    faults: tuple[SignatureError, ...]


def put_attestation(storage: Storage, sealed: bytes, subject: Digest) -> Digest:
    """Store an envelope; return its digest. Storing the same one again changes nothing.

    Raises:
        InputError: the envelope is about something else.
        SignatureError: it is no envelope, or other bytes stand in its place.
    """
    if (about := subject_of(sealed)) != subject:
        raise InputError(f"attestation: expected one about {subject}, got one about {about}")
    digest = Digest.of(sealed)
    key = _key(subject, digest)
    try:
        storage.create(key, sealed)
    except ConflictError:
        _check_digest(key, digest, storage.read(key))
    else:
        logger.info("attestation stored: subject=%s digest=%s", subject, digest)
    return digest


def attestations_of(storage: Storage, subject: Digest, keyring: Keyring) -> list[SealedStatement]:
    """Return every attestation about `subject`, verified, in order of digest.

    Raises:
        SignatureError: one does not verify under the keyring, its bytes are not those its name
            promises, or it lies in the wrong folder.
    """
    reading = read_attestations(storage, subject, keyring)
    if reading.faults:
        raise reading.faults[0]
    return list(reading.statements)


def read_attestations(storage: Storage, subject: Digest, keyring: Keyring) -> AttestationReading:
    """Read every attestation about `subject`; one that does not verify hides no other."""
    statements: list[SealedStatement] = []
    faults: list[SignatureError] = []
    for info in storage.walk(f"{ATTESTATIONS}/{subject.hex}"):
        match = _NAME.fullmatch(info.key.rpartition("/")[2])
        if match is None or info.key != _key(subject, Digest(match["hex"])):
            logger.warning("no attestation, left alone: key=%s", info.key)
            continue
        try:
            statements.append(_read(storage, subject, Digest(match["hex"]), keyring))
        except SignatureError as error:
            faults.append(error)
    return AttestationReading(
        statements=tuple(sorted(statements, key=lambda sealed: sealed.digest)),
        faults=tuple(faults),
    )


def _read(storage: Storage, subject: Digest, digest: Digest, keyring: Keyring) -> SealedStatement:
    key = _key(subject, digest)
    data = storage.read(key)
    _check_digest(key, digest, data)
    sealed = open_sealed(data, keyring)
    if sealed.statement.subject != subject:
        raise SignatureError(
            f"{key}: expected a statement about {subject}, got one about "
            f"{sealed.statement.subject}; it was put into another's folder"
        )
    return sealed


def _key(subject: Digest, digest: Digest) -> str:
    return f"{ATTESTATIONS}/{subject.hex}/{digest.hex}.json"


def _check_digest(key: str, expected: Digest, data: bytes) -> None:
    if (got := Digest.of(data)) != expected:
        raise SignatureError(
            f"{key}: expected bytes of digest {expected}, got {got}; the attestation was changed: "
            "restore it from a copy"
        )
