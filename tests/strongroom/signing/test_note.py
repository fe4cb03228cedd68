from __future__ import annotations

import base64

import pytest

from strongroom.errors import InputError, SignatureError
from strongroom.signing.keyring import Holder, Keyring, Role
from strongroom.signing.keys import Signer, key_id_of
from strongroom.signing.note import key_hash, open_note, sign_note

NAME = "strongroom/0123"
TEXT = "strongroom/0123\n7\nroot\n"
SIGNER, OTHER = Signer.generate(), Signer.generate()
HOLDER = Holder.of("service", Role.SERVICE, SIGNER)
KEYRING = Keyring([HOLDER])


def test_a_note_opens() -> None:
    note = open_note(sign_note(TEXT, NAME, SIGNER), NAME, KEYRING)
    assert (note.text, note.holders) == (TEXT, (HOLDER,))


def test_the_specification_s_example_verifies() -> None:
    # Source: C2SP signed-note, section "Example": a verifier key and a note it verifies.
    vkey = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
    name, hash_hex, encoded = vkey.split("+")
    kind, public_key = base64.b64decode(encoded)[:1], base64.b64decode(encoded)[1:]
    assert (kind, key_hash(name, public_key).hex()) == (b"\x01", hash_hex)
    holder = Holder(
        name="foo", role=Role.SERVICE, key_id=key_id_of(public_key), public_key=public_key
    )
    note = (
        "This is an example message.\n\n\u2014 example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6"
        "TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
    ).encode()
    assert open_note(note, name, Keyring([holder])).holders == (holder,)
    with pytest.raises(SignatureError):
        open_note(note.replace(b"example message", b"exemple message"), name, Keyring([holder]))


def test_a_witness_may_add_its_signature() -> None:
    witness = sign_note(TEXT, "witness.example", OTHER).decode().rpartition("\n\n")[2]
    cosigned = sign_note(TEXT, NAME, SIGNER) + witness.encode()
    assert open_note(cosigned, NAME, KEYRING).holders == (HOLDER,)


def test_a_text_may_hold_empty_lines() -> None:
    text = "one\n\ntwo\n"
    assert open_note(sign_note(text, NAME, SIGNER), NAME, KEYRING).text == text


@pytest.mark.parametrize(
    "note",
    [
        sign_note(TEXT, NAME, OTHER),
        sign_note(TEXT, "strongroom/other", SIGNER),
        sign_note(TEXT.replace("7", "8"), NAME, OTHER),
    ],
)
def test_a_note_nobody_known_signed_is_refused(note: bytes) -> None:
    with pytest.raises(SignatureError, match="keyring"):
        open_note(note, NAME, KEYRING)


def test_a_known_key_s_bad_signature_condemns_the_note() -> None:
    good = sign_note(TEXT, NAME, SIGNER)
    bad = sign_note("another text\n", NAME, SIGNER).decode().rpartition("\n\n")[2].encode()
    with pytest.raises(SignatureError, match="does not verify"):
        open_note(good + bad, NAME, KEYRING)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"text\n",
        b"text\n\n",
        b"text\n\n\n",
        b"text\n\nno dash QUFBQUFB\n",
        "text\n\n\u2014 name\n".encode(),
        "text\n\n\u2014 name QUFB\n".encode(),
        "text\n\n\u2014 name Q===\n".encode(),
        "text\n\n\u2014  QUFBQUFB\n".encode(),
        b"\xfftext\n\n",
        b"te\rxt\n\n" + sign_note(TEXT, NAME, SIGNER),
        sign_note(TEXT, NAME, SIGNER).rstrip(b"\n"),
        sign_note(TEXT, NAME, SIGNER) + b"\n",
    ],
)
def test_another_shape_is_refused(data: bytes) -> None:
    with pytest.raises(SignatureError, match="note"):
        open_note(data, NAME, KEYRING)


@pytest.mark.parametrize("text", ["", "no newline", "tab\t\n", "\r\n"])
def test_a_text_that_cannot_stand_in_a_note_is_not_signed(text: str) -> None:
    with pytest.raises(InputError, match="note"):
        sign_note(text, NAME, SIGNER)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\u2003b"])
def test_a_name_that_cannot_stand_in_a_note_does_not_sign(name: str) -> None:
    with pytest.raises(InputError, match="key name"):
        sign_note(TEXT, name, SIGNER)


def test_any_flipped_byte_is_refused() -> None:
    data = sign_note(TEXT, NAME, SIGNER)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1
        with pytest.raises(SignatureError):
            open_note(bytes(flipped), NAME, KEYRING)
