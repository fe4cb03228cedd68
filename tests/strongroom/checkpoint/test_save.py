from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import pytest
import torch

from strongroom.checkpoint.catalogue import list_checkpoints, read_checkpoint
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.reader import CheckpointReader
from strongroom.checkpoint.save import AsyncSaver
from strongroom.checkpoint.state import state_digest
from strongroom.errors import FencedError, SaveError, StorageDeniedError
from strongroom.storage.base import ObjectWriter
from strongroom.storage.memory import Faults, MemoryStorage
from tests.support.checkpoints import (
    checkpoint_name,
    ignore_commit,
    mixed_state,
    same,
    save_checkpoint,
    save_facts,
    saver_for,
    training_state,
)


class GatedStorage(MemoryStorage):
    """No shard is written before the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def create_stream(self, key: str) -> ObjectWriter:
        assert self.gate.wait(timeout=60)
        return super().create_stream(key)


def test_values_changed_after_the_call_do_not_reach_the_checkpoint() -> None:
    storage = GatedStorage()
    state = {**mixed_state(), **training_state(4)}
    before = {name: tensor.clone() for name, tensor in state.items()}
    with saver_for(storage) as saver:
        saver.save(state, save_facts(checkpoint_name(4)))
        for tensor in state.values():
            tensor.zero_()
        storage.gate.set()
    reader = CheckpointReader(storage, read_checkpoint(storage, checkpoint_name(4)))
    assert same({name: reader.read(name) for name in reader.tensor_names}, before)


def test_a_second_save_waits_for_the_first_and_neither_takes_the_other_ones_values() -> None:
    storage = GatedStorage()
    first, second = training_state(1), training_state(2)
    with saver_for(storage) as saver:
        saver.save(first, save_facts(checkpoint_name(1)))
        threading.Timer(0.2, storage.gate.set).start()
        saver.save(second, save_facts(checkpoint_name(2)))
    for step, state in ((1, first), (2, second)):
        reader = CheckpointReader(storage, read_checkpoint(storage, checkpoint_name(step)))
        assert same({name: reader.read(name) for name in reader.tensor_names}, state)


def test_a_state_may_change_its_tensors_between_saves() -> None:
    storage = MemoryStorage()
    states = {1: {"a": torch.ones(3), "b": torch.ones(2)}, 2: {"a": torch.ones(5).bfloat16()}}
    with saver_for(storage) as saver:
        for step, state in states.items():
            saver.save(state, save_facts(checkpoint_name(step)))
    for step, state in states.items():
        reader = CheckpointReader(storage, read_checkpoint(storage, checkpoint_name(step)))
        assert same({name: reader.read(name) for name in reader.tensor_names}, state)


def test_the_commit_is_announced_with_manifest_and_seconds() -> None:
    storage = MemoryStorage()
    announced: list[tuple[Manifest, float]] = []
    saver = AsyncSaver(
        storage,
        fence=lambda: None,
        on_commit=lambda manifest, durable_s: announced.append((manifest, durable_s)),
    )
    with saver:
        saver.save(training_state(), save_facts(checkpoint_name(8)))
    committed = read_checkpoint(storage, checkpoint_name(8))
    ((manifest, durable_s),) = announced
    assert manifest.checkpoint_id == committed.checkpoint_id
    assert durable_s >= manifest.metrics["pause_s"] >= 0


def test_the_same_state_saved_twice_means_the_same() -> None:
    storage = MemoryStorage()
    first = save_checkpoint(storage, 6)
    second = save_checkpoint(storage, 6, attempt=2)
    assert first.checkpoint_id != second.checkpoint_id
    assert first.manifest.save_id != second.manifest.save_id
    digests = {state_digest(CheckpointReader(storage, item)) for item in (first, second)}
    assert len(digests) == 1
    other = save_checkpoint(storage, 6, attempt=3, tensors=training_state(7))
    assert state_digest(CheckpointReader(storage, other)) not in digests


@pytest.mark.parametrize("pattern", ["*.distcp", "*.metadata", "*.sha256", "*manifest.json"])
def test_a_failed_save_surfaces_at_the_next_check_and_commits_nothing(pattern: str) -> None:
    storage = MemoryStorage(faults=Faults(deny_writes=pattern))
    saver = saver_for(storage)
    saver.save(training_state(), save_facts(checkpoint_name(5)))
    with pytest.raises(SaveError, match=r"nightly-7/attempt-0001/step-00000005.*rank\(s\) 0"):
        poll(saver)
    saver.close()  # raised once, not again
    assert len(list_checkpoints(storage)) == 0


def poll(saver: AsyncSaver) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        saver.check()
        time.sleep(0.01)
    raise AssertionError("no save failed in a minute")


@pytest.mark.parametrize(
    "ask",
    [
        lambda saver: saver.save(training_state(), save_facts(checkpoint_name(6))),
        AsyncSaver.wait,
        AsyncSaver.close,
    ],
    ids=["save", "wait", "close"],
)
def test_a_failed_save_surfaces_wherever_the_saver_is_asked_next(
    ask: Callable[[AsyncSaver], None],
) -> None:
    storage = MemoryStorage(faults=Faults(deny_writes="*.distcp"))
    saver = saver_for(storage)
    saver.save(training_state(), save_facts(checkpoint_name(5)))
    with pytest.raises(SaveError) as caught:
        ask(saver)
    assert caught.value.__cause__ is not None
    assert "StorageDeniedError" in str(caught.value)
    saver.close()


def test_a_rank_that_died_is_a_failed_save_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def collective(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:4711")

    monkeypatch.setattr("strongroom.checkpoint.save.save_distributed", collective)
    saver = saver_for(MemoryStorage())
    saver.save(training_state(), save_facts(checkpoint_name(5)))
    with pytest.raises(SaveError, match="Connection closed by peer"):
        saver.close()


def test_the_fence_stops_a_commit() -> None:
    storage = MemoryStorage()

    def fence() -> None:
        raise FencedError("run nightly-7: a newer attempt owns it")

    saver = AsyncSaver(storage, fence=fence, on_commit=ignore_commit)
    saver.save(training_state(), save_facts(checkpoint_name(5)))
    with pytest.raises(FencedError):
        saver.close()
    assert len(list_checkpoints(storage)) == 0


def test_a_failed_announcement_fails_the_save_but_not_the_checkpoint() -> None:
    storage = MemoryStorage()

    def announce(_manifest: Manifest, _durable_s: float) -> None:
        raise StorageDeniedError("the ledger may not be written")

    saver = AsyncSaver(storage, fence=lambda: None, on_commit=announce)
    saver.save(training_state(), save_facts(checkpoint_name(5)))
    with pytest.raises(SaveError, match="the ledger may not be written"):
        saver.close()
    assert len(list_checkpoints(storage)) == 1


def test_a_name_is_never_used_twice() -> None:
    storage = MemoryStorage()
    first = save_checkpoint(storage, 5)
    with pytest.raises(SaveError, match="ConflictError"):
        save_checkpoint(storage, 5, tensors=training_state(99))
    assert read_checkpoint(storage, first.name).checkpoint_id == first.checkpoint_id


def test_what_a_manifest_cannot_hold_is_refused_by_name() -> None:
    storage = MemoryStorage()
    with pytest.raises(SaveError, match="complex64: a checkpoint cannot hold it"):
        save_checkpoint(storage, tensors={"z": torch.ones(2, dtype=torch.complex64)})
    with pytest.raises(SaveError, match="no canonical JSON form"):
        save_checkpoint(storage, metrics={"train_loss": float("nan")})
    with pytest.raises(SaveError, match="metrics: expected numbers"):
        save_checkpoint(storage, attempt=2, metrics={"train_loss": "low"})
    assert len(list_checkpoints(storage)) == 0


def test_nothing_is_read_again_to_be_hashed() -> None:
    class NoReads(MemoryStorage):
        def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
            raise AssertionError(f"a save read {num_bytes} bytes of {key} from {offset}")

    storage = NoReads()
    with saver_for(storage) as saver:
        saver.save(training_state(), save_facts(checkpoint_name(1)))
    reopened = storage.reopen()
    assert len(list_checkpoints(reopened)) == 1


def test_manifest_comes_last_and_each_file_once() -> None:
    storage = MemoryStorage()
    save_checkpoint(storage, 3)
    made = [line.split("/")[-1] for line in storage.operations if not line.startswith("write")]
    assert made == ["__0_0.distcp", ".metadata", "manifest.sha256", "manifest.json"]


class _Broken:
    """A stream whose end fails: the last part of an upload."""

    def __init__(self, inner: ObjectWriter) -> None:
        self._inner = inner

    def write(self, data: bytes | memoryview) -> None:
        self._inner.write(data)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failure = StorageDeniedError("the upload could not be completed")
        self._inner.__exit__(type(failure), failure, None)
        raise failure


def test_a_shard_that_is_not_durable_is_no_shard() -> None:
    class Storage(MemoryStorage):
        def create_stream(self, key: str) -> ObjectWriter:
            return _Broken(super().create_stream(key))

    storage = Storage()
    with pytest.raises(SaveError, match="the upload could not be completed"):
        save_checkpoint(storage, 3)
    assert list(storage.walk("")) == []
