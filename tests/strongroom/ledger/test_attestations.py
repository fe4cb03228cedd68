from __future__ import annotations

import logging

import pytest

from strongroom.errors import InputError, SignatureError
from strongroom.ledger.attestations import attestations_of, put_attestation
from strongroom.names import Digest
from strongroom.signing.envelope import seal
from strongroom.signing.keyring import Keyring
from strongroom.signing.statement import EVALUATION, VERIFICATION, Statement
from strongroom.storage.memory import MemoryStorage
from tests.support.ledgers import KEYRING, SERVICE, SIGNER, digest_of

SUBJECT = digest_of("manifest")


def sealed(predicate_type: str = VERIFICATION, subject: Digest = SUBJECT) -> bytes:
    statement = Statement(
        subject_name="nightly-7/40",
        subject=subject,
        predicate_type=predicate_type,
        predicate={"passed": True},
    )
    return seal(statement, SIGNER)


def test_attestations_lie_under_their_subject() -> None:
    storage = MemoryStorage()
    digest = put_attestation(storage, sealed(), SUBJECT)
    assert [info.key for info in storage.walk("")] == [
        f"attestations/{SUBJECT.hex}/{digest.hex}.json"
    ]
    assert digest == Digest.of(sealed())


def test_attestations_are_read_in_order_of_digest() -> None:
    storage = MemoryStorage()
    digests = [
        put_attestation(storage, sealed(kind), SUBJECT) for kind in (VERIFICATION, EVALUATION)
    ]
    put_attestation(storage, sealed(subject=digest_of("other")), digest_of("other"))
    found = attestations_of(storage, SUBJECT, KEYRING)
    assert [item.digest for item in found] == sorted(digests)
    assert {item.holder for item in found} == {SERVICE}


def test_nothing_was_said_about_an_unknown_subject() -> None:
    assert attestations_of(MemoryStorage(), SUBJECT, KEYRING) == []


def test_storing_twice_changes_nothing() -> None:
    storage = MemoryStorage()
    assert put_attestation(storage, sealed(), SUBJECT) == put_attestation(
        storage, sealed(), SUBJECT
    )
    assert len(attestations_of(storage, SUBJECT, KEYRING)) == 1


def test_an_attestation_about_something_else_is_not_stored() -> None:
    storage = MemoryStorage()
    with pytest.raises(InputError, match="expected one about"):
        put_attestation(storage, sealed(), digest_of("other"))
    with pytest.raises(SignatureError):
        put_attestation(storage, b"{}", SUBJECT)
    assert list(storage.walk("")) == []


def test_a_changed_attestation_is_refused() -> None:
    storage = MemoryStorage()
    key = f"attestations/{SUBJECT.hex}/{put_attestation(storage, sealed(), SUBJECT).hex}.json"
    for place in range(0, len(sealed()), 7):
        changed = bytearray(sealed())
        changed[place] ^= 1
        storage.replace(key, bytes(changed))
        with pytest.raises(SignatureError, match=f"{key}: expected bytes of digest"):
            attestations_of(storage, SUBJECT, KEYRING)
    with pytest.raises(SignatureError, match="was changed"):
        put_attestation(storage, sealed(), SUBJECT)


def test_an_attestation_moved_to_another_subject_is_refused() -> None:
    storage = MemoryStorage()
    data = sealed(subject=digest_of("other"))
    storage.create(f"attestations/{SUBJECT.hex}/{Digest.of(data).hex}.json", data)
    with pytest.raises(SignatureError, match="another's folder"):
        attestations_of(storage, SUBJECT, KEYRING)


def test_an_attestation_by_a_stranger_is_refused() -> None:
    storage = MemoryStorage()
    put_attestation(storage, sealed(), SUBJECT)
    with pytest.raises(SignatureError, match="keyring"):
        attestations_of(storage, SUBJECT, Keyring())


def test_unknown_names_are_reported_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    put_attestation(storage, sealed(), SUBJECT)
    folder = f"attestations/{SUBJECT.hex}"
    storage.create(f"{folder}/notes.txt", b"mine")
    storage.create(f"{folder}/old/{Digest.of(sealed()).hex}.json", sealed())
    with caplog.at_level(logging.WARNING, logger="strongroom.ledger"):
        assert len(attestations_of(storage, SUBJECT, KEYRING)) == 1
    assert len(caplog.records) == 2
