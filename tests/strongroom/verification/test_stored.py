from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.entries import Chunk, TensorEntry
from strongroom.checkpoint.manifest import MANIFEST_FILE, Manifest
from strongroom.checkpoint.reading.files import shard_header
from strongroom.checkpoint.reading.spans import Span
from strongroom.errors import IntegrityError, StrongroomError
from strongroom.names import Digest
from strongroom.storage.base import ObjectInfo
from strongroom.storage.memory import MemoryStorage
from strongroom.verification.stored import coverage_faults, stored_faults
from tests.support.checkpoints import save_checkpoint, training_state
from tests.support.crafted import Placed, craft, seal, whole


def span(offset: int, num_bytes: int) -> Span:
    entry = TensorEntry(name="w", dtype="uint8", shape=(num_bytes,), chunks=())
    chunk = Chunk(
        at=(0,),
        shape=(num_bytes,),
        file="f",
        offset=offset,
        num_bytes=num_bytes,
        sha256=Digest.of(b""),
    )
    return Span(tensor=entry, chunk=chunk)


@pytest.mark.parametrize(
    ("spans", "faults"),
    [
        ([(64, 10), (74, 26)], []),
        ([(74, 26), (64, 10)], []),
        ([], [(64, "36 bytes in no chunk")]),
        ([(65, 35)], [(64, "1 bytes in no chunk")]),
        ([(64, 10), (80, 20)], [(74, "6 bytes in no chunk")]),
        ([(64, 30)], [(94, "6 bytes in no chunk")]),
        ([(64, 20), (80, 20)], [(80, "4 bytes in two chunks")]),
        ([(60, 40)], [(60, "4 bytes in two chunks")]),
        ([(64, 36), (64, 36)], [(64, "36 bytes in two chunks")]),
    ],
)
def test_bytes_left_out_or_held_twice_are_found(
    spans: list[tuple[int, int]], faults: list[tuple[int, str]]
) -> None:
    assert coverage_faults([span(*place) for place in spans], start=64, end=100) == faults


@given(st.lists(st.tuples(st.integers(3, 12), st.integers(1, 9)), max_size=4))
def test_nothing_is_found_exactly_where_every_byte_is_in_one_span(
    places: list[tuple[int, int]],
) -> None:
    counts = [sum(at <= byte < at + size for at, size in places) for byte in range(25)]
    end = max((at + size for at, size in places), default=3)
    is_covered = counts[3:end] == [1] * (end - 3)
    found = coverage_faults([span(*place) for place in places], start=3, end=end)
    assert (found == []) == is_covered


def only(faults: Sequence[StrongroomError]) -> IntegrityError:
    (fault,) = faults
    assert isinstance(fault, IntegrityError)
    return fault


@pytest.mark.parametrize("version", [1, 2])
def test_what_was_written_has_no_faults(version: int) -> None:
    storage = MemoryStorage()
    committed = craft(storage, [whole(training_state())], version=version)
    assert stored_faults(storage, committed) == []
    assert stored_faults(storage, save_checkpoint(storage, 20)) == []


def reforged(storage: MemoryStorage, committed: Committed, manifest: Manifest) -> Committed:
    seal(storage, manifest)
    return replace(committed, manifest=manifest, checkpoint_id=manifest.checkpoint_id)


def test_bytes_of_a_shard_that_no_chunk_covers_are_named() -> None:
    storage = MemoryStorage()
    committed = craft(storage, [whole({"v": torch.ones(3), "w": torch.ones(5)})])
    v, w = committed.manifest.tensors
    key = f"{committed.folder}/__0_0.distcp"
    without = reforged(storage, committed, replace(committed.manifest, tensors=(v,)))
    fault = only(stored_faults(storage, without))
    assert (fault.file, fault.offset) == (key, w.chunks[0].offset)
    assert fault.got == f"{w.chunks[0].num_bytes} bytes in no chunk"
    twice = replace(w, name="x")
    again = reforged(storage, committed, replace(committed.manifest, tensors=(v, w, twice)))
    fault = only(stored_faults(storage, again))
    assert (fault.file, fault.offset) == (key, w.chunks[0].offset)
    assert fault.got == f"{w.chunks[0].num_bytes} bytes in two chunks"


def test_all_that_is_damaged_is_named() -> None:
    storage = MemoryStorage()
    ranks = [
        {
            "w": [Placed((rank, 0), torch.full((1, 1000), rank))],
            f"v{rank}": [Placed((), torch.ones(()))],
        }
        for rank in range(3)
    ]
    committed = craft(storage, ranks)
    broken = [committed.manifest.tensor("w").chunks[place] for place in (0, 2)]
    for chunk in broken:
        key = f"{committed.folder}/{chunk.file}"
        shard = bytearray(storage.read(key))
        shard[chunk.offset + chunk.num_bytes // 2] ^= 4
        storage.replace(key, bytes(shard))
    storage.delete(f"{committed.folder}/__1_0.distcp")
    storage.create(f"{committed.folder}/__3_0.distcp", b"hello")
    faults = stored_faults(storage, committed)
    assert all(isinstance(fault, IntegrityError) for fault in faults)
    found = {(f.file[-12:], f.tensor) for f in faults if isinstance(f, IntegrityError)}
    assert found == {
        ("__0_0.distcp", "w"),
        ("__1_0.distcp", None),
        ("__2_0.distcp", "w"),
        ("__3_0.distcp", None),
    }
    assert len(faults) == 4


def test_a_file_cut_while_it_is_read_is_named() -> None:
    class Cut(MemoryStorage):
        """Lists a file as it was, and reads it as it is now."""

        def walk(self, folder: str) -> Iterator[ObjectInfo]:
            for info in super().walk(folder):
                longer = info.num_bytes + 100 if info.key.endswith(".distcp") else info.num_bytes
                yield replace(info, num_bytes=longer)

    for version in (1, 2):
        storage = Cut()
        committed = craft(storage, [whole({"w": torch.ones(500)})], version=version)
        key = f"{committed.folder}/__0_0.distcp"
        storage.replace(key, storage.read(key)[:-100])
        fault = only(stored_faults(storage, committed))
        assert "too short" in str(fault)
        assert "__0_0.distcp" in fault.file


def test_the_digest_of_a_file_is_that_of_its_bytes_and_not_what_a_store_made_of_its_parts() -> None:
    """A store's checksum of an upload in parts is a digest of digests (multicodec#342)."""
    parts = [b"A" * (5 * 2**20), b"B" * (5 * 2**20), b"C" * 1000]
    whole_file = Digest("bf6a4497c5762ec0343e75f95fd1f3783321321f3113b201b74a6a645b8c9730")
    composite = Digest.of(b"".join(hashlib.sha256(part).digest() for part in parts))
    storage = MemoryStorage()
    committed = craft(storage, [whole({"w": torch.ones(3)})], index=b"".join(parts))
    index = committed.manifest.files[0]
    assert index.sha256 == whole_file
    assert stored_faults(storage, committed) == []
    files = (replace(index, sha256=composite), *committed.manifest.files[1:])
    other = reforged(storage, committed, replace(committed.manifest, files=files))
    fault = only(stored_faults(storage, other))
    assert (fault.expected, fault.got) == (str(composite), str(whole_file))


# --- what is borrowed -----------------------------------------------------------------


class Delta:
    """A lender of `w`, and a borrower that changed `v`."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        w = torch.arange(100.0)
        self.base = craft(self.storage, [whole({"w": w, "v": torch.zeros(3)})], 5)
        self.committed = craft(self.storage, [whole({"w": w, "v": torch.ones(3)})], base=self.base)
        self.shard = f"{self.base.folder}/__0_0.distcp"

    def flip(self, tensor: str) -> Chunk:
        """Flip a bit of the lender's chunk."""
        (chunk,) = self.base.manifest.tensor(tensor).chunks
        data = bytearray(self.storage.read(self.shard))
        data[chunk.offset + chunk.num_bytes // 2] ^= 1
        self.storage.replace(self.shard, bytes(data))
        return chunk

    def fault(self) -> IntegrityError:
        return only(stored_faults(self.storage, self.committed))


def test_a_delta_stands_on_what_it_borrows_and_on_nothing_else() -> None:
    delta = Delta()
    assert stored_faults(delta.storage, delta.committed) == []
    delta.flip("v")  # which the delta has of its own
    assert stored_faults(delta.storage, delta.committed) == []
    chunk = delta.flip("w")
    fault = delta.fault()
    assert (fault.file, fault.tensor, fault.offset) == (delta.shard, "w", chunk.offset)


def test_a_lender_that_is_gone_cut_or_another_is_named() -> None:
    delta = Delta()
    right = delta.storage.read(delta.shard)
    delta.storage.replace(delta.shard, right[:-1])
    assert delta.fault().file == delta.shard
    delta.storage.delete(delta.shard)
    assert delta.fault().got == "no such object"
    delta.storage.create(delta.shard, right)
    assert stored_faults(delta.storage, delta.committed) == []
    key = f"{delta.base.folder}/{MANIFEST_FILE}"
    manifest = delta.storage.read(key)
    seal(delta.storage, replace(delta.base.manifest, created="2026-02-01T00:00:00.000Z"))
    assert "another checkpoint stands" in str(delta.fault())
    delta.storage.replace(key, manifest)  # beside the seal of the other
    assert "contradict" in str(delta.fault())
    delta.storage.delete(key)
    assert "is gone" in str(delta.fault())


# --- how much is read, and how --------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_every_byte_is_read_once(version: int) -> None:
    class Counting(MemoryStorage):
        num_bytes = 0

        def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
            self.num_bytes += sum(buffer.nbytes for buffer in buffers)
            super().read_into(key, offset, buffers)

    storage = Counting()
    tensors = {f"w{n}": torch.ones(1000 * n) for n in range(20)}
    committed = craft(storage, [whole(tensors)], version=version)
    assert stored_faults(storage, committed) == []
    header = shard_header(committed.manifest, "__0_0.distcp")
    assert header is not None
    apart = 0 if version == 1 else len(header)  # which is compared by itself
    assert committed.manifest.num_bytes - storage.num_bytes == apart


@pytest.mark.parametrize("version", [1, 2])
def test_all_cores_hash_at_the_same_time(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2})
    meeting = threading.Barrier(3, timeout=20)

    class Meeting(MemoryStorage):
        def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
            if key.endswith(".distcp"):
                meeting.wait()  # is left only when three are here
            super().read_into(key, offset, buffers)

    storage = Meeting()
    ranks = [{"w": [Placed((rank, 0), torch.full((1, 1000), rank))]} for rank in range(3)]
    assert stored_faults(storage, craft(storage, ranks, version=version)) == []
