"""docs/ledger.md is enough: a verifier written from it alone, that uses nothing of ours."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from strongroom.ledger.log import Ledger
from strongroom.storage.local import LocalStorage
from strongroom.storage.store import make_store
from tests.support.ledgers import KEYRING, SIGNER, committed


def verify_as_a_stranger(store: Path, keyring_file: Path) -> list[dict[str, Any]]:
    """Return the events of a store's ledger, or raise something."""
    origin = "strongroom/" + json.loads((store / "strongroom.json").read_text())["store_id"]
    services = {
        holder["key_id"]: base64.b64decode(holder["public_key"])
        for holder in json.loads(keyring_file.read_text())["holders"]
        if holder["role"] == "service"
    }

    # 1. the tree head
    text, _, signatures = (store / "ledger/checkpoint").read_text().rpartition("\n\n")
    text += "\n"
    signed = False
    for line in signatures.splitlines():
        _, name, stamp = line.split(" ")
        raw = base64.b64decode(stamp)
        for key in services.values():
            hint = hashlib.sha256(name.encode() + b"\n\x01" + key).digest()[:4]
            if name == origin and raw[:4] == hint:
                Ed25519PublicKey.from_public_bytes(key).verify(raw[4:], text.encode())
                signed = True
    assert signed
    first_line, size_text, root = text.splitlines()
    assert first_line == origin
    size = int(size_text)

    # 2. the entries
    entries: list[bytes] = []
    for number in range((size + 255) // 256):
        width = min(256, size - 256 * number)
        name = f"{number:03d}" + ("" if width == 256 else f".p/{width}")
        data = (store / "ledger/tile/entries" / name).read_bytes()
        while data:
            length = int.from_bytes(data[:2], "big")
            entries.append(data[2 : 2 + length])
            data = data[2 + length :]
    assert len(entries) == size
    assert tree_hash(entries) == base64.b64decode(root)

    # 3. who put each of them there
    for index, entry in enumerate(entries):
        document = json.loads(entry)
        assert document["index"] == index
        body = origin.encode() + b"\n" + re.sub(rb',"signature":"[^"]*"}$', b"}", entry)
        head = b"DSSEv1 39 application/vnd.strongroom.ledger-entry %d " % len(body)
        appender = Ed25519PublicKey.from_public_bytes(services[document["key_id"]])
        appender.verify(base64.b64decode(document["signature"]), head + body)
    return [json.loads(entry)["event"] for entry in entries]


def tree_hash(entries: list[bytes]) -> bytes:
    if len(entries) == 1:
        return hashlib.sha256(b"\x00" + entries[0]).digest()
    middle = 1 << (len(entries) - 1).bit_length() - 1
    children = tree_hash(entries[:middle]) + tree_hash(entries[middle:])
    return hashlib.sha256(b"\x01" + children).digest()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    storage = LocalStorage(tmp_path / "store")
    make_store(storage)
    ledger = Ledger(storage, KEYRING, SIGNER)
    for number in range(5):
        ledger.append(committed(number))
    (tmp_path / "keyring.json").write_bytes(KEYRING.to_bytes())
    return tmp_path / "store"


def test_a_stranger_can_verify(store: Path) -> None:
    events = verify_as_a_stranger(store, store.parent / "keyring.json")
    assert events == [committed(number).to_json() for number in range(5)]


def test_a_stranger_finds_a_change(store: Path) -> None:
    bundle = store / "ledger/tile/entries/000.p/5"
    bundle.write_bytes(bundle.read_bytes().replace(b'"num_bytes":1003', b'"num_bytes":9003'))
    with pytest.raises((AssertionError, InvalidSignature)):
        verify_as_a_stranger(store, store.parent / "keyring.json")


def test_a_stranger_finds_a_forged_head(store: Path) -> None:
    head = store / "ledger/checkpoint"
    head.write_text(head.read_text().replace("\n5\n", "\n4\n"))
    with pytest.raises(InvalidSignature):
        verify_as_a_stranger(store, store.parent / "keyring.json")
