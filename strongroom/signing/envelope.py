"""DSSE envelopes: an in-toto statement with exactly one Ed25519 signature.

Invariant: a statement leaves `open_sealed` only after its signature verified under a key of the
keyring; every other outcome is a `SignatureError`. An envelope has one spelling (canonical JSON,
strict base64), so its digest names it.

Source: DSSE v1 (secure-systems-lab/dsse), envelope and pre-authentication encoding.
"""

from __future__ import annotations

from dataclasses import dataclass

from strongroom import canonical
from strongroom.errors import FormatError, SignatureError
from strongroom.names import Digest
from strongroom.signing.encoding import decode_base64, encode_base64
from strongroom.signing.keyring import Holder, Keyring
from strongroom.signing.keys import Signer
from strongroom.signing.statement import PAYLOAD_TYPE, Statement


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedStatement:
    """A statement whose signature was verified.

    Attributes:
        holder: who signed it.
        digest: SHA-256 of the envelope's bytes.
    """

    statement: Statement
    holder: Holder
    digest: Digest


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return what is really signed: the payload bound to its type (pre-authentication encoding)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def seal(statement: Statement, signer: Signer) -> bytes:
    """Sign `statement`; return the envelope's canonical bytes.

    Raises:
        FormatError: the predicate has no canonical form.
    """
    payload = statement.to_bytes()
    return canonical.dumps(
        {
            "payload": encode_base64(payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [
                {
                    "keyid": signer.key_id,
                    "sig": encode_base64(signer.sign(pae(PAYLOAD_TYPE, payload))),
                }
            ],
        }
    )


def open_sealed(data: bytes, keyring: Keyring) -> SealedStatement:
    """Verify an envelope and read its statement.

    Raises:
        SignatureError: not such an envelope, an unknown key, or a signature that does not verify.
    """
    payload, key_id, signature = _unpack(data)
    holder = keyring.verify(key_id, pae(PAYLOAD_TYPE, payload), signature)
    try:
        statement = Statement.from_bytes(payload)
    except FormatError as error:
        raise SignatureError(f"envelope signed by {holder.actor}: {error}") from error
    return SealedStatement(statement=statement, holder=holder, digest=Digest.of(data))


def subject_of(data: bytes) -> Digest:
    """Return what an envelope claims to be about, its signature not looked at.

    Raises:
        SignatureError: not such an envelope.
    """
    payload, _, _ = _unpack(data)
    try:
        return Statement.from_bytes(payload).subject
    except FormatError as error:
        raise SignatureError(f"envelope: {error}") from error


def _unpack(data: bytes) -> tuple[bytes, str, bytes]:
    """Return payload, key id and signature, none of them verified."""
    try:
        document = canonical.loads(data, what="envelope")
        if document["payloadType"] != PAYLOAD_TYPE:
            raise SignatureError(
                f"envelope: expected payloadType {PAYLOAD_TYPE!r}, got {document['payloadType']!r}"
            )
        signatures = document["signatures"]
        if len(signatures) != 1 or document.keys() != {"payload", "payloadType", "signatures"}:
            raise SignatureError(
                f"envelope: expected payload, payloadType and exactly one signature, got "
                f"{sorted(document)} and {len(signatures)} signature(s)"
            )
        (signed,) = signatures
        if signed.keys() != {"keyid", "sig"}:
            raise SignatureError(f"envelope: expected keyid and sig, got {sorted(signed)}")
        return (
            decode_base64(document["payload"]),
            str(signed["keyid"]),
            decode_base64(signed["sig"]),
        )
    except (FormatError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise SignatureError(f"envelope: it is malformed: {error!r}") from error
