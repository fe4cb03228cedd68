from __future__ import annotations

import json

import pytest

from strongroom.errors import FormatError, LedgerError, SignatureError
from strongroom.ledger.entries import Entry, new_nonce, sign_entry
from strongroom.signing.keyring import Holder, Keyring, Role
from strongroom.signing.keys import Signer
from tests.support.ledgers import KEYRING, SERVICE, SIGNER, committed

ORIGIN = "strongroom/0123"
DATA = sign_entry(committed(7), index=4, nonce="0" * 16, origin=ORIGIN, signer=SIGNER)


def test_an_entry_is_read_and_believed() -> None:
    entry = Entry.from_bytes(DATA, index=4)
    assert entry.event == committed(7)
    assert entry.check(ORIGIN, KEYRING) == SERVICE


def test_an_entry_moved_to_another_place_is_refused() -> None:
    with pytest.raises(LedgerError, match="signed for place 4"):
        Entry.from_bytes(DATA, index=5)


def test_an_entry_of_another_ledger_is_refused() -> None:
    with pytest.raises(SignatureError, match="ledger entry 4"):
        Entry.from_bytes(DATA, index=4).check("strongroom/4567", KEYRING)


def test_an_entry_by_a_stranger_is_refused() -> None:
    with pytest.raises(SignatureError, match="keyring"):
        Entry.from_bytes(DATA, index=4).check(ORIGIN, Keyring())


def test_an_entry_by_a_person_s_key_is_refused() -> None:
    person = Signer.generate()
    data = sign_entry(committed(7), index=4, nonce="0" * 16, origin=ORIGIN, signer=person)
    keyring = KEYRING.with_holder(Holder.of("leyla", Role.PERSON, person))
    with pytest.raises(SignatureError, match="ledger entry 4"):
        Entry.from_bytes(data, index=4).check(ORIGIN, keyring)


def test_any_flipped_byte_is_refused() -> None:
    for place in range(len(DATA)):
        flipped = bytearray(DATA)
        flipped[place] ^= 1
        with pytest.raises((FormatError, LedgerError, SignatureError)):
            Entry.from_bytes(bytes(flipped), index=4).check(ORIGIN, KEYRING)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "strongroom.entry/2"},
        {"event": None},
        {"event": {}},
        {"signature": None},
        {"signature": "x"},
        {"extra": 1},
    ],
)
def test_another_shape_is_refused(change: dict[str, object]) -> None:
    document = {**json.loads(DATA), **change}
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(FormatError, match="ledger entry"):
        Entry.from_bytes(data, index=4)


def test_equal_events_are_two_entries() -> None:
    one, other = (
        sign_entry(committed(7), index=4, nonce=new_nonce(), origin=ORIGIN, signer=SIGNER)
        for _ in range(2)
    )
    assert one != other
