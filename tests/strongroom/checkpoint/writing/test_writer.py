"""What the writer puts into a store, by the bytes that stand there, and what a failure leaves."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from torch.distributed.checkpoint.storage import WriteResult

from strongroom.checkpoint.boxes import Box
from strongroom.checkpoint.catalogue import Committed, list_checkpoints, read_checkpoint
from strongroom.checkpoint.container import raw_bytes
from strongroom.checkpoint.layout import checkpoint_folder
from strongroom.checkpoint.manifest import SEAL_FILE, Manifest
from strongroom.checkpoint.shard import ShardHeader, shard_name
from strongroom.checkpoint.writing import pieces
from strongroom.checkpoint.writing.assembly import WrittenItem, tensor_entries
from strongroom.checkpoint.writing.writer import CheckpointWriter
from strongroom.errors import (
    ConflictError,
    InputError,
    SaveError,
    StorageDeniedError,
    StorageFullError,
)
from strongroom.names import Digest
from strongroom.storage.base import Part, PartWriter, Storage
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import Faults, MemoryStorage, SimulatedCrash
from tests.support.checkpoints import (
    RUN,
    bits,
    checkpoint_name,
    mixed_state,
    save_facts,
    training_state,
    write_checkpoint,
)


class RecordingStorage(MemoryStorage):
    """Keeps the parts it was given, and can act on each before it is stored."""

    def __init__(self, *, part_min_bytes: int = 1) -> None:
        super().__init__(part_min_bytes=part_min_bytes)
        self.parts: list[Part] = []

    def on_put(self, part: Part) -> None:
        self.parts.append(part)

    def create_parts(self, key: str, *, num_bytes: int) -> PartWriter:
        return _Recorded(self, super().create_parts(key, num_bytes=num_bytes))


class _Recorded:
    def __init__(self, storage: RecordingStorage, inner: PartWriter) -> None:
        self._storage = storage
        self._inner = inner

    def put(self, part: Part) -> None:
        self._storage.on_put(part)
        self._inner.put(part)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inner.__exit__(kind, error, trace)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut tensors into pieces of 4 KiB, sent in parts of 3 KiB at least."""
    monkeypatch.setattr("strongroom.checkpoint.boxes.CHUNK_BYTES", 4096)
    monkeypatch.setattr("strongroom.checkpoint.writing.shard_plan.PART_BYTES", 3072)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes of everything that a save hashes of its tensors."""
    counts: list[int] = []

    class Counting:
        def __init__(self) -> None:
            self._inner = hashlib.sha256()

        def update(self, data: memoryview) -> None:
            counts.append(data.nbytes)
            self._inner.update(data)

        def hexdigest(self) -> str:
            return self._inner.hexdigest()

    class Hashlib:
        sha256 = Counting

    monkeypatch.setattr(pieces, "hashlib", Hashlib)
    return counts


def large_state() -> dict[str, Tensor]:
    """Return tensors of which some are cut into many pieces, under `small_limits`."""
    source = torch.Generator().manual_seed(0)
    return {
        **mixed_state(),
        "long": torch.randn(5000, generator=source),
        "rows": torch.randn(70, 30, generator=source).bfloat16(),
        "wide": torch.randn(3, 2, 1500, generator=source),
        "needs_grad": torch.randn(2000, generator=source, requires_grad=True),
        "not_contiguous": torch.randn(90, 80, generator=source).t(),
    }


def check_bytes(storage: Storage, committed: Committed, tensors: dict[str, Tensor]) -> None:
    """Read every byte of the files as the specification says, by no code of the reader."""
    manifest = committed.manifest
    spans: dict[str, list[tuple[int, int]]] = {}
    for entry in manifest.tensors:
        assert entry.shape == tuple(tensors[entry.name].shape)
        covered = torch.zeros(entry.shape, dtype=torch.int64)
        for chunk in entry.chunks:
            spans.setdefault(chunk.file, []).append((chunk.offset, chunk.num_bytes))
            container = storage.read(
                manifest.key_of(chunk.file), offset=chunk.offset, num_bytes=chunk.num_bytes
            )
            assert hashlib.sha256(container).hexdigest() == chunk.sha256.hex
            wanted = tensors[entry.name].detach()[Box(chunk.at, chunk.shape).slices].contiguous()
            raw = bytes(raw_bytes(wanted))
            assert container[chunk.data_offset :][: len(raw)] == raw
            loaded = torch.load(io.BytesIO(container), weights_only=True)
            assert (loaded.dtype, loaded.shape) == (wanted.dtype, wanted.shape)
            assert torch.equal(bits(loaded), bits(wanted))
            covered[Box(chunk.at, chunk.shape).slices] += 1
        assert bool((covered == 1).all())
    for file in manifest.own_files:
        data = storage.read(manifest.key_of(file.name))
        assert len(data) == file.num_bytes
        if file.name == ".metadata":
            assert file.sha256 == Digest.of(data)
            continue
        assert file.sha256 is None
        rank = int(file.name.split("_")[2])
        header = ShardHeader(name=manifest.name, save_id=manifest.save_id, rank=rank).to_bytes()
        assert data.startswith(header)
        position = len(header)
        for offset, num_bytes in sorted(spans.get(file.name, [])):
            assert offset == position
            position += num_bytes
        assert position == len(data)


def containers_bytes(manifest: Manifest) -> int:
    return sum(chunk.num_bytes for entry in manifest.tensors for chunk in entry.chunks)


# --- what is written --------------------------------------------------------------------------


@pytest.mark.parametrize("part_min_bytes", [1, 5 * 2**20])
def test_every_byte_is_covered_and_every_container_loads(part_min_bytes: int) -> None:
    storage = MemoryStorage(part_min_bytes=part_min_bytes)
    committed = write_checkpoint(storage, tensors=mixed_state())
    check_bytes(storage, committed, mixed_state())


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(("threads", "part_min_bytes"), [(1, 1), (4, 1), (4, 9000)])
def test_large_tensors_are_cut_into_chunks(threads: int, part_min_bytes: int) -> None:
    storage = RecordingStorage(part_min_bytes=part_min_bytes)
    committed = write_checkpoint(storage, tensors=large_state(), threads=threads)
    check_bytes(storage, committed, large_state())
    chunks = {entry.name: entry.chunks for entry in committed.manifest.tensors}
    assert len(chunks["long"]) == 5
    assert len(chunks["rows"]) == 2
    assert [chunk.at for chunk in chunks["wide"]] == [
        (row, column, start) for row in range(3) for column in range(2) for start in (0, 750)
    ]
    assert len(storage.parts) > (20 if part_min_bytes == 1 else 8)


@pytest.mark.usefixtures("small_limits")
def test_a_rank_with_more_than_one_shard_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strongroom.checkpoint.writing.shard_plan.SHARD_BYTES", 20_000)
    storage = MemoryStorage()
    committed = write_checkpoint(storage, tensors=large_state())
    check_bytes(storage, committed, large_state())
    shards = [file for file in committed.manifest.files if file.sha256 is None]
    assert {file.name for file in shards} == {shard_name(0, index) for index in range(len(shards))}
    assert len(shards) > 4
    assert all(file.num_bytes <= 20_000 for file in shards)


def test_a_save_of_nothing_has_a_shard_of_its_header_alone() -> None:
    storage = MemoryStorage()
    committed = write_checkpoint(storage, tensors={})
    assert [file.name for file in committed.manifest.files] == [".metadata", "__0_0.distcp"]
    check_bytes(storage, committed, {})


@pytest.mark.usefixtures("small_limits")
def test_each_byte_is_hashed_once_and_the_digest_goes_with_its_part(hashed: list[int]) -> None:
    storage = RecordingStorage()
    committed = write_checkpoint(storage, tensors=large_state())
    assert sum(hashed) == containers_bytes(committed.manifest)
    digests = {
        (chunk.offset, chunk.num_bytes): chunk.sha256
        for entry in committed.manifest.tensors
        for chunk in entry.chunks
    }
    shared = 0
    for part in storage.parts:
        assert part.num_bytes >= 3072 or part is max(storage.parts, key=lambda part: part.offset)
        alone = digests.get((part.offset, part.num_bytes))
        assert part.sha256 == alone
        shared += alone is not None
    assert shared > 15


def test_what_is_written_is_the_memory_of_the_tensors_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strongroom.checkpoint.boxes.CHUNK_BYTES", 4096)
    tensor = torch.arange(4096)
    storage = RecordingStorage()
    seen: list[int] = []

    def remember(part: Part) -> None:
        seen.extend(address_of(buffer) for buffer in part.buffers)

    monkeypatch.setattr(storage, "on_put", remember)
    write_checkpoint(storage, tensors={"w": tensor})
    begin, end = tensor.data_ptr(), tensor.data_ptr() + 4096 * 8
    assert sorted(address for address in seen if begin <= address < end) == [
        begin + index * 4096 for index in range(8)
    ]


def address_of(buffer: memoryview) -> int:
    if buffer.readonly:
        return 0
    return torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()


def test_saving_leaves_the_state_and_its_gradients_as_they_were() -> None:
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()  # gradients are still there
    state = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
    for index, values in optimizer.state_dict()["state"].items():
        state |= {f"optim.{index}.{kind}": value for kind, value in values.items()}
    before = {name: tensor.detach().clone() for name, tensor in state.items()}
    gradients = [parameter.grad for parameter in model.parameters()]
    storage = MemoryStorage()
    committed = write_checkpoint(storage, tensors=state)
    check_bytes(storage, committed, before)
    assert len(committed.manifest.tensors) == 8
    for name, tensor in state.items():
        assert torch.equal(tensor, before[name])
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is gradient


def test_a_planner_that_changes_tensors_is_refused() -> None:
    class Casting(DefaultSavePlanner):
        def lookup_object(self, index: MetadataIndex) -> Tensor:
            tensor: Tensor = super().lookup_object(index)
            return tensor.double()

    storage = MemoryStorage()
    with failing_with(InputError) as caught:
        save_distributed(
            {"w": torch.ones(3)},
            storage_writer=writer_for(storage),
            planner=Casting(),
            no_dist=True,
        )
    assert "expected torch.float32 [3] as planned, got torch.float64 [3]" in str(caught[0])
    assert list(storage.walk("")) == []


def test_a_planner_that_keeps_plans_is_refused() -> None:
    class Keeping(DefaultSavePlanner):
        """Of its own name, by which DCP keeps the plans."""

    storage = MemoryStorage()
    state = {"w": torch.ones(3)}

    def save(step: int) -> None:
        save_distributed(
            state,
            storage_writer=writer_for(storage, step),
            planner=Keeping(enable_plan_caching=True),
            no_dist=True,
        )

    save(1)
    with failing_with(InputError) as caught:
        save(2)
    assert "use a planner that caches no plans" in str(caught[0])
    assert len(list_checkpoints(storage)) == 1


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda data: replace(data, chunks=data.chunks[1:]), "1000 of 5000 elements lie in no"),
        (lambda data: replace(data, chunks=data.chunks + data.chunks[:1]), "overlap"),
    ],
    ids=["gap", "overlap"],
)
@pytest.mark.usefixtures("small_limits")
def test_chunks_that_do_not_tile_are_not_committed(
    spoil: Callable[[WrittenItem], WrittenItem], fault: str
) -> None:
    class Spoilt(CheckpointWriter):
        def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
            (first, *rest) = results[0]
            spoilt = replace(first, storage_data=spoil(first.storage_data))
            super().finish(metadata, [[spoilt, *rest]])

    storage = MemoryStorage()
    writer = Spoilt(
        storage,
        save_facts(checkpoint_name(1)),
        fence=lambda: None,
        committed=lambda _manifest: None,
    )
    with failing_with(SaveError) as caught:
        save_distributed({"w": torch.randn(5000)}, storage_writer=writer, no_dist=True)
    assert fault in str(caught[0])
    assert len(list_checkpoints(storage)) == 0


def test_ranks_that_disagree_about_a_dtype_commit_nothing() -> None:
    described = TensorStorageMetadata(
        properties=TensorProperties(dtype=torch.uint8), size=torch.Size([0]), chunks=[]
    )
    items = [("w", WrittenItem(dtype=dtype, chunks=())) for dtype in ("int8", "uint8", "int8")]
    with pytest.raises(SaveError, match="tensor w: ranks hold it as int8 and uint8"):
        tensor_entries(checkpoint_name(1), Metadata({"w": described}), items)


def writer_for(storage: Storage, step: int = 10, base: Manifest | None = None) -> CheckpointWriter:
    return CheckpointWriter(
        storage,
        save_facts(checkpoint_name(step)),
        fence=lambda: None,
        committed=lambda _manifest: None,
        base=base,
    )


@contextmanager
def failing_with(kind: type[BaseException]) -> Iterator[list[BaseException]]:
    """Expect a save to fail with an error of `kind`; it is put into the list."""
    caught: list[BaseException] = []
    with pytest.raises(CheckpointException) as failure:
        yield caught
    (error, _) = failure.value.failures[0]
    assert isinstance(error, kind), error
    caught.append(error)


# --- several threads --------------------------------------------------------------------------


class CountingStorage(RecordingStorage):
    """Counts how many parts are under way; each waits a moment for others."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._now = 0
        self._changed = threading.Condition()

    def on_put(self, part: Part) -> None:
        super().on_put(part)
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= 3, timeout=1)
            self._now -= 1


@pytest.mark.usefixtures("small_limits")
def test_as_many_parts_are_under_way_as_there_are_threads() -> None:
    storage = CountingStorage()
    write_checkpoint(storage, tensors={"w": torch.randn(40_000)}, threads=3)
    assert storage.most == 3
    assert threading.active_count() < 50  # none is left behind


class FailingStorage(RecordingStorage):
    """Refuses one part; those that begin later take a while, as an upload does."""

    def __init__(self, *, fails_at: int) -> None:
        super().__init__()
        self._fails_at = fails_at
        self._has_failed = threading.Event()
        self.late = 0

    def on_put(self, part: Part) -> None:
        super().on_put(part)
        if self._has_failed.is_set():
            self.late += 1
            time.sleep(0.5)
        if part.number == self._fails_at:
            self._has_failed.set()
            raise StorageDeniedError("the part was refused")


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("fails_at", [1, 5, 40])
def test_the_first_error_stops_the_rest_and_leaves_nothing(fails_at: int) -> None:
    storage = FailingStorage(fails_at=fails_at)
    with failing_with(StorageDeniedError):
        write_checkpoint(storage, tensors={"w": torch.randn(200_000)}, threads=2)
    assert storage.late < 10  # of about 200
    assert list(storage.walk("")) == []
    assert storage.discard_unfinished(older_than_s=0) == []  # aborted, not left for a sweep


@pytest.mark.usefixtures("small_limits")
def test_what_could_be_borrowed_is_hashed_by_several_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = threading.Barrier(3)
    digest_of = pieces.digest_of

    def waiting_digest_of(buffers: Iterable[memoryview]) -> Digest:
        together.wait(timeout=60)
        return digest_of(buffers)

    monkeypatch.setattr(pieces, "digest_of", waiting_digest_of)
    found = list(pieces.pieces_of("w", (7,), torch.randn(6000)))
    digests = pieces.digest_pieces(found, threads=3)
    assert [piece.at for piece in found] == [(7 + 1000 * index,) for index in range(6)]
    assert digests == [digest_of(piece.buffers()) for piece in found]


# --- when it fails ----------------------------------------------------------------------------


def test_a_full_disk_is_named_and_the_checkpoint_before_it_is_untouched() -> None:
    storage = MemoryStorage()
    first = write_checkpoint(storage, 1)
    full = storage.reopen(faults=Faults(capacity_bytes=40_000))
    with failing_with(StorageFullError):
        write_checkpoint(full, 2, tensors={"w": torch.ones(20_000)})
    assert only(storage) == first


@pytest.mark.parametrize("pattern", ["*.distcp", "*.metadata", "*.sha256", "*manifest.json"])
def test_a_refused_file_commits_nothing(pattern: str) -> None:
    storage = MemoryStorage()
    first = write_checkpoint(storage, 1)
    with failing_with(StorageDeniedError):
        write_checkpoint(storage.reopen(faults=Faults(deny_writes=pattern)), 2)
    assert only(storage) == first


def only(storage: Storage) -> Committed:
    (committed,) = list_checkpoints(storage)
    check_bytes(storage, committed, training_state(committed.name.step.number))
    return committed


@pytest.mark.parametrize(
    "killed_at",
    [lambda number: Faults(crash_before=number), lambda number: Faults(crash_after=number)],
    ids=["before", "after"],
)
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint_or_none(
    killed_at: Callable[[int], Faults],
) -> None:
    storage = MemoryStorage()
    first = write_checkpoint(storage, 1)
    outcomes = []
    for number in range(1, 12):
        step = 100 + number
        killed = storage.reopen(faults=killed_at(number))
        try:
            write_checkpoint(killed, step, base=first.manifest)
        except (SimulatedCrash, CheckpointException):
            outcomes.append("killed")
        else:
            outcomes.append("done")
        found = {committed.name.step.number for committed in list_checkpoints(storage)}
        committed = step in found
        assert committed or outcomes[-1] == "killed"
        for name in (first.name, *([checkpoint_name(step)] if committed else [])):
            check_bytes(storage, read_checkpoint(storage, name), training_state(name.step.number))
    assert outcomes[0] == "killed"
    assert outcomes[-1] == "done"


def test_the_manifest_comes_last_and_each_file_once() -> None:
    storage = MemoryStorage()
    committed = write_checkpoint(storage, 3)
    made = [line.split("/")[-1] for line in storage.operations if not line.startswith("write")]
    assert made == ["__0_0.distcp", ".metadata", "manifest.sha256", "manifest.json"]
    before = len(storage.operations)
    write_checkpoint(storage, 4, base=committed.manifest)
    made = [
        line.split("/")[-1] for line in storage.operations[before:] if not line.startswith("write")
    ]
    assert made == ["__0_0.distcp", ".metadata", "manifest.sha256", "manifest.json"]


def test_an_unfinished_directory_is_never_taken() -> None:
    storage = MemoryStorage()
    folder = checkpoint_folder(checkpoint_name(10))
    storage.create(f"{folder}/{shard_name(0)}", b"of a save that died")
    with failing_with(ConflictError):
        write_checkpoint(storage, 10)
    assert storage.read(f"{folder}/{shard_name(0)}") == b"of a save that died"
    assert len(list_checkpoints(storage)) == 0


# --- deltas -----------------------------------------------------------------------------------


@pytest.fixture
def storage() -> RecordingStorage:
    return RecordingStorage()


@pytest.mark.usefixtures("small_limits")
def test_a_delta_writes_what_changed_alone(storage: RecordingStorage) -> None:
    first = write_checkpoint(storage, 1, tensors=large_state())
    changed = large_state()
    changed["long"][4000] += 1  # in one of its five chunks
    changed["scalar"] = torch.tensor(3.5)
    storage.parts.clear()
    second = write_checkpoint(storage, 2, tensors=changed, base=first.manifest)
    check_bytes(storage, second, changed)
    own = {
        (entry.name, chunk.at): chunk.num_bytes
        for entry in second.manifest.tensors
        for chunk in entry.chunks
        if chunk.file == "__0_0.distcp"
    }
    assert set(own) == {("long", (4000,)), ("scalar", ())}
    assert second.manifest.chain == 1
    assert second.manifest.lenders == {first.name: first.checkpoint_id}
    written = sum(part.num_bytes for part in storage.parts)
    assert written == sum(own.values()) + len(header_of(second))


def header_of(committed: Committed) -> bytes:
    return ShardHeader(name=committed.name, save_id=committed.manifest.save_id, rank=0).to_bytes()


@pytest.mark.usefixtures("small_limits")
def test_each_byte_of_a_delta_is_hashed_once_too(
    storage: RecordingStorage, hashed: list[int]
) -> None:
    first = write_checkpoint(storage, 1, tensors=large_state())
    hashed.clear()
    changed = {**large_state(), "long": torch.zeros(5000), "new": torch.ones(3000)}
    second = write_checkpoint(storage, 2, tensors=changed, base=first.manifest)
    assert sum(hashed) == containers_bytes(second.manifest)


@pytest.mark.usefixtures("small_limits")
def test_a_chain_borrows_from_the_physical_holder(storage: RecordingStorage) -> None:
    states = [large_state() for _ in range(4)]
    for state in states[1:]:
        state["scalar"] = torch.tensor(1.0)
    for state in states[2:]:
        state["long"][0] = 7.0
    chain = [write_checkpoint(storage, 0, tensors=states[0])]
    for step, state in enumerate(states[1:], start=1):
        chain.append(
            write_checkpoint(
                storage, step, tensors=state, base=chain[-1].manifest, attempt=1 + step // 2
            )
        )
    assert [committed.manifest.chain for committed in chain] == [0, 1, 2, 3]
    last = chain[-1]
    assert last.manifest.lenders == {
        committed.name: committed.checkpoint_id for committed in chain[:3]
    }
    assert {file.name: file.num_bytes for file in last.manifest.own_files}["__0_0.distcp"] == len(
        header_of(last)
    )
    for committed, state in zip(chain, states, strict=True):
        check_bytes(storage, committed, state)


def test_a_delta_without_anything_borrowed_is_a_full_checkpoint(storage: RecordingStorage) -> None:
    first = write_checkpoint(storage, 1, tensors={"w": torch.ones(4)})
    second = write_checkpoint(storage, 2, tensors={"w": torch.zeros(4)}, base=first.manifest)
    assert (second.manifest.chain, second.manifest.lenders) == (0, {})
    check_bytes(storage, second, {"w": torch.zeros(4)})


@pytest.mark.parametrize(
    "other",
    [
        {"w": torch.zeros(4).int()},
        {"w": torch.zeros(2, 2)},
        {"v": torch.zeros(4)},
        {"w": torch.zeros(5)},
    ],
    ids=["dtype", "shape", "name", "size"],
)
def test_equal_bytes_of_something_else_are_not_borrowed(
    storage: RecordingStorage, other: dict[str, Tensor]
) -> None:
    first = write_checkpoint(storage, 1, tensors={"w": torch.zeros(4)})
    second = write_checkpoint(storage, 2, tensors=other, base=first.manifest)
    assert second.manifest.chain == 0
    check_bytes(storage, second, other)


def test_a_base_of_another_run_is_refused(storage: RecordingStorage) -> None:
    first = write_checkpoint(storage, 1)
    other = replace(first.manifest, name=replace(first.name, run=type(RUN)("other")))
    with failing_with(InputError) as caught:
        write_checkpoint(storage, 2, base=other)
    assert "expected a base of the same run" in str(caught[0])


@pytest.mark.parametrize("missing", ["manifest.json", SEAL_FILE])
def test_a_base_that_is_not_committed_any_more_lends_nothing(
    storage: RecordingStorage, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = write_checkpoint(storage, 1)
    storage.delete(f"{first.folder}/{missing}")
    second = write_checkpoint(storage, 2, tensors=training_state(1), base=first.manifest)
    assert (second.manifest.chain, second.manifest.lenders) == (0, {})
    check_bytes(storage, second, training_state(1))
    assert "checkpoint saved in full" in caplog.text


def test_a_base_that_is_another_by_now_lends_nothing(storage: RecordingStorage) -> None:
    first = write_checkpoint(storage, 1)
    other = replace(first.manifest, metrics={"train_loss": 9.0})
    second = write_checkpoint(storage, 2, tensors=training_state(1), base=other)
    assert second.manifest.chain == 0


class TakingStorage(RecordingStorage):
    """Somebody deletes a file right after the index was written."""

    def __init__(self) -> None:
        super().__init__()
        self.takes: str | None = None

    def create(self, key: str, data: bytes) -> None:
        super().create(key, data)
        if self.takes is not None and key.endswith(".metadata"):
            self.delete(self.takes)


@pytest.mark.parametrize("file", ["manifest.json", SEAL_FILE, "__0_0.distcp"])
def test_a_delta_is_not_committed_when_what_it_borrows_is_gone(file: str) -> None:
    storage = TakingStorage()
    first = write_checkpoint(storage, 1)
    storage.takes = f"{first.folder}/{file}"
    with failing_with(SaveError) as caught:
        write_checkpoint(storage, 2, tensors=training_state(1), base=first.manifest)
    assert "taken away meanwhile" in str(caught[0])
    assert storage.stat(f"{checkpoint_folder(checkpoint_name(2))}/manifest.json") is None


@pytest.mark.usefixtures("small_limits")
def test_a_rank_hears_of_what_its_own_items_may_borrow_alone(storage: RecordingStorage) -> None:
    state = {"long": torch.randn(5000), "rows": torch.randn(70, 30), "gone": torch.ones(2)}
    first = write_checkpoint(storage, 1, tensors=state)
    plans = [
        plan_of({"long": state["long"]}),
        plan_of({"rows": state["rows"].bfloat16()}),
        moved(plan_of({"long": state["long"][:2000]}), (3000,)),
        moved(plan_of({"long": state["long"][:2000]}), (2999,)),
    ]
    tasks = [
        plan.storage_data
        for plan in writer_for(storage, 2, first.manifest).prepare_global_plan(plans)
    ]
    assert [task.rank for task in tasks] == [0, 1, 2, 3]
    lendable = [sorted((key.tensor, *key.at) for key in task.lendable) for task in tasks]
    assert lendable == [
        [("long", start) for start in range(0, 5000, 1000)],
        [],  # of another dtype now
        [("long", 3000), ("long", 4000)],
        [],
    ]


def moved(plan: SavePlan, by: tuple[int, ...]) -> SavePlan:
    """Let the only item of a plan be the part of a larger tensor that begins there."""
    (item,) = plan.items
    assert item.tensor_data is not None
    chunk = replace(item.tensor_data.chunk, offsets=torch.Size(by))
    return replace(plan, items=[replace(item, tensor_data=replace(item.tensor_data, chunk=chunk))])


def plan_of(state: dict[str, Tensor]) -> SavePlan:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    return planner.create_local_plan()


def test_the_log_has_one_event_for_a_commit(
    storage: RecordingStorage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="strongroom")
    first = write_checkpoint(storage, 1)
    write_checkpoint(storage, 2, tensors=training_state(1), base=first.manifest)
    events = [record.getMessage() for record in caplog.records if record.name.startswith("strong")]
    assert len(events) == 2
    assert "chain=0 borrowed_share=0.000" in events[0]
    assert "chain=1 borrowed_share=1.000" in events[1]


# --- memory -----------------------------------------------------------------------------------

MIB = 2**20

PEAK = textwrap.dedent("""
    import resource, sys
    from pathlib import Path
    import torch
    from strongroom.storage.local import LocalStorage
    from tests.support.checkpoints import write_checkpoint

    def peak_mib():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    storage = LocalStorage(Path(sys.argv[1]))
    first = write_checkpoint(storage, 1, tensors={"w": torch.ones(2**20)})  # loads what is lazy
    state = {f"w{i}": torch.full((2**23,), float(i)) for i in range(8)}
    staged = peak_mib()
    for step in (2, 3):
        base = None if step == 2 else second.manifest
        second = write_checkpoint(storage, step, tensors=state, base=base)
        print(peak_mib() - staged)
        state["w0"].add_(1)
""")


def test_writing_takes_little_memory_beside_the_state(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "store")],
        cwd=Path(__file__).resolve().parents[4],
        check=True,
        capture_output=True,
        text=True,
    )
    full, delta = map(float, done.stdout.split())
    assert full <= 64
    assert delta <= 64
    (first, second, third) = list_checkpoints(LocalStorage(tmp_path / "store"))
    assert second.manifest.num_bytes > 256 * MIB
    assert third.manifest.num_bytes < 33 * MIB
    assert first.manifest.chain == 0
