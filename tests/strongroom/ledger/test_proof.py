from __future__ import annotations

from dataclasses import replace

import pytest

from strongroom.errors import FormatError, LedgerError, SignatureError, StrongroomError
from strongroom.ledger.proof import InclusionProof
from strongroom.names import Digest
from strongroom.signing.keyring import Keyring
from tests.support.ledgers import KEYRING, MemoryLedger, committed, digest_of

LEDGER = MemoryLedger.new(6).open()
PROOF = LEDGER.prove(3)


def test_a_proof_survives_its_text() -> None:
    assert InclusionProof.from_text(PROOF.to_text()) == PROOF


def test_a_proof_of_the_only_entry_survives_its_text() -> None:
    proof = MemoryLedger.new(1).open().prove(0)
    assert proof.path == ()
    assert InclusionProof.from_text(proof.to_text()) == proof


def test_the_text_is_what_the_specification_prescribes() -> None:
    lines = PROOF.to_text().split("\n")
    assert lines[0] == "c2sp.org/tlog-proof@v1"
    assert lines[1].startswith("extra ")
    assert lines[2] == "index 3"
    assert lines[3 + len(PROOF.path)] == ""
    assert lines[4 + len(PROOF.path)] == LEDGER.origin


def test_a_proof_proves_its_event() -> None:
    assert PROOF.check(LEDGER.origin, KEYRING) == committed(3)


def test_a_proof_of_another_place_is_refused() -> None:
    with pytest.raises(LedgerError, match="entry 2"):
        replace(PROOF, index=2).check(LEDGER.origin, KEYRING)


def test_a_proof_of_another_entry_is_refused() -> None:
    with pytest.raises(LedgerError, match="entry 3"):
        replace(PROOF, entry=LEDGER.prove(2).entry).check(LEDGER.origin, KEYRING)


def test_a_proof_for_another_ledger_or_keyring_is_refused() -> None:
    with pytest.raises(SignatureError):
        PROOF.check("strongroom/other", KEYRING)
    with pytest.raises(SignatureError):
        PROOF.check(LEDGER.origin, Keyring())


def test_any_flipped_byte_is_refused() -> None:
    text = PROOF.to_text().encode()
    for place in range(len(text)):
        flipped = bytearray(text)
        flipped[place] ^= 1
        try:
            changed = InclusionProof.from_text(bytes(flipped).decode())
        except (FormatError, UnicodeDecodeError):
            continue
        with pytest.raises(StrongroomError):
            changed.check(LEDGER.origin, KEYRING)


@pytest.mark.parametrize(
    "text",
    ["", "c2sp.org/tlog-proof@v2\n", "c2sp.org/tlog-proof@v1\nindex 3\n\nhead\n"],
)
def test_what_is_no_proof_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="inclusion proof"):
        InclusionProof.from_text(text)


def test_a_rewritten_history_is_not_consistent() -> None:
    proof = LEDGER.prove_consistency(4)
    with pytest.raises(LedgerError, match="rewritten"):
        proof.check(digest_of("the root a witness kept"), LEDGER.origin, KEYRING)
    assert proof.check(_root_of(4), LEDGER.origin, KEYRING) == LEDGER.head()


def _root_of(size: int) -> Digest:
    from strongroom.ledger.tree import leaf_hash, nodes_of, range_root

    leaves = [leaf_hash(LEDGER.prove(index).entry) for index in range(size)]
    return Digest(range_root(0, size, nodes_of(leaves)).hex())
