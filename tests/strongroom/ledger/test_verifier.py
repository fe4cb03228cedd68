from __future__ import annotations

import pytest

from strongroom.errors import FormatError, LedgerError, SignatureError
from strongroom.ledger.entries import sign_entry
from strongroom.ledger.head import sign_head
from strongroom.ledger.tiles import encode_bundle
from strongroom.ledger.tree import leaf_hash
from strongroom.signing.keyring import Holder, Role
from strongroom.signing.keys import Signer
from tests.support.ledgers import KEYRING, SERVICE, SIGNER, MemoryLedger, committed


def test_a_whole_ledger_is_reported() -> None:
    world = MemoryLedger.new(3)
    report = world.open(signer=None).verify()
    assert (report.size, report.signed_by) == (3, SERVICE.actor)
    assert report.root == world.open().head().root
    assert report.num_files == len(world.files) == 7


@pytest.mark.parametrize("key", ["ledger/tile/0/000.p/3", "ledger/tile/0/000.p/1"])
def test_a_changed_tile_is_named(key: str) -> None:
    world = MemoryLedger.new(3)
    world.storage.replace(key, bytes(255 - byte for byte in world.storage.read(key)))
    with pytest.raises(LedgerError, match=f"{key}: differs at byte 0"):
        world.open().verify()


def test_a_longer_tile_is_named() -> None:
    world = MemoryLedger.new(3)
    key = "ledger/tile/0/000.p/2"
    world.storage.replace(key, world.storage.read(key) + b"\x00")
    with pytest.raises(LedgerError, match=f"{key}: differs at byte 64"):
        world.open().verify()


def test_a_missing_tile_is_named() -> None:
    world = MemoryLedger.new(3)
    world.storage.delete("ledger/tile/0/000.p/3")
    with pytest.raises(LedgerError, match=r"missing ledger/tile/0/000\.p/3"):
        world.open().verify()


def test_old_partial_tiles_may_be_gone() -> None:
    world = MemoryLedger.new(3)
    world.storage.delete("ledger/tile/0/000.p/1")
    world.storage.delete("ledger/tile/entries/000.p/2")
    assert world.open().verify().num_files == 5


def test_unknown_files_are_reported_and_left_alone() -> None:
    world = MemoryLedger.new(1)
    world.storage.create("ledger/notes.txt", b"mine")
    world.storage.create("ledger/tile/0/000.p/01", b"misspelt")
    assert world.open().verify().ignored == ("ledger/notes.txt", "ledger/tile/0/000.p/01")


def test_a_head_that_was_set_back_is_found() -> None:
    world = MemoryLedger.new(2)
    old_head = world.files["ledger/checkpoint"]
    world.open().append(committed(3))
    world.open().append(committed(4))
    world.storage.replace("ledger/checkpoint", old_head)
    with pytest.raises(LedgerError, match="4 entries are stored, the signed tree head covers 2"):
        world.open().verify()
    assert world.open().recover() == 2
    assert world.open().verify().size == 4


def _forge(world: MemoryLedger, key: str, entry: bytes) -> None:
    """Lay `entry` beside the log, as the next one of it."""
    before = world.files.get("ledger/tile/entries/000.p/2", b"")
    world.storage.create(key, before + encode_bundle([entry]))


def test_an_entry_laid_beside_the_log_is_never_signed_in() -> None:
    world = MemoryLedger.new(2)
    stranger = Signer.generate()
    origin = world.open().origin
    entry = sign_entry(committed(666), index=2, nonce="0" * 16, origin=origin, signer=stranger)
    _forge(world, "ledger/tile/entries/000.p/3", entry)
    for action in (world.open().verify, world.open().recover):
        with pytest.raises(SignatureError, match="ledger entry 2"):
            action()
    with pytest.raises(SignatureError, match="ledger entry 2"):
        world.open().append(committed(3))
    assert world.open().events() == [committed(0), committed(1)]


def test_an_old_entry_laid_again_is_never_signed_in() -> None:
    world = MemoryLedger.new(2)
    first = world.files["ledger/tile/entries/000.p/1"][2:]
    _forge(world, "ledger/tile/entries/000.p/3", first)
    with pytest.raises(LedgerError, match="signed for place 0"):
        world.open().append(committed(3))


def test_a_bundle_that_does_not_continue_the_log_is_never_signed_in() -> None:
    world = MemoryLedger.new(2)
    origin = world.open().origin
    entry = sign_entry(committed(3), index=2, nonce="0" * 16, origin=origin, signer=SIGNER)
    world.storage.create("ledger/tile/entries/000.p/3", encode_bundle([entry] * 3))
    with pytest.raises(LedgerError, match="differs at byte"):
        world.open().append(committed(4))


def test_an_entry_no_service_signed_is_found_under_a_good_head() -> None:
    # Whoever holds a service key can sign a head over anything, but not another service's entry.
    world = MemoryLedger.new()
    person = Signer.generate()
    keyring = KEYRING.with_holder(Holder.of("leyla", Role.PERSON, person))
    origin = world.open().origin
    entry = sign_entry(committed(0), index=0, nonce="0" * 16, origin=origin, signer=person)
    leaf = leaf_hash(entry)
    world.storage.create("ledger/tile/entries/000.p/1", encode_bundle([entry]))
    world.storage.create("ledger/tile/0/000.p/1", leaf)
    world.storage.create("ledger/checkpoint", sign_head(origin, 1, leaf, SIGNER))
    for action in (world.open(keyring).verify, lambda: world.open(keyring).prove(0)):
        with pytest.raises(SignatureError, match="ledger entry 0"):
            action()


def test_an_entry_that_is_no_event_is_found_under_a_good_head() -> None:
    world = MemoryLedger.new()
    origin = world.open().origin
    leaf = leaf_hash(b"{}")
    world.storage.create("ledger/tile/entries/000.p/1", encode_bundle([b"{}"]))
    world.storage.create("ledger/tile/0/000.p/1", leaf)
    world.storage.create("ledger/checkpoint", sign_head(origin, 1, leaf, SIGNER))
    for action in (world.open().events, world.open().verify):
        with pytest.raises(FormatError, match="ledger entry 0"):
            action()
