"""Signed tree heads: size and root of a ledger, vouched for by a service.

Source: C2SP tlog-checkpoint, https://c2sp.org/tlog-checkpoint (no extension lines are written).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from strongroom.errors import FormatError
from strongroom.ledger.tree import EMPTY_ROOT
from strongroom.names import Digest
from strongroom.signing.encoding import decode_base64, encode_base64
from strongroom.signing.keyring import Keyring
from strongroom.signing.keys import Signer
from strongroom.signing.note import open_note, sign_note

_TEXT = re.compile(r"(?P<origin>[^\n]+)\n(?P<size>0|[1-9][0-9]{0,18})\n(?P<root>[^\n]{44})\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeHead:
    """How large a ledger is and what it holds, in one hash.

    Attributes:
        size: number of events.
        root: RFC 6962 root hash.
        signed_by: actor of the service whose signature was verified; None for a ledger that has
            never had an event.
        note: the signed note itself, for proofs; empty as above.
    """

    size: int
    root: Digest
    signed_by: str | None
    note: bytes = b""


EMPTY_HEAD = TreeHead(size=0, root=Digest(EMPTY_ROOT.hex()), signed_by=None)


def sign_head(origin: str, size: int, root: bytes, signer: Signer) -> bytes:
    """Return the signed note that vouches for a ledger of `size` with this `root` hash."""
    return sign_note(f"{origin}\n{size}\n{encode_base64(root)}\n", origin, signer)


def open_head(data: bytes, origin: str, keyring: Keyring) -> TreeHead:
    """Verify a signed tree head of the ledger of `origin`.

    Raises:
        SignatureError: no service of the keyring has signed it as this ledger's.
        FormatError: a service has signed it, but it is not a tree head.
    """
    note = open_note(data, origin, keyring.services())
    match = _TEXT.fullmatch(note.text)
    try:
        root = decode_base64(match["root"]) if match else b""
    except ValueError as error:
        raise FormatError(f"tree head of {origin}: the root hash is malformed: {error}") from error
    if match is None or match["origin"] != origin or len(root) != len(EMPTY_ROOT):
        raise FormatError(
            f"tree head of {origin}: expected the lines origin, size and root hash, "
            f"got {note.text!r}"
        )
    return TreeHead(
        size=int(match["size"]),
        root=Digest(root.hex()),
        signed_by=note.holders[0].actor,
        note=data,
    )
