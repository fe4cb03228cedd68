from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from strongroom.errors import (
    FormatError,
    InputError,
    LedgerError,
    SignatureError,
    StoreMissingError,
)
from strongroom.ledger.log import Ledger
from strongroom.ledger.proof import InclusionProof
from strongroom.ledger.tiles import tiles_of
from strongroom.names import Digest
from strongroom.signing.keyring import Holder, Keyring, Role
from strongroom.signing.keys import Signer
from strongroom.storage.memory import MemoryStorage
from strongroom.storage.store import read_store
from tests.support.ledgers import KEYRING, SERVICE, SIGNER, MemoryLedger, committed, run_created


def test_a_new_ledger_is_empty() -> None:
    ledger = MemoryLedger.new().open()
    assert (ledger.head().size, ledger.head().signed_by, ledger.events()) == (0, None, [])
    assert ledger.verify().size == 0


def test_what_was_appended_is_read_in_order() -> None:
    ledger = MemoryLedger.new().open()
    events = [run_created(), committed(10), committed(20)]
    assert [ledger.append(event) for event in events] == [0, 1, 2]
    assert ledger.events() == events
    head = ledger.head()
    assert (head.size, head.signed_by) == (3, SERVICE.actor)


def test_the_files_are_those_of_a_tiled_log() -> None:
    world = MemoryLedger.new(3)
    assert list(world.files) == [
        "ledger/checkpoint",
        "ledger/tile/0/000.p/1",
        "ledger/tile/0/000.p/2",
        "ledger/tile/0/000.p/3",
        "ledger/tile/entries/000.p/1",
        "ledger/tile/entries/000.p/2",
        "ledger/tile/entries/000.p/3",
    ]


def test_the_ledger_is_named_after_its_store() -> None:
    world = MemoryLedger.new(1)
    store_id = read_store(world.storage).store_id
    assert world.open().origin == f"strongroom/{store_id}"
    assert world.files["ledger/checkpoint"].startswith(f"strongroom/{store_id}\n1\n".encode())


def test_a_storage_without_a_store_has_no_ledger() -> None:
    with pytest.raises(StoreMissingError):
        Ledger(MemoryStorage(), KEYRING, SIGNER).events()


def test_a_ledger_copied_from_another_store_is_refused() -> None:
    world, other = MemoryLedger.new(2), MemoryLedger.new()
    for key, data in world.files.items():
        other.storage.create(key, data)
    with pytest.raises(SignatureError, match="belong together"):
        other.open().head()


def test_a_ledger_grows_past_full_tiles() -> None:
    world = MemoryLedger.new()
    ledger = world.open()
    events = [committed(number) for number in range(260)]
    for event in events:
        ledger.append(event)
    assert ledger.events() == events
    report = ledger.verify()
    assert (report.size, report.num_unfinished, report.ignored) == (260, 0, ())
    assert report.num_files == len(world.files)
    assert {f"ledger/{tile.path}" for tile in tiles_of(260)} <= world.files.keys()
    for index in (0, 255, 256, 259):
        assert ledger.prove(index).check(ledger.origin, KEYRING) == events[index]
    for old_size in (0, 1, 255, 256, 257, 260):
        root = Digest.of(b"") if old_size == 0 else _root_at(world, old_size)
        assert ledger.prove_consistency(old_size).check(root, ledger.origin, KEYRING).size == 260


def _root_at(world: MemoryLedger, size: int) -> Digest:
    """Return the root the same ledger had at an earlier size."""
    earlier = MemoryLedger()
    earlier.storage.create("strongroom.json", world.storage.read("strongroom.json"))
    ledger = earlier.open()
    for tile in tiles_of(size):
        earlier.storage.create(f"ledger/{tile.path}", world.files[f"ledger/{tile.path}"])
    from strongroom.ledger.tiles import nodes_from
    from strongroom.ledger.tree import range_root

    node = nodes_from(size, lambda tile: earlier.storage.read(f"ledger/{tile.path}"))
    assert ledger.origin
    return Digest(range_root(0, size, node).hex())


def test_two_services_share_a_ledger() -> None:
    world = MemoryLedger.new(1)
    second = Signer.generate()
    keyring = KEYRING.with_holder(Holder.of("service", Role.SERVICE, second))
    world.open(keyring, second).append(committed(2))
    ledger = world.open(keyring)
    assert ledger.verify().signed_by == f"service:{second.key_id}"
    with pytest.raises(SignatureError):
        world.open(KEYRING).head()


def test_nothing_is_appended_without_a_key() -> None:
    with pytest.raises(InputError, match="for reading"):
        MemoryLedger.new().open(signer=None).append(committed(1))


def test_a_key_nobody_trusts_appends_nothing() -> None:
    world = MemoryLedger.new()
    stranger = Signer.generate()
    with pytest.raises(SignatureError, match=stranger.key_id):
        world.open(signer=stranger).append(committed(1))
    person = Holder.of("leyla", Role.PERSON, stranger)
    with pytest.raises(SignatureError, match=stranger.key_id):
        world.open(KEYRING.with_holder(person), stranger).append(committed(1))
    assert world.files == {}


def test_what_a_history_could_not_read_is_not_appended() -> None:
    world = MemoryLedger.new()
    with pytest.raises(FormatError, match=r"facts\.num_bytes"):
        world.open().append(replace(committed(1), facts={}))
    with pytest.raises(FormatError, match="canonical"):
        world.open().append(replace(committed(1), facts={"num_bytes": 1, "x": float("nan")}))
    assert world.files == {}


def test_an_event_too_long_is_not_appended() -> None:
    world = MemoryLedger.new()
    event = committed(1)
    with pytest.raises(InputError, match="at most 65535"):
        world.open().append(replace(event, facts={**event.facts, "text": "x" * 65_300}))
    assert world.files == {}


def test_a_changed_log_is_not_built_upon() -> None:
    world = MemoryLedger.new(3)
    key = "ledger/tile/entries/000.p/3"
    data = bytearray(world.storage.read(key))
    data[40] ^= 1
    world.storage.replace(key, bytes(data))
    with pytest.raises(LedgerError, match="nothing may be appended"):
        world.open().append(committed(4))
    assert "ledger/tile/entries/000.p/4" not in world.files


def test_an_unknown_keyring_reads_nothing() -> None:
    with pytest.raises(SignatureError):
        MemoryLedger.new(1).open(Keyring()).events()


def test_a_changed_entry_is_named() -> None:
    world = MemoryLedger.new(3)
    key = "ledger/tile/entries/000.p/3"
    world.storage.replace(
        key, world.storage.read(key).replace(b'"num_bytes":1001', b'"num_bytes":9001')
    )
    with pytest.raises(LedgerError, match="entry 1: expected root"):
        world.open(signer=None).events()


def test_a_forged_tile_beside_a_forged_entry_is_found_by_the_head() -> None:
    world, other = MemoryLedger.new(1), MemoryLedger.new()
    other.storage.replace("strongroom.json", world.storage.read("strongroom.json"))
    other.open().append(committed(666))
    for name in ("entries", "0"):
        key = f"ledger/tile/{name}/000.p/1"
        world.storage.replace(key, other.storage.read(key))
    with pytest.raises(LedgerError, match="not with the signed tree head"):
        world.open().events()


def test_a_missing_bundle_is_named() -> None:
    world = MemoryLedger.new(3)
    world.storage.delete("ledger/tile/entries/000.p/3")
    with pytest.raises(LedgerError, match=r"tile/entries/000\.p/3: is missing"):
        world.open().events()


def test_a_ledger_whose_head_is_gone_is_not_an_empty_one() -> None:
    world = MemoryLedger.new(2)
    world.storage.delete("ledger/checkpoint")
    with pytest.raises(LedgerError, match="checkpoint: is missing"):
        world.open().events()


def test_an_index_beyond_the_end_cannot_be_proved() -> None:
    for index in (-1, 2):
        with pytest.raises(InputError, match="2 events"):
            MemoryLedger.new(2).open().prove(index)


def test_a_changed_log_proves_nothing() -> None:
    world = MemoryLedger.new(4)
    key = "ledger/tile/0/000.p/4"
    data = bytearray(world.storage.read(key))
    data[40] ^= 1
    world.storage.replace(key, bytes(data))
    with pytest.raises(LedgerError, match="inclusion proof of entry 0"):
        world.open().prove(0)


def test_a_shrunken_ledger_proves_no_consistency() -> None:
    with pytest.raises(LedgerError, match="shrunk"):
        MemoryLedger.new(2).open().prove_consistency(3)


def test_a_proof_needs_no_store() -> None:
    world = MemoryLedger.new(5)
    ledger = world.open()
    text = ledger.prove(3).to_text()
    origin = ledger.origin
    del world, ledger
    assert InclusionProof.from_text(text).check(origin, KEYRING) == committed(3)


def test_one_line_is_logged_per_append(caplog: pytest.LogCaptureFixture) -> None:
    ledger = MemoryLedger.new().open()
    with caplog.at_level(logging.INFO, logger="strongroom.ledger"):
        ledger.append(committed(10))
    assert [record.getMessage() for record in caplog.records] == [
        "ledger appended: index=0 kind=checkpoint.committed "
        "checkpoint=nightly-7/attempt-0001/step-00000010"
    ]
