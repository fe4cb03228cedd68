from __future__ import annotations

import os
import pickle
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.entries import FileEntry
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.errors import (
    InputError,
    IntegrityError,
    StoreUnreachableError,
    UnknownNameError,
    VerificationError,
)
from strongroom.names import CheckpointId, CheckpointName, Digest
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import Faults, MemoryStorage
from strongroom.verification.ladder import Rung, RungResult, VerificationReport, verify
from tests.support.checkpoints import checkpoint_name, save_checkpoint, some_id, training_state
from tests.support.crafted import craft, seal, whole

FLIPS = 400


def climb(
    storage: MemoryStorage | LocalStorage, expected_id: CheckpointId | None = None
) -> VerificationReport:
    return verify(storage, checkpoint_name(10), expected_id=expected_id, up_to=Rung.STRUCTURE)


def fault_of(report: VerificationReport) -> IntegrityError:
    fault = report.rungs[-1].faults[0]
    assert isinstance(fault, IntegrityError)
    return fault


def test_a_whole_checkpoint_passes_and_the_report_says_how() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage)
    report = climb(storage, committed.checkpoint_id)
    assert report.passed
    assert report.findings == ()
    assert report.failed_at is None
    assert (report.highest, report.checkpoint_id) == (2, committed.checkpoint_id)
    assert [result.rung for result in report.rungs] == [Rung.BYTES, Rung.STRUCTURE]
    assert all(result.seconds > 0 for result in report.rungs)
    assert report.state_digest == state_digest(CheckpointReader(storage, committed))
    report.raise_for_findings()
    document = report.to_json()
    assert document["passed"] is True
    assert [rung["name"] for rung in document["rungs"]] == ["bytes", "structure"]
    assert document["state_digest"] == str(report.state_digest)


def test_only_the_rungs_asked_for_are_climbed() -> None:
    storage = MemoryStorage()
    save_checkpoint(storage)
    report = verify(storage, checkpoint_name(10), expected_id=None, up_to=Rung.BYTES)
    assert [result.rung for result in report.rungs] == [Rung.BYTES]
    assert report.state_digest is None
    with pytest.raises(InputError, match="rung 3 needs the run's record"):
        verify(storage, checkpoint_name(10), expected_id=None, up_to=Rung.LOAD)


@pytest.mark.parametrize("known", [True, False], ids=["id in the ledger", "id unknown"])
def test_no_flipped_byte_passes_and_each_is_named(tmp_path: Path, known: bool) -> None:
    storage = LocalStorage(tmp_path)
    committed = save_checkpoint(storage)
    folder = tmp_path / committed.folder
    files = sorted(folder.iterdir())
    assert [path.name for path in files] == [
        ".metadata",
        "__0_0.distcp",
        MANIFEST_FILE,
        SEAL_FILE,
    ]
    choose = random.Random(20260131)  # noqa: S311 -- places to break, not secrets
    in_chunks = 0
    for number in range(FLIPS):
        path = files[number % len(files)]
        right = path.read_bytes()
        place = choose.randrange(len(right))
        broken = bytearray(right)
        broken[place] ^= choose.randrange(1, 256)
        path.write_bytes(broken)
        report = climb(storage, committed.checkpoint_id if known else None)
        path.write_bytes(right)
        assert not report.passed, f"byte {place} of {path.name} passed"
        assert report.failed_at is Rung.BYTES
        assert path.name in report.findings[0]
        in_chunks += check_place(committed, path.name, place, report)
        with pytest.raises((IntegrityError, VerificationError)):
            report.raise_for_findings()
    assert in_chunks >= FLIPS / 100, "no chunk was ever hit"
    assert climb(storage, committed.checkpoint_id).passed


def check_place(committed: Committed, file: str, place: int, report: VerificationReport) -> bool:
    """Return whether the byte was one of a chunk, which then was named to the offset."""
    for tensor in committed.manifest.tensors:
        for chunk in tensor.chunks:
            if chunk.file == file and chunk.offset <= place < chunk.offset + chunk.num_bytes:
                fault = fault_of(report)
                assert (fault.tensor, fault.offset) == (tensor.name, chunk.offset)
                assert fault.file == f"{committed.folder}/{file}"
                assert fault.expected == str(chunk.sha256)
                assert Digest.parse(fault.got) != chunk.sha256
                return True
    return False


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp", MANIFEST_FILE, SEAL_FILE])
def test_a_file_that_is_cut_longer_or_gone_is_named(tmp_path: Path, file: str) -> None:
    storage = LocalStorage(tmp_path)
    committed = save_checkpoint(storage)
    path = tmp_path / committed.folder / file
    right = path.read_bytes()
    for broken in (right[:-1], right + b"\0", b""):
        path.write_bytes(broken)
        report = climb(storage, committed.checkpoint_id)
        assert not report.passed
        assert file in report.findings[0]
    path.unlink()
    report = climb(storage, committed.checkpoint_id)
    assert not report.passed
    assert file in report.findings[0]
    assert "no such object" in report.findings[0]


def test_a_file_too_many_is_named() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage)
    storage.create(f"{committed.folder}/notes.txt", b"hello")
    report = climb(storage)
    assert not report.passed
    assert fault_of(report).file == f"{committed.folder}/notes.txt"


def test_another_manifest_than_the_ledgers_is_refused_though_it_is_sealed() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage)
    report = climb(storage, some_id("what was committed"))
    assert report.checkpoint_id is None
    assert fault_of(report).expected == str(some_id("what was committed"))
    assert fault_of(report).got == str(committed.checkpoint_id)
    assert len(report.rungs) == 1


def test_a_checkpoint_that_never_was_is_no_failed_checkpoint() -> None:
    with pytest.raises(UnknownNameError):
        climb(MemoryStorage())
    report = climb(MemoryStorage(), some_id("what was committed"))
    assert fault_of(report).got == "no such object"


def test_a_storage_that_does_not_answer_proves_nothing() -> None:
    class Unreachable(MemoryStorage):
        def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
            if key.endswith(".distcp"):
                raise StoreUnreachableError(f"{key}, {num_bytes} bytes from {offset}: no answer")
            return super().read(key, offset=offset, num_bytes=num_bytes)

    storage = Unreachable()
    save_checkpoint(storage)
    with pytest.raises(StoreUnreachableError):
        climb(storage)


def reseal(storage: MemoryStorage, committed: Committed, contents: dict[str, bytes]) -> None:
    """Put other files in place, under a manifest and a seal that name them as they are."""
    for name, data in contents.items():
        storage.replace(f"{committed.folder}/{name}", data)

    def entry_of(file: FileEntry) -> FileEntry:
        data = storage.read(f"{committed.folder}/{file.name}")
        sha256 = None if file.sha256 is None else Digest.of(data)
        return replace(file, num_bytes=len(data), sha256=sha256)

    files = tuple(map(entry_of, committed.manifest.files))
    seal(storage, replace(committed.manifest, files=files))


def crafted(storage: MemoryStorage, version: int, step: int = 10) -> Committed:
    return craft(storage, [whole(training_state())], step, version=version)


@pytest.mark.parametrize("version", [1, 2])
def test_a_shard_of_another_save_is_named_by_its_header(version: int) -> None:
    storage = MemoryStorage()
    committed, other = crafted(storage, version), crafted(storage, version, 20)
    # The same tensors, so every chunk fits: only the first line tells the shards apart.
    theirs = storage.read(f"{other.folder}/__0_0.distcp")
    reseal(storage, committed, {"__0_0.distcp": theirs})
    report = climb(storage)
    assert report.failed_at is Rung.BYTES
    assert other.manifest.save_id in report.findings[0]
    assert committed.manifest.save_id in report.findings[0]


@pytest.mark.parametrize("version", [1, 2])
def test_a_shard_without_its_first_line_is_named(version: int) -> None:
    storage = MemoryStorage()
    committed = crafted(storage, version)
    shard = storage.read(f"{committed.folder}/__0_0.distcp")
    reseal(storage, committed, {"__0_0.distcp": b"\0" * 128 + shard[128:]})
    report = climb(storage)
    assert report.failed_at is Rung.BYTES
    assert "__0_0.distcp" in report.findings[0]
    assert fault_of(report).offset == 0


def test_chunks_are_checked_at_rung_2_although_the_file_is_as_named() -> None:
    storage = MemoryStorage()
    committed = crafted(storage, 1)
    chunk = committed.manifest.tensor("model.layer.weight").chunks[0]
    shard = bytearray(storage.read(f"{committed.folder}/__0_0.distcp"))
    shard[chunk.offset] ^= 1
    reseal(storage, committed, {"__0_0.distcp": bytes(shard)})
    report = climb(storage)
    assert report.failed_at is Rung.STRUCTURE
    assert (fault_of(report).tensor, fault_of(report).offset) == (
        "model.layer.weight",
        chunk.offset,
    )
    assert report.state_digest is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_values_that_are_not_finite_are_counted_by_tensor(value: float, dtype: torch.dtype) -> None:
    storage = MemoryStorage()
    state = training_state()
    state["optim.state.layer.bias.exp_avg"] = torch.tensor([1, value, 2, value, 3]).to(dtype)
    save_checkpoint(storage, tensors=state)
    report = climb(storage)
    assert report.failed_at is Rung.STRUCTURE
    assert "optim.state.layer.bias.exp_avg" in report.findings[0]
    assert "got 2 that are NaN or infinite" in report.findings[0]
    assert report.state_digest is not None, "every byte could be read"


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_the_ladder_unpickles_nothing(tmp_path: Path) -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage)
    bomb = pickle.dumps(Bomb(tmp_path / "mark"))
    reseal(storage, committed, {".metadata": bomb})
    assert climb(storage).passed, "the index of stock readers is bytes to us"
    assert not (tmp_path / "mark").exists()


def test_a_bad_read_is_no_success() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage)
    key = f"{committed.folder}/.metadata"
    report = climb(storage.reopen(faults=Faults(flip_bits={key: 80})))
    assert fault_of(report).file == key
    assert "bytes outside of any tensor" in report.findings[0]


@pytest.mark.parametrize("version", [1, 2])
def test_memory_does_not_grow_with_the_file(version: int) -> None:
    class Recording(MemoryStorage):
        largest = 0

        def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
            data = super().read(key, offset=offset, num_bytes=num_bytes)
            self.largest = max(self.largest, len(data) if key.endswith(".distcp") else 0)
            return data

    storage = Recording()
    state = training_state() | {"rng.0.torch": torch.zeros(20 * 2**20, dtype=torch.uint8)}
    craft(storage, [whole(state)], version=version)
    assert climb(storage).passed
    assert storage.largest == 2 * 2**20  # of each thread, whatever the size of file or chunk


def test_findings_of_another_kind_are_a_verification_error() -> None:
    report = VerificationReport(
        name=checkpoint_name(1),
        checkpoint_id=None,
        rungs=(RungResult(rung=Rung.STRUCTURE, seconds=0.5, findings=("one", "two")),),
        state_digest=None,
    )
    with pytest.raises(VerificationError, match=r"rung 2 does not hold:\n  - one\n  - two"):
        report.raise_for_findings()
    assert report.highest == 0
    assert report.seconds == 0.5


def test_a_checkpoint_of_an_earlier_release_still_passes() -> None:
    golden = Path(__file__).resolve().parents[2] / "golden" / "checkpoint-1"
    name = CheckpointName.parse("golden-1/attempt-0001/step-00000002")
    report = verify(LocalStorage(golden), name, expected_id=None, up_to=Rung.STRUCTURE)
    assert report.findings == ()
