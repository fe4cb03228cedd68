"""Proofs a stranger can check without the store: with the keyring and the ledger's origin alone.

Law: `InclusionProof.from_text(p.to_text()) == p`.

Source: C2SP tlog-proof, https://c2sp.org/tlog-proof; the entry travels on its `extra` line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from strongroom.errors import FormatError, LedgerError
from strongroom.ledger.entries import Entry
from strongroom.ledger.events import Event
from strongroom.ledger.head import TreeHead, open_head
from strongroom.ledger.tree import check_consistency, check_inclusion, leaf_hash
from strongroom.names import Digest
from strongroom.signing.encoding import decode_base64, encode_base64
from strongroom.signing.keyring import Keyring

_FIRST_LINE: Final = "c2sp.org/tlog-proof@v1"
_PROOF = re.compile(
    rf"{re.escape(_FIRST_LINE)}\nextra (?P<entry>[^\n]+)\nindex (?P<index>0|[1-9][0-9]{{0,18}})\n"
    r"(?P<path>(?:[^\n]{44}\n){0,64})\n(?P<head>.+)",
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class InclusionProof:
    """Evidence that one entry stands at one place of a ledger.

    Attributes:
        entry: the entry's bytes.
        path: sibling hashes from the leaf up to the root's child.
        head: the signed tree head, as a note.
    """

    index: int
    entry: bytes
    path: tuple[Digest, ...]
    head: bytes

    def check(self, origin: str, keyring: Keyring) -> Event:
        """Verify everything, and return the event that is proved.

        Raises:
            SignatureError: the tree head or the entry is not signed by a service of the keyring.
            LedgerError: the entry is not where the proof says.
            FormatError: the entry is not one.
        """
        head = open_head(self.head, origin, keyring)
        check_inclusion(
            leaf_hash(self.entry),
            self.index,
            head.size,
            [bytes.fromhex(sibling.hex) for sibling in self.path],
            bytes.fromhex(head.root.hex),
        )
        entry = Entry.from_bytes(self.entry, index=self.index)
        entry.check(origin, keyring)
        return entry.event

    def to_text(self) -> str:
        """Return the proof as a `.tlog-proof` file holds it."""
        path = "".join(f"{encode_base64(bytes.fromhex(sibling.hex))}\n" for sibling in self.path)
        return (
            f"{_FIRST_LINE}\nextra {encode_base64(self.entry)}\nindex {self.index}\n"
            f"{path}\n{self.head.decode()}"
        )

    @classmethod
    def from_text(cls, text: str) -> InclusionProof:
        """Read a `.tlog-proof` file.

        Raises:
            FormatError: it is not one, or carries no entry.
        """
        match = _PROOF.fullmatch(text)
        if match is None:
            raise FormatError(
                f"inclusion proof: expected {_FIRST_LINE!r}, 'extra', 'index', hashes, an empty "
                "line and a signed tree head, got another shape"
            )
        try:
            return cls(
                index=int(match["index"]),
                entry=decode_base64(match["entry"]),
                path=tuple(Digest(decode_base64(x).hex()) for x in match["path"].splitlines()),
                head=match["head"].encode(),
            )
        except ValueError as error:
            raise FormatError(f"inclusion proof: a line is malformed: {error}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsistencyProof:
    """Evidence that a ledger only grew since an older tree head.

    Attributes:
        path: the hashes of RFC 6962, section 2.1.2.
        head: the newer signed tree head, as a note.
    """

    old_size: int
    path: tuple[Digest, ...]
    head: bytes

    def check(self, old_root: Digest, origin: str, keyring: Keyring) -> TreeHead:
        """Verify that the ledger of `old_size` and `old_root` only grew; return the newer head.

        Raises:
            SignatureError: the newer head is not signed by a service of the keyring.
            LedgerError: history was rewritten between the two.
        """
        head = open_head(self.head, origin, keyring)
        check_consistency(
            self.old_size,
            bytes.fromhex(old_root.hex),
            head.size,
            bytes.fromhex(head.root.hex),
            [bytes.fromhex(item.hex) for item in self.path],
        )
        return head


def check_size(size: int, head: TreeHead) -> int:
    """Return `size` if a proof from it to `head` can be made.

    Raises:
        LedgerError: the ledger is smaller than that.
    """
    if not 0 <= size <= head.size:
        raise LedgerError(
            f"ledger: expected a size from 0 to {head.size}, got {size}; if a tree head of that "
            "size was ever signed, the log has shrunk: keep that head as evidence"
        )
    return size
