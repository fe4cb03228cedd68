from __future__ import annotations

import pytest

from strongroom.errors import FormatError, SignatureError
from strongroom.ledger.head import EMPTY_HEAD, open_head, sign_head
from strongroom.names import Digest
from strongroom.signing.keyring import Holder, Keyring, Role
from strongroom.signing.keys import Signer
from strongroom.signing.note import sign_note
from tests.support.ledgers import KEYRING, SERVICE, SIGNER, digest_of

ORIGIN = "strongroom/0123"
ROOT = digest_of("root")
NOTE = sign_head(ORIGIN, 7, bytes.fromhex(ROOT.hex), SIGNER)


def test_a_head_opens() -> None:
    head = open_head(NOTE, ORIGIN, KEYRING)
    assert (head.size, head.root, head.signed_by) == (7, ROOT, SERVICE.actor)
    assert head.note == NOTE


def test_a_head_is_three_lines_and_a_signature() -> None:
    origin, size, root, blank, signature, end = NOTE.decode().split("\n")
    assert (origin, size, len(root), blank, end) == (ORIGIN, "7", 44, "", "")
    assert signature.startswith(f"\u2014 {ORIGIN} ")


def test_the_empty_head_has_the_empty_root() -> None:
    assert EMPTY_HEAD.root == Digest.of(b"")


def test_the_head_of_another_ledger_is_refused() -> None:
    with pytest.raises(SignatureError, match="strongroom/4567"):
        open_head(NOTE, "strongroom/4567", KEYRING)


def test_a_person_s_key_signs_no_head() -> None:
    person = Signer.generate()
    keyring = Keyring([Holder.of("leyla", Role.PERSON, person)])
    with pytest.raises(SignatureError):
        open_head(sign_head(ORIGIN, 7, bytes(32), person), ORIGIN, keyring)


@pytest.mark.parametrize(
    "text",
    [
        f"{ORIGIN}\n7\n",
        f"{ORIGIN}\n07\n{'A' * 43}=\n",
        f"{ORIGIN}\n-7\n{'A' * 43}=\n",
        f"{ORIGIN}\n7\n{'A' * 44}\n",
        f"{ORIGIN}\n7\n{'A' * 42}B=\n",
        f"{ORIGIN}\n7\n{'A' * 43}=\nextension\n",
        f"strongroom/other\n7\n{'A' * 43}=\n",
    ],
)
def test_a_signed_text_that_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="tree head"):
        open_head(sign_note(text, ORIGIN, SIGNER), ORIGIN, KEYRING)
