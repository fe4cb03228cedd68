"""Signed notes: text with Ed25519 signatures that other tools of transparency logs can read.

A note is UTF-8 text that ends with a newline, an empty line, then one line per signature:
em dash, key name, base64 of four bytes of key hash and the signature. Signatures of keys we do
not know are left alone (a witness may add its own); one of a known key that does not verify
condemns the note.

Source: C2SP signed-note, https://c2sp.org/signed-note
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from strongroom.errors import InputError, SignatureError
from strongroom.signing.encoding import decode_base64, encode_base64
from strongroom.signing.keyring import Holder, Keyring
from strongroom.signing.keys import Signer

_ED25519: Final = b"\x01"
_KEY_HASH_BYTES: Final = 4
_MAX_SIGNATURES: Final = 64
_DASH: Final = "\u2014 "


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedNote:
    """A note at least one known key has signed.

    Attributes:
        text: what was signed, with its final newline.
        holders: who signed it, in the order of the signature lines; never empty.
    """

    text: str
    holders: tuple[Holder, ...]


def sign_note(text: str, name: str, signer: Signer) -> bytes:
    """Return `text` as a note signed under key name `name`.

    Raises:
        InputError: the text or the name cannot stand in a note.
    """
    if not text.endswith("\n") or _has_control(text):
        raise InputError(
            "note: expected text that ends with a newline and has no control characters"
        )
    if not name or "+" in name or any(letter.isspace() for letter in name):
        raise InputError(f"note: expected a key name without spaces and '+', got {name!r}")
    stamp = key_hash(name, signer.public_bytes) + signer.sign(text.encode())
    return f"{text}\n{_DASH}{name} {encode_base64(stamp)}\n".encode()


def open_note(data: bytes, name: str, keyring: Keyring) -> SignedNote:
    """Verify a note that should be signed under key name `name` by a key of the keyring.

    Raises:
        SignatureError: it is no note, no known key has signed it under that name, or a
            signature of a known key does not verify.
    """
    text, lines = _split(data)
    known = {key_hash(name, holder.public_key): holder for holder in keyring}
    holders: list[Holder] = []
    names: list[str] = []
    for line in lines:
        signed_name, stamp = _parse_line(line)
        names.append(signed_name)
        holder = known.get(stamp[:_KEY_HASH_BYTES])
        if signed_name == name and holder is not None:
            keyring.verify(holder.key_id, text.encode(), stamp[_KEY_HASH_BYTES:])
            holders.append(holder)
    if not holders:
        raise SignatureError(
            f"note: expected a signature as {name!r} by one of the {len(keyring)} keys of the "
            f"keyring, got signature(s) as {', '.join(names)} by others; use the keyring and the "
            "store that belong together"
        )
    return SignedNote(text=text, holders=tuple(holders))


def key_hash(name: str, public_key: bytes) -> bytes:
    """Return the four bytes that name an Ed25519 key on a signature line."""
    return hashlib.sha256(name.encode() + b"\n" + _ED25519 + public_key).digest()[:_KEY_HASH_BYTES]


def _split(data: bytes) -> tuple[str, list[str]]:
    """Return the text and the signature lines of a note."""
    try:
        whole = data.decode()
    except UnicodeDecodeError as error:
        raise SignatureError(f"note: expected UTF-8 text: {error}") from error
    head, blank, tail = whole.rpartition("\n\n")
    *lines, rest = tail.split("\n")
    if _has_control(whole) or not blank or rest or not 1 <= len(lines) <= _MAX_SIGNATURES:
        raise SignatureError(
            "note: expected text, an empty line and signature lines, got another shape"
        )
    return head + "\n", lines


def _parse_line(line: str) -> tuple[str, bytes]:
    """Return key name and stamp (key hash, then signature) of one signature line."""
    name, _, encoded = line.removeprefix(_DASH).partition(" ")
    try:
        stamp = decode_base64(encoded)
    except ValueError as error:
        raise SignatureError(f"note: signature line {line!r} is malformed: {error}") from error
    if not line.startswith(_DASH) or not name or len(stamp) <= _KEY_HASH_BYTES:
        raise SignatureError(f"note: signature line {line!r} is malformed")
    return name, stamp


def _has_control(text: str) -> bool:
    return any(letter < " " and letter != "\n" for letter in text)
