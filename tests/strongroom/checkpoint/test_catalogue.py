from __future__ import annotations

import pytest

from strongroom.checkpoint.attempts import AttemptRecord, claim_attempt
from strongroom.checkpoint.catalogue import (
    checkpoint_names,
    first_difference,
    list_checkpoints,
    read_checkpoint,
    read_lender,
    runs,
)
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE, seal_bytes
from strongroom.errors import FormatError, IntegrityError, UnknownNameError
from strongroom.names import CheckpointId, Digest, RunKey
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import RUN, checkpoint_name, save_checkpoint, some_id


def test_checkpoints_are_listed_in_order_of_attempt_and_step() -> None:
    storage = MemoryStorage()
    for step, attempt in ((20, 1), (100, 1), (30, 2)):
        save_checkpoint(storage, step, attempt=attempt)
    found = list_checkpoints(storage, RUN)
    assert [(item.name.attempt.number, item.name.step.number) for item in found] == [
        (1, 20),
        (1, 100),
        (2, 30),
    ]
    assert checkpoint_names(storage, RUN) == [item.name for item in found]
    assert [item.checkpoint_id for item in found] == [item.manifest.checkpoint_id for item in found]
    assert found.ignored == ()
    assert len(list_checkpoints(storage)) == 3
    assert len(list_checkpoints(storage, RunKey("nightly"))) == 0
    assert runs(storage) == [RUN]


def test_what_is_no_checkpoint_is_reported_and_left_alone() -> None:
    storage = MemoryStorage()
    save_checkpoint(storage, 20)
    claim_attempt(storage, AttemptRecord(run=RUN))
    strange = {
        "runs/nightly-7/attempt-0001/step-00000030/__0_0.distcp": "unfinished",
        "runs/nightly-7/attempt-0001/step-00000040/manifest.sha256": "unfinished",
        "runs/nightly-7/attempt-0001/step-20/manifest.json": "unknown name: step",
        "runs/nightly-7/attempt-0001/step-00000020.bak/manifest.json": "unknown name: step",
        "runs/nightly-7/attempt-1/step-00000020/manifest.json": "unknown name: attempt",
        "runs/Nightly/attempt-0001/step-00000020/manifest.json": "unknown name: run key",
    }
    for key in strange:
        storage.create(key, b"left over")
    found = list_checkpoints(storage)
    assert [item.name.step.number for item in found] == [20]
    reasons = {ignored.folder: ignored.reason for ignored in found.ignored}
    assert len(reasons) == len(strange)
    for key, reason in strange.items():
        ((_, told),) = [pair for pair in reasons.items() if key.startswith(f"{pair[0]}/")]
        assert told.startswith(reason)
    assert not any(ignored.damaged for ignored in found.ignored)
    assert all(storage.stat(key) for key in strange)


def test_a_checkpoint_that_is_not_there_is_named() -> None:
    storage = MemoryStorage()
    save_checkpoint(storage, 20)
    with pytest.raises(UnknownNameError, match="checkpoint nightly-7/21"):
        read_checkpoint(storage, checkpoint_name(21))


def test_a_changed_manifest_contradicts_its_seal() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage, 20)
    key = f"{committed.folder}/{MANIFEST_FILE}"
    changed = storage.read(key).replace(b'"train_loss":1.25', b'"train_loss":0.25')
    storage.replace(key, changed)
    with pytest.raises(IntegrityError) as caught:
        read_checkpoint(storage, committed.name)
    assert caught.value.file == key
    assert caught.value.expected == str(committed.checkpoint_id)
    assert caught.value.got == str(Digest.of(changed))
    (ignored,) = list_checkpoints(storage).ignored
    assert ignored.damaged
    assert "contradict" in ignored.reason
    assert checkpoint_names(storage, RUN) == [committed.name], "it was a checkpoint"


@pytest.mark.parametrize(
    ("seal", "offset"),
    [(b"", 0), (b"no digest", 0), (b"{right}", 64), (b"{right}  manifest.jsoX\n", 78)],
)
def test_a_malformed_seal_is_named_with_the_first_place_that_differs(
    seal: bytes, offset: int
) -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage, 20)
    key = f"{committed.folder}/{SEAL_FILE}"
    storage.replace(key, seal.replace(b"{right}", committed.checkpoint_id.hex.encode()))
    with pytest.raises(IntegrityError) as caught:
        read_checkpoint(storage, committed.name)
    assert (caught.value.file, caught.value.offset) == (key, offset)


def test_a_missing_seal_is_no_success() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage, 20)
    storage.delete(f"{committed.folder}/{SEAL_FILE}")
    with pytest.raises(IntegrityError, match="the seal is missing"):
        read_checkpoint(storage, committed.name)


def test_a_checkpoint_moved_to_another_name_is_not_that_checkpoint() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage, 20)
    other = committed.folder.replace("00000020", "00000030")
    for info in list(storage.walk(committed.folder)):
        storage.create(info.key.replace(committed.folder, other), storage.read(info.key))
    with pytest.raises(IntegrityError, match="the manifest of another checkpoint"):
        read_checkpoint(storage, checkpoint_name(30))


def test_a_sealed_manifest_of_an_unknown_version_is_a_matter_of_format() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage, 20)
    key = f"{committed.folder}/{MANIFEST_FILE}"
    changed = storage.read(key).replace(b"strongroom.manifest/2", b"strongroom.manifest/3")
    storage.replace(key, changed)
    sealed = seal_bytes(CheckpointId(Digest.of(changed)))
    storage.replace(f"{committed.folder}/{SEAL_FILE}", sealed)
    with pytest.raises(FormatError, match=r"manifest/3.*use a release"):
        read_checkpoint(storage, committed.name)
    assert list_checkpoints(storage).ignored[0].damaged


def test_a_lender_is_the_one_that_was_recorded_or_an_error_that_names_it() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage, 20)
    lent = read_lender(storage, committed.name, committed.checkpoint_id)
    assert lent == committed.manifest
    key = f"{committed.folder}/{MANIFEST_FILE}"
    with pytest.raises(IntegrityError, match="another checkpoint stands") as caught:
        read_lender(storage, committed.name, some_id("what was recorded"))
    assert (caught.value.file, caught.value.expected) == (key, str(some_id("what was recorded")))
    storage.delete(key)
    with pytest.raises(IntegrityError, match="lends files is gone") as caught:
        read_lender(storage, committed.name, committed.checkpoint_id)
    assert (caught.value.file, caught.value.expected) == (key, str(committed.checkpoint_id))


@pytest.mark.parametrize(
    ("got", "expected", "offset"),
    [(b"", b"", 0), (b"ab", b"ab", 2), (b"ab", b"abc", 2), (b"axc", b"abc", 1), (b"", b"a", 0)],
)
def test_the_first_difference_is_where_bytes_differ_or_one_ends(
    got: bytes, expected: bytes, offset: int
) -> None:
    assert first_difference(got, expected) == offset
