from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from strongroom.checkpoint.catalogue import list_checkpoints, read_checkpoint
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveOptions
from strongroom.checkpoint.saving.staging import Copying, StagingBuffers
from strongroom.errors import FencedError, SaveError, StorageDeniedError
from strongroom.storage.base import Part, PartWriter, Storage
from strongroom.storage.local import LocalStorage
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
    """No shard is written before the gate opens; `begun` lists those that came to it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.begun: list[str] = []

    def create_parts(self, key: str, *, num_bytes: int) -> PartWriter:
        self.begun.append(key)
        assert self.gate.wait(timeout=60)
        return super().create_parts(key, num_bytes=num_bytes)


def saved(storage: Storage, step: int) -> dict[str, Tensor]:
    """Return every tensor of a checkpoint, as our reader reads it."""
    reader = CheckpointReader(storage, read_checkpoint(storage, checkpoint_name(step)))
    return {name: reader.read(name) for name in reader.tensor_names}


def new_saver(storage: Storage, **options: Any) -> AsyncSaver:  # noqa: ANN401 -- of SaveOptions
    return AsyncSaver(
        storage, fence=lambda: None, on_commit=ignore_commit, options=SaveOptions(**options)
    )


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


# --- whose values a checkpoint holds --------------------------------------------------


@pytest.mark.parametrize("staging", ["copy", "overlap"])
def test_values_changed_after_the_call_do_not_reach_the_checkpoint(staging: str) -> None:
    """pytorch/pytorch#144657; with overlap, `wait_staged` is part of the call."""
    storage = GatedStorage()
    state = {**mixed_state(), **training_state(4)}
    before = copied(state)
    with new_saver(storage, staging=staging) as saver:
        saver.save(state, save_facts(checkpoint_name(4)))
        if staging == "overlap":
            saver.wait_staged()
        for tensor in state.values():
            tensor.zero_()
        storage.gate.set()
    assert same(saved(storage, 4), before)


def test_overlapped_the_call_returns_before_the_copy_and_wait_staged_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_copy, has_copied = threading.Event(), threading.Event()
    take = Copying._take

    def slowly(self: Copying, *part: Any) -> None:  # noqa: ANN401 -- passed on as it is
        assert may_copy.wait(timeout=60)
        time.sleep(0.2)
        take(self, *part)
        has_copied.set()

    monkeypatch.setattr(Copying, "_take", slowly)
    storage, state = MemoryStorage(), training_state(4)
    before = copied(state)
    with new_saver(storage, staging="overlap") as saver:
        saver.save(state, save_facts(checkpoint_name(4)))
        assert not has_copied.is_set()
        may_copy.set()
        saver.wait_staged()
        assert has_copied.is_set()
        for tensor in state.values():
            tensor.zero_()
    assert same(saved(storage, 4), before)
    pause_s = read_checkpoint(storage, checkpoint_name(4)).manifest.metrics["pause_s"]
    assert 0.2 <= pause_s < 10  # what `wait_staged` took is part of it


@pytest.mark.parametrize("staging", ["copy", "overlap"])
def test_saves_that_overlap_keep_their_own_values(staging: str) -> None:
    """A stager shared by both gives the first the values of the second."""
    storage = GatedStorage()
    state = training_state(1)
    values: dict[int, dict[str, Tensor]] = {}
    with new_saver(storage, staging=staging) as saver:
        for step in (1, 2):
            values[step] = copied(state)
            saver.save(state, save_facts(checkpoint_name(step)))
            saver.wait_staged()
            for tensor in state.values():
                tensor.add_(1)
        assert saver.is_busy()
        threading.Timer(0.2, storage.gate.set).start()
        values[3] = copied(state)
        saver.save(state, save_facts(checkpoint_name(3)))  # waits for the first
    assert storage.begun[0].endswith("step-00000001/__0_0.distcp")
    for step in (1, 2, 3):
        assert same(saved(storage, step), values[step])


def test_with_one_set_of_buffers_for_all_saves_the_first_would_be_corrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That the test above can fail."""
    shared = StagingBuffers()
    monkeypatch.setattr(AsyncSaver, "_free_buffers", lambda _self: shared)
    storage = GatedStorage()
    with new_saver(storage) as saver:
        saver.save({"a": torch.ones(3)}, save_facts(checkpoint_name(1)))
        while not storage.begun:
            time.sleep(0.01)
        saver.save({"a": torch.full((3,), 2.0)}, save_facts(checkpoint_name(2)))
        storage.gate.set()
    assert torch.equal(saved(storage, 1)["a"], torch.full((3,), 2.0))


def test_the_second_set_of_buffers_is_made_when_it_is_needed() -> None:
    storage = GatedStorage()
    storage.gate.set()
    with new_saver(storage) as saver:
        for step in (1, 2):
            saver.save(training_state(step), save_facts(checkpoint_name(step)))
            saver.wait()
        assert len(saver._buffers) == 1
        storage.gate.clear()
        for step in (3, 4):
            saver.save(training_state(step), save_facts(checkpoint_name(step)))
        assert len(saver._buffers) == 2
        storage.gate.set()
        for step in (5, 6):
            saver.save(training_state(step), save_facts(checkpoint_name(step)))
        assert len(saver._buffers) == 2
    for step in range(1, 7):
        assert same(saved(storage, step), training_state(step))


def test_a_saver_is_busy_when_the_next_save_would_wait() -> None:
    storage = GatedStorage()
    with new_saver(storage) as saver:
        busy = [saver.is_busy()]
        for step in (1, 2):
            saver.save(training_state(step), save_facts(checkpoint_name(step)))
            busy.append(saver.is_busy())
        storage.gate.set()
        saver.wait()
        busy.append(saver.is_busy())
    assert busy == [False, False, True, False]


@pytest.mark.parametrize("staging", ["copy", "overlap"])
def test_a_copy_that_fails_is_a_failed_save_told_once(
    monkeypatch: pytest.MonkeyPatch, staging: str
) -> None:
    def failing(_self: Copying, *_part: object) -> None:
        raise RuntimeError("the device is lost")

    storage = MemoryStorage()
    saver = new_saver(storage, staging=staging)
    saver.save(training_state(1), save_facts(checkpoint_name(1)))
    saver.wait()
    with monkeypatch.context() as patch:
        patch.setattr(Copying, "_take", failing)

        def save_and_wait() -> None:
            saver.save(training_state(2), save_facts(checkpoint_name(2)))
            saver.wait_staged()

        with pytest.raises(SaveError, match="its copy failed: RuntimeError: the device is lost"):
            save_and_wait()
    saver.save(training_state(3), save_facts(checkpoint_name(3)))  # and the next may succeed
    saver.close()
    assert [item.name.step.number for item in list_checkpoints(storage)] == [1, 3]


def test_saving_reads_the_optimizer_and_changes_nothing() -> None:
    """A07 (pytorch#164929) and A08 (pytorch#140898): gradients present, state fresh."""

    def trained(storage: Storage | None) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
        for step in range(3):
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()  # gradients stay: no zero_grad
            state = {f"model.{name}": value for name, value in model.named_parameters()}
            for (name, _), held in zip(
                model.named_parameters(), optimizer.state.values(), strict=True
            ):
                state |= {f"optim.state.{name}.{key}": value for key, value in held.items()}
            if storage is not None:
                with new_saver(storage, staging="overlap") as saver:
                    saver.save(state, save_facts(checkpoint_name(step + 1)))
        assert all(parameter.grad is not None for parameter in model.parameters())
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    storage = MemoryStorage()
    with_saves = trained(storage)
    assert same(with_saves, trained(None))
    assert same(saved(storage, 3), with_saves)
    assert {"optim.state.weight.step", "optim.state.bias.exp_avg_sq"} <= with_saves.keys()


# --- deltas ---------------------------------------------------------------------------


def chains(storage: Storage) -> dict[int, int]:
    return {item.name.step.number: item.manifest.chain for item in list_checkpoints(storage)}


@pytest.mark.parametrize("writer", ["thread", "process"])
def test_every_third_checkpoint_is_full_and_a_delta_means_the_same(
    tmp_path: Path, writer: str
) -> None:
    storage = LocalStorage(tmp_path)
    frozen = torch.randn(300, 300)
    states = {step: {"frozen": frozen, "step": torch.tensor(float(step))} for step in range(1, 8)}
    with new_saver(storage, full_every=3, writer=writer) as saver:
        for step, state in states.items():
            saver.save(state, save_facts(checkpoint_name(step)))
    assert chains(storage) == {1: 0, 2: 1, 3: 2, 4: 0, 5: 1, 6: 2, 7: 0}
    for step, state in states.items():
        assert same(saved(storage, step), state)


def test_a_delta_that_saved_too_little_is_followed_by_a_full_checkpoint() -> None:
    storage = MemoryStorage()
    with new_saver(storage, full_every=100, delta_min_share=0.5) as saver:
        for step in (1, 2, 3):
            state = {"frozen": torch.ones(10), "moving": torch.full((1000,), float(step))}
            saver.save(state, save_facts(checkpoint_name(step)))
    assert chains(storage) == {1: 0, 2: 1, 3: 0}


def test_the_first_delta_is_compared_with_the_checkpoint_resumed_from() -> None:
    storage = MemoryStorage()
    state = {"frozen": torch.randn(300), "step": torch.tensor(1.0)}
    first = save_checkpoint(storage, 1, tensors=state)
    saver = AsyncSaver(
        storage,
        fence=lambda: None,
        on_commit=ignore_commit,
        options=SaveOptions(full_every=3),
        last=first.manifest,
    )
    with saver:
        saver.save(state, save_facts(checkpoint_name(2, attempt=2)))
    second = read_checkpoint(storage, checkpoint_name(2, attempt=2))
    assert second.manifest.lenders == {first.name: first.checkpoint_id}


# --- what training hears --------------------------------------------------------------


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
    while not saver._under_way[0].written.done():
        time.sleep(0.01)
    with pytest.raises(SaveError) as caught:
        ask(saver)
    assert caught.value.__cause__ is not None
    assert "StorageDeniedError" in str(caught.value)
    saver.close()


def test_two_failed_saves_are_both_told() -> None:
    storage = MemoryStorage(faults=Faults(deny_writes="*.distcp"))
    saver = saver_for(storage)
    saver._thread.submit(time.sleep, 0.3)  # so that both are called for before one has failed
    for step in (5, 6):
        saver.save(training_state(), save_facts(checkpoint_name(step)))
    with pytest.raises(SaveError, match=r"step-00000005.*step-00000006"):
        saver.close()


def test_a_rank_that_died_fails_its_save_and_at_once_those_that_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = 0

    def collective(*_arguments: object, **_options: object) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("Connection closed by peer [127.0.0.1]:4711")

    monkeypatch.setattr("strongroom.checkpoint.saving.series.save_distributed", collective)
    saver = saver_for(MemoryStorage())
    saver.save(training_state(), save_facts(checkpoint_name(5)))
    with pytest.raises(SaveError, match="Connection closed by peer"):
        saver.wait()
    saver.save(training_state(), save_facts(checkpoint_name(6)))
    with pytest.raises(SaveError, match="the ranks lost each other in one before it"):
        saver.close()
    assert calls == 1  # nobody would have answered the second


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
    """A writer whose end fails: the completion of an upload."""

    def __init__(self, inner: PartWriter) -> None:
        self._inner = inner

    def put(self, part: Part) -> None:
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
        failure = StorageDeniedError("the upload could not be completed")
        self._inner.__exit__(type(failure), failure, None)
        raise failure


def test_a_shard_that_is_not_durable_is_no_shard() -> None:
    class Storage(MemoryStorage):
        def create_parts(self, key: str, *, num_bytes: int) -> PartWriter:
            return _Broken(super().create_parts(key, num_bytes=num_bytes))

    storage = Storage()
    with pytest.raises(SaveError, match="the upload could not be completed"):
        save_checkpoint(storage, 3)
    assert list(storage.walk("")) == []
