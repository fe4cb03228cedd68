from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from strongroom.errors import SignatureError
from strongroom.names import Digest
from strongroom.signing.envelope import open_sealed, pae, seal, subject_of
from strongroom.signing.keyring import Holder, Keyring, Role
from strongroom.signing.keys import Signer
from strongroom.signing.statement import APPROVAL, Statement

SIGNER = Signer.generate()
HOLDER = Holder.of("leyla", Role.PERSON, SIGNER)
KEYRING = Keyring([HOLDER])
STATEMENT = Statement(
    subject_name="nightly-7/40",
    subject=Digest.of(b"manifest"),
    predicate_type=APPROVAL,
    predicate={"stage": "production"},
)


def changed(**changes: object) -> bytes:
    document = {**json.loads(seal(STATEMENT, SIGNER)), **changes}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def test_a_sealed_statement_opens() -> None:
    data = seal(STATEMENT, SIGNER)
    sealed = open_sealed(data, KEYRING)
    assert (sealed.statement, sealed.holder) == (STATEMENT, HOLDER)
    assert sealed.digest == Digest.of(data)
    assert subject_of(data) == STATEMENT.subject


def test_what_is_signed_is_the_payload_bound_to_its_type() -> None:
    # The example of the DSSE protocol: type "http://example.com/HelloWorld", body "hello world".
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(SignatureError, match=SIGNER.key_id):
        open_sealed(seal(STATEMENT, SIGNER), Keyring())


def test_another_holder_s_key_id_is_refused() -> None:
    other = Signer.generate()
    keyring = Keyring([HOLDER, Holder.of("deniz", Role.PERSON, other)])
    document = json.loads(seal(STATEMENT, SIGNER))
    document["signatures"][0]["keyid"] = other.key_id
    with pytest.raises(SignatureError, match="does not verify"):
        open_sealed(changed(signatures=document["signatures"]), keyring)


def test_an_altered_payload_is_refused() -> None:
    other = Statement(
        subject_name="nightly-7/50",
        subject=Digest.of(b"another manifest"),
        predicate_type=APPROVAL,
        predicate={"stage": "production"},
    )
    payload = base64.b64encode(other.to_bytes()).decode()
    with pytest.raises(SignatureError, match="does not verify"):
        open_sealed(changed(payload=payload), KEYRING)


@pytest.mark.parametrize(
    "changes",
    [
        {"payloadType": "application/json"},
        {"signatures": []},
        {"signatures": json.loads(seal(STATEMENT, SIGNER))["signatures"] * 2},
        {"signatures": [{}]},
        {"signatures": [None]},
        {"signatures": [{"keyid": SIGNER.key_id, "sig": "x"}]},
        {"signatures": [{"keyid": SIGNER.key_id, "sig": "QUFB"}]},
        {"signatures": None},
        {"payload": "*"},
        {"payload": None},
        {"extra": 1},
    ],
)
def test_another_shape_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SignatureError):
        open_sealed(changed(**changes), KEYRING)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(SignatureError, match="malformed"):
        open_sealed(data, KEYRING)


def test_a_signed_payload_that_is_no_statement_is_refused() -> None:
    payload = b'{"_type":"something else"}'
    signature = SIGNER.sign(pae("application/vnd.in-toto+json", payload))
    data = changed(
        payload=base64.b64encode(payload).decode(),
        signatures=[{"keyid": SIGNER.key_id, "sig": base64.b64encode(signature).decode()}],
    )
    with pytest.raises(SignatureError, match="person:leyla"):
        open_sealed(data, KEYRING)


def test_any_flipped_byte_is_refused() -> None:
    data = seal(STATEMENT, SIGNER)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1
        with pytest.raises(SignatureError):
            open_sealed(bytes(flipped), KEYRING)
