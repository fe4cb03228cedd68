"""Ledger entries: an event, signed by the service that appended it, for its place in one ledger.

A tree head proves that nothing changed since it was signed; the signature on the entry proves who
put it there, before any tree head covers it. Without it, whoever can write to the bucket could lay
an entry beside the log and have the next honest append sign it in.

An entry is canonical JSON: `format`, `index`, `nonce`, `event`, `key_id`, `signature`. What is
signed is the DSSE pre-authentication encoding, under `ENTRY_TYPE`, of the ledger's origin, a
newline and the entry without its `signature`. The nonce makes two equal events two entries, and
keeps a leaf hash from betraying an event that could be guessed.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.errors import FormatError, LedgerError, SignatureError
from strongroom.ledger.events import Event
from strongroom.signing.encoding import decode_base64, encode_base64
from strongroom.signing.envelope import pae
from strongroom.signing.keyring import Holder, Keyring
from strongroom.signing.keys import Signer

FORMAT: Final = "strongroom.entry/1"
ENTRY_TYPE: Final = "application/vnd.strongroom.ledger-entry"

_FIELDS: Final = {"format", "index", "nonce", "event", "key_id", "signature"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry, as it was read; `check` says whether to believe it.

    Attributes:
        index: the place it was signed for.
        signature: raw, 64 bytes.
        signed: the canonical JSON the signature covers (with the origin before it).
    """

    index: int
    event: Event
    key_id: str
    signature: bytes
    signed: bytes

    @classmethod
    def from_bytes(cls, data: bytes, *, index: int) -> Entry:
        """Read the entry that stands at `index`.

        Raises:
            FormatError: not an entry, or of an unknown version.
            LedgerError: it was signed for another place.
        """
        what = f"ledger entry {index}"
        document = canonical.loads(data, what=what)
        if document.get("format") != FORMAT or document.keys() != _FIELDS:
            raise FormatError(
                f"{what}: expected format {FORMAT!r} with {sorted(_FIELDS)}, "
                f"got {document.get('format')!r} with {sorted(document)}"
            )
        signature = document.pop("signature")
        try:
            entry = cls(
                index=document["index"],
                event=Event.from_json(document["event"]),
                key_id=str(document["key_id"]),
                signature=decode_base64(signature),
                signed=canonical.dumps(document),
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise FormatError(f"{what}: a field is malformed: {error!r}") from error
        if entry.index != index:
            raise LedgerError(f"{what}: was signed for place {entry.index}; it was moved")
        return entry

    def check(self, origin: str, keyring: Keyring) -> Holder:
        """Return the service that appended this entry to the ledger of `origin`.

        Raises:
            SignatureError: no service of the keyring has signed it for this place.
        """
        try:
            return keyring.services().verify(
                self.key_id, _to_sign(origin, self.signed), self.signature
            )
        except SignatureError as error:
            raise SignatureError(f"ledger entry {self.index}: {error}") from error


def new_nonce() -> str:
    """Return 16 random hex digits."""
    return secrets.token_hex(8)


def sign_entry(event: Event, *, index: int, nonce: str, origin: str, signer: Signer) -> bytes:
    """Return the entry that puts `event` at `index` of the ledger of `origin`.

    Raises:
        FormatError: the event has no canonical form.
    """
    document: JsonObject = {
        "format": FORMAT,
        "index": index,
        "nonce": nonce,
        "event": event.to_json(),
        "key_id": signer.key_id,
    }
    signature = signer.sign(_to_sign(origin, canonical.dumps(document)))
    return canonical.dumps({**document, "signature": encode_base64(signature)})


def _to_sign(origin: str, signed: bytes) -> bytes:
    return pae(ENTRY_TYPE, origin.encode() + b"\n" + signed)
