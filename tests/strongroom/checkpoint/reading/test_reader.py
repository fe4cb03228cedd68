from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from strongroom.checkpoint.boxes import Box, cut
from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.checkpoint.entries import Chunk
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.shard import METADATA_FILE
from strongroom.errors import IntegrityError
from strongroom.names import Digest
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import Faults, MemoryStorage
from strongroom.storage.s3 import S3Settings, S3Storage
from strongroom.verification.stored import stored_faults
from tests.support.checkpoints import bits, mixed_state, same, save_checkpoint, zeros_like
from tests.support.crafted import Placed, Rank, craft, seal, spread, whole

MIB = 2**20
KINDS = ["version 1", "full", "delta"]


class Recording(MemoryStorage):
    """Counts what is read of shards, and how much at a time."""

    def __init__(self, *, part_min_bytes: int = 1, pause_s: float = 0) -> None:
        super().__init__(part_min_bytes=part_min_bytes)
        self.pause_s = pause_s
        self.reads: list[tuple[str, int, int]] = []

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
        self.reads.append((key, offset, sum(buffer.nbytes for buffer in buffers)))
        time.sleep(self.pause_s)
        super().read_into(key, offset, buffers)


def halves(tensors: dict[str, Tensor]) -> list[Rank]:
    """Return the first rows of every tensor for one rank, the others for another."""
    boxes = {}
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        boxes[name] = [[box] for box in cut(shape, item_bytes=1, max_bytes=tensor.numel() // 2 + 1)]
    return spread(tensors, boxes)


def stored(storage: MemoryStorage, kind: str, tensors: dict[str, Tensor]) -> Committed:
    """Store a checkpoint of two ranks; as a delta, every second tensor is borrowed."""
    ranks = halves(tensors)
    if kind != "delta":
        return craft(storage, ranks, version=1 if kind == "version 1" else 2)
    changed = {
        name: torch.zeros_like(tensor) if number % 2 else tensor
        for number, (name, tensor) in enumerate(tensors.items())
    }
    base = craft(storage, halves(changed), 5)
    committed = craft(storage, ranks, base=base)
    assert committed.manifest.lenders == {base.name: base.checkpoint_id}
    assert 0 < committed.manifest.borrowed_share < 1
    return committed


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tensor_reads_back_bit_for_bit(kind: str) -> None:
    storage = MemoryStorage()
    state = mixed_state()
    reader = CheckpointReader(storage, stored(storage, kind, state))
    assert reader.tensor_names == tuple(sorted(state))
    assert same({name: reader.read(name) for name in reader.tensor_names}, state)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tensor_loads_into_another_bit_for_bit(kind: str) -> None:
    storage = MemoryStorage()
    state = mixed_state()
    target = zeros_like(state)
    CheckpointReader(storage, stored(storage, kind, state)).load_into(target)
    assert same(target, state)


@pytest.mark.parametrize("kind", KINDS)
def test_row_major_parts_join_to_the_whole_tensor(kind: str) -> None:
    storage = MemoryStorage()
    state = mixed_state()
    reader = CheckpointReader(storage, stored(storage, kind, state))
    for name, tensor in state.items():
        parts = [bits(part) for part in reader.row_major(name)]
        assert torch.equal(torch.cat(parts) if parts else bits(tensor), bits(tensor))


def test_stock_dcp_loads_what_was_written(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    state = mixed_state()
    committed = save_checkpoint(storage, tensors=state)
    target = zeros_like(state)
    dcp.load(target, checkpoint_id=tmp_path / committed.folder)  # type: ignore[attr-defined]
    assert same(target, state)


def test_targets_may_be_views_and_parameters() -> None:
    storage = MemoryStorage()
    source = {"w": torch.arange(12.0).reshape(3, 4), "p": torch.ones(2)}
    committed = save_checkpoint(storage, tensors=source)
    base = torch.zeros(4, 3)
    target = {"w": base.t(), "p": torch.nn.Parameter(torch.zeros(2))}
    CheckpointReader(storage, committed).load_into(target)
    assert torch.equal(base, source["w"].t())
    assert torch.equal(target["p"], source["p"])


def test_rows_cut_otherwise_and_columns_are_put_together() -> None:
    storage = MemoryStorage()
    tensor = torch.arange(60).reshape(6, 10)
    boxes = [[Box((0, 0), (4, 7))], [Box((4, 0), (2, 7)), Box((0, 7), (6, 3))]]
    reader = CheckpointReader(storage, craft(storage, spread({"w": tensor}, {"w": boxes})))
    assert torch.equal(reader.read("w"), tensor)
    (part,) = reader.row_major("w")
    assert torch.equal(part, tensor)


def chunk_at(committed: Committed, name: str, place: int = 0) -> tuple[str, Chunk]:
    chunk = committed.manifest.tensor(name).chunks[place]
    return committed.manifest.key_of(chunk.file), chunk


@pytest.mark.parametrize("where", ["raw", "header", "trailer"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_named_wherever_it_is_in_a_chunk(kind: str, where: str) -> None:
    storage = MemoryStorage()
    state = {"w": torch.ones(4, 2), "v": torch.ones(3)}
    committed = stored(storage, kind, state)
    for name in state:  # of the delta, one is borrowed
        key, chunk = chunk_at(committed, name)
        place = {"raw": chunk.data_offset + 3, "header": 0, "trailer": chunk.num_bytes - 1}[where]
        faulty = storage.reopen(faults=Faults(flip_bits={key: (chunk.offset + place) * 8 + 3}))
        for read in (
            lambda reader, name=name: reader.read(name),
            lambda reader, name=name: list(reader.row_major(name)),
            lambda reader: reader.load_into(zeros_like(state)),
        ):
            with pytest.raises(IntegrityError) as caught:
                read(CheckpointReader(faulty, committed))
            error = caught.value
            assert (error.file, error.tensor, error.offset) == (key, name, chunk.offset)
            assert error.expected == str(chunk.sha256)
            assert error.got not in {"", error.expected}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_gone_cut_or_longer_is_named(kind: str) -> None:
    storage = MemoryStorage()
    committed = stored(storage, kind, {"w": torch.ones(4, 2), "v": torch.ones(3)})
    key, _ = chunk_at(committed, "w")
    right = storage.read(key)
    storage.delete(key)
    for broken in (None, right[:-1], right + b"\0", b""):
        if broken is not None:
            storage.replace(key, broken)
        with pytest.raises(IntegrityError, match="the size is another") as caught:
            CheckpointReader(storage, committed).read("w")
        assert caught.value.file == key


def test_a_shard_of_another_save_is_named_by_its_header() -> None:
    storage = MemoryStorage()
    state = {"w": torch.ones(4, 2)}
    committed, other = craft(storage, [whole(state)]), craft(storage, [whole(state)], 20)
    key, _ = chunk_at(committed, "w")
    storage.replace(key, storage.read(chunk_at(other, "w")[0]))
    with pytest.raises(IntegrityError, match="the header of its save") as caught:
        CheckpointReader(storage, committed).read("w")
    assert caught.value.file == key
    assert committed.manifest.save_id in caught.value.expected
    assert other.manifest.save_id in caught.value.got


def test_a_gap_in_the_manifest_is_no_uninitialised_memory() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage, tensors={"w": torch.ones(4, 2)})
    (entry,) = committed.manifest.tensors
    manifest = replace(committed.manifest, tensors=(replace(entry, shape=(5, 2)),))
    reader = CheckpointReader(storage, replace(committed, manifest=manifest))
    for read in (lambda: reader.read("w"), lambda: reader.load_into({"w": torch.zeros(5, 2)})):
        with pytest.raises(IntegrityError, match="2 of 10 elements lie in no chunk"):
            read()


# --- what is borrowed -----------------------------------------------------------------


@pytest.fixture
def delta() -> tuple[MemoryStorage, Committed, Committed]:
    """Return a lender of `w`, and a borrower that changed `v`."""
    storage = MemoryStorage()
    w = torch.arange(8.0)
    base = craft(storage, [whole({"w": w, "v": torch.zeros(3)})], 5)
    committed = craft(storage, [whole({"w": w, "v": torch.ones(3)})], base=base)
    return storage, base, committed


def test_only_what_is_borrowed_needs_the_lender(
    delta: tuple[MemoryStorage, Committed, Committed],
) -> None:
    storage, base, committed = delta
    storage.delete(f"{base.folder}/{MANIFEST_FILE}")
    assert torch.equal(CheckpointReader(storage, committed).read("v"), torch.ones(3))
    with pytest.raises(IntegrityError, match="a checkpoint that lends files is gone") as caught:
        CheckpointReader(storage, committed).read("w")
    assert caught.value.file == f"{base.folder}/{MANIFEST_FILE}"
    assert caught.value.expected == str(base.checkpoint_id)


def test_a_lender_without_its_seal_lends_nothing(
    delta: tuple[MemoryStorage, Committed, Committed],
) -> None:
    storage, base, committed = delta
    storage.delete(f"{base.folder}/{SEAL_FILE}")
    with pytest.raises(IntegrityError, match="the seal is missing"):
        CheckpointReader(storage, committed).read("w")


def test_another_checkpoint_in_the_place_of_the_lender_lends_nothing(
    delta: tuple[MemoryStorage, Committed, Committed],
) -> None:
    storage, base, committed = delta
    seal(storage, replace(base.manifest, created="2026-02-01T00:00:00.000Z"))
    with pytest.raises(IntegrityError, match="another checkpoint stands") as caught:
        CheckpointReader(storage, committed).read("w")
    assert caught.value.expected == str(base.checkpoint_id)


def test_a_file_that_the_lender_does_not_have_is_not_borrowed(
    delta: tuple[MemoryStorage, Committed, Committed],
) -> None:
    storage, base, committed = delta
    storage.create(f"{base.folder}/__7_0.distcp", storage.read(f"{base.folder}/__0_0.distcp"))
    borrowed = next(file for file in committed.manifest.files if file.lender is not None)
    (chunk,) = committed.manifest.tensor("w").chunks
    other = borrowed.name.replace("__0_0", "__7_0")
    forged = replace(
        committed.manifest,
        files=(*committed.manifest.own_files, replace(borrowed, name=other)),
        tensors=(
            committed.manifest.tensor("v"),
            replace(committed.manifest.tensor("w"), chunks=(replace(chunk, file=other),)),
        ),
    )
    seal(storage, forged)
    reader = CheckpointReader(storage, read_checkpoint(storage, committed.name))
    with pytest.raises(IntegrityError, match="that its lender does not have"):
        reader.read("w")


# --- files of an attacker who can forge manifest and seal -----------------------------


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("version", [1, 2])
def test_nothing_is_ever_unpickled(tmp_path: Path, version: int) -> None:
    storage = MemoryStorage()
    committed = craft(storage, [whole({"w": torch.ones(40, 8)})], version=version)
    mark = tmp_path / "mark"
    bomb = pickle.dumps(Bomb(mark))
    forged = planted(storage, committed, bomb)
    reader = CheckpointReader(storage, forged)
    target = {"w": torch.zeros(40, 8)}
    reader.load_into(target)
    assert torch.equal(target["w"], reader.read("w"))
    assert not mark.exists()
    key, chunk = chunk_at(forged, "w")
    assert storage.read(key, num_bytes=chunk.offset + chunk.num_bytes).count(bomb) == 1
    pickle.loads(bomb)  # noqa: S301 -- the control: this bomb does go off
    assert mark.exists()


def planted(storage: MemoryStorage, committed: Committed, bomb: bytes) -> Committed:
    """Put `bomb` in place of `.metadata` and of the pickle of a container; renew all digests."""
    manifest = committed.manifest
    key, chunk = chunk_at(committed, "w")
    shard = bytearray(storage.read(key))
    start = shard.index(b"data.pkl") + 64
    shard[start : start + len(bomb)] = bomb
    span = bytes(shard[chunk.offset : chunk.offset + chunk.num_bytes])
    contents = {chunk.file: bytes(shard), METADATA_FILE: bomb}
    for name, data in contents.items():
        storage.replace(f"{committed.folder}/{name}", data)
    files = [
        replace(
            file,
            num_bytes=len(contents[file.name]),
            sha256=None if file.sha256 is None else Digest.of(contents[file.name]),
        )
        for file in manifest.files
    ]
    (entry,) = manifest.tensors
    entry = replace(entry, chunks=(replace(chunk, sha256=Digest.of(span)),))
    seal(storage, replace(manifest, files=tuple(files), tensors=(entry,)))
    return read_checkpoint(storage, committed.name)


def test_no_memory_is_taken_for_a_tensor_that_no_file_holds() -> None:
    storage = MemoryStorage()
    committed = craft(storage, [whole({"w": torch.ones(4, dtype=torch.uint8)})])
    (entry,) = committed.manifest.tensors
    (chunk,) = entry.chunks
    huge = 10 * 2**40
    index, shard = committed.manifest.files
    forged = replace(
        committed.manifest,
        files=(index, replace(shard, num_bytes=shard.num_bytes + huge)),
        tensors=(
            replace(
                entry,
                shape=(4 + huge,),
                chunks=(replace(chunk, shape=(4 + huge,), num_bytes=chunk.num_bytes + huge),),
            ),
        ),
    )
    seal(storage, forged)
    reader = CheckpointReader(storage, read_checkpoint(storage, committed.name))
    with pytest.raises(IntegrityError, match="the size is another"):
        reader.read("w")
    with pytest.raises(IntegrityError, match="the size is another"):
        next(reader.row_major("w"))


def test_one_file_does_not_hold_a_tensor_many_times() -> None:
    storage = MemoryStorage()
    committed = craft(storage, [whole({"w": torch.ones(2000)})])
    (entry,) = committed.manifest.tensors
    (chunk,) = entry.chunks
    many = tuple(replace(chunk, at=(2000 * number,)) for number in range(1000))
    forged = replace(committed.manifest, tensors=(replace(entry, shape=(2_000_000,), chunks=many),))
    seal(storage, forged)
    reader = CheckpointReader(storage, read_checkpoint(storage, committed.name))
    with pytest.raises(IntegrityError, match="8000000 bytes, in files of"):
        reader.read("w")


# --- how much is read, and how --------------------------------------------------------


def test_one_tensor_is_read_without_the_others() -> None:
    storage = Recording()
    tensors = {f"w{number}": torch.full((50_000,), float(number)) for number in range(8)}
    committed = craft(storage, [whole(tensors)])
    storage.reads.clear()
    assert torch.equal(CheckpointReader(storage, committed).read("w3"), tensors["w3"])
    key, chunk = chunk_at(committed, "w3")
    assert storage.reads == [(key, chunk.offset, chunk.num_bytes)]


@pytest.mark.parametrize("kind", ["version 1", "full"])
def test_small_tensors_are_read_together_and_each_byte_once(kind: str) -> None:
    storage = Recording()
    tensors = {f"w{number}": torch.full((100,), float(number)) for number in range(50)}
    committed = craft(storage, [whole(tensors)], version=1 if kind == "version 1" else 2)
    storage.reads.clear()
    target = zeros_like(tensors)
    CheckpointReader(storage, committed).load_into(target)
    assert same(target, tensors)
    assert len(storage.reads) == 1
    chunks = [chunk for entry in committed.manifest.tensors for chunk in entry.chunks]
    first = min(chunk.offset for chunk in chunks)
    last = max(chunk.offset + chunk.num_bytes for chunk in chunks)
    assert storage.reads[0][1:] == (first, last - first)


@pytest.mark.parametrize(("part_min_bytes", "most_bytes"), [(1, 2 * MIB), (5 * MIB, 16 * MIB)])
@pytest.mark.parametrize("version", [1, 2])
def test_a_chunk_of_any_size_is_read_in_pieces(
    version: int, part_min_bytes: int, most_bytes: int
) -> None:
    storage = Recording(part_min_bytes=part_min_bytes)
    tensor = torch.randint(256, (41, MIB), dtype=torch.uint8)
    committed = craft(storage, [whole({"w": tensor})], version=version)
    reader = CheckpointReader(storage, committed, threads=1)
    target = torch.zeros_like(tensor)
    flipped = torch.zeros(MIB, 41, dtype=torch.uint8).t()  # takes no chunk in one run
    reads: list[Callable[[], object]] = [
        lambda: reader.load_into({"w": target}),
        lambda: reader.load_into({"w": flipped}),
        lambda: [part.numel() for part in reader.row_major("w")],
    ]
    for read in reads:
        storage.reads.clear()
        read()
        sizes = [num_bytes for _, _, num_bytes in storage.reads]
        assert max(sizes) <= most_bytes
        assert sum(sizes) == committed.manifest.tensor("w").chunks[0].num_bytes
    assert torch.equal(target, tensor)
    assert torch.equal(flipped, tensor)
    assert max(part.numel() for part in reader.row_major("w")) <= most_bytes
    assert torch.equal(torch.cat([p.reshape(-1) for p in reader.row_major("w")]), bits(tensor))


def test_parts_of_two_tensors_may_be_asked_for_in_turn() -> None:
    storage = MemoryStorage()
    tensors = {name: torch.randint(256, (5 * MIB,), dtype=torch.uint8) for name in "vw"}
    reader = CheckpointReader(storage, craft(storage, [whole(tensors)]))
    pairs = list(zip(reader.row_major("v"), reader.row_major("w"), strict=True))
    for name, parts in zip("vw", zip(*pairs, strict=True), strict=True):
        assert torch.equal(torch.cat([part.reshape(-1) for part in parts]), tensors[name])


def test_a_tensor_may_be_read_while_another_is_under_way() -> None:
    storage = MemoryStorage()
    tensors = {"v": torch.arange(3), "w": torch.arange(20.0).reshape(4, 5)}
    reader = CheckpointReader(storage, craft(storage, [whole(tensors)]))
    assert torch.equal(reader.read("v"), tensors["v"])  # so there is memory to be used again
    for part in reader.row_major("v"):  # the end of its chunk is read, and not yet hashed
        assert torch.equal(reader.read("w"), tensors["w"])
        assert torch.equal(part, tensors["v"])


@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_in_a_bucket_is_read_by_ranges(s3_url: str, version: int) -> None:
    storage = S3Storage(S3Settings.from_url(s3_url))
    state = mixed_state() | {"large": torch.randint(256, (17, MIB), dtype=torch.uint8)}
    committed = craft(storage, halves(state), version=version)
    reader = CheckpointReader(storage, committed)
    target = zeros_like(state)
    reader.load_into(target)
    assert same(target, state)
    assert same({name: reader.read(name) for name in state}, state)
    assert stored_faults(storage, committed) == []


def separate(number: int, count: int) -> Rank:
    """Return one of `count` ranks that hold a row each, so that each row is a file of its own."""
    return {"w": [Placed((number, 0), torch.full((1, 100), number))]} if number < count else {}


def test_ranges_are_read_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=20)

    class Meeting(MemoryStorage):
        def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
            meeting.wait()  # is left only when three are here
            super().read_into(key, offset, buffers)

    storage = Meeting()
    committed = craft(storage, [separate(rank, 3) for rank in range(3)])
    tensor = CheckpointReader(storage, committed, threads=3).read("w")
    assert torch.equal(tensor, torch.arange(3).repeat_interleave(100).reshape(3, 100))


def test_the_first_error_ends_the_reading() -> None:
    storage = Recording(pause_s=0.01)
    committed = craft(storage, [separate(rank, 60) for rank in range(60)])
    key, chunk = chunk_at(committed, "w")
    shard = bytearray(storage.read(key))
    shard[chunk.offset + chunk.data_offset] ^= 1
    storage.replace(key, bytes(shard))
    storage.reads.clear()
    with pytest.raises(IntegrityError) as caught:
        CheckpointReader(storage, committed, threads=2).read("w")
    assert caught.value.file == key
    assert len(storage.reads) < 30


def test_as_many_threads_read_as_suit_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})

    def threads(**settings: Any) -> int:  # noqa: ANN401 -- of the storage
        storage = MemoryStorage(**settings)
        return CheckpointReader(storage, save_checkpoint(storage)).threads

    assert threads() == 2
    assert threads(part_min_bytes=5 * MIB) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(32)))
    assert threads() == threads(part_min_bytes=5 * MIB) == 32
