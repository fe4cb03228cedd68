"""A whole training in this process, on one rank; with processes: launching/test_torchrun.py."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from strongroom.canonical import JsonObject
from strongroom.checkpoint.attempts import AttemptRecord, claim_attempt, newest_attempt
from strongroom.checkpoint.catalogue import Committed, checkpoint_names, list_checkpoints
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE, Manifest, seal_bytes
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.checkpoint.saving.series import SaveSeries
from strongroom.checkpoint.saving.staging import Copying
from strongroom.clock import now_utc
from strongroom.errors import (
    ConfigError,
    FencedError,
    NothingToResumeError,
    SaveError,
    StorageDeniedError,
    StorageFullError,
    TrainingError,
    VerificationError,
)
from strongroom.ledger.events import Event, EventKind
from strongroom.model.loss import completion_loss_sum
from strongroom.names import Attempt
from strongroom.signing.keyring import KeyFolder
from strongroom.storage.base import PartWriter
from strongroom.storage.local import LocalStorage
from strongroom.storage.store import open_store
from strongroom.training import loop, resume
from strongroom.training.commits import Registrar, forgotten_commits
from strongroom.training.stop import StopRequest
from strongroom.training.world import leave_world
from strongroom.verification.ladder import Rung, VerificationReport, verify
from tests.support import in_process
from tests.support.in_process import damage, losses, of_kind, stop_after
from tests.support.training_run import TrainingRun, make_training_run

STEPS = 8
SAVED = [3, 6, 8]


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    """Be the only rank, as torchrun would tell it; leave torch's settings as they were."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
            "GLOO_SOCKET_IFNAME": "lo",
        }.items():
            patch.setenv(name, value)
        yield
    torch.use_deterministic_algorithms(mode=False)
    torch.set_num_threads(threads)


def go_on(run: TrainingRun, **options: Any) -> list[JsonObject]:  # noqa: ANN401 -- as support.go_on
    """Launch `run` in this process, which joins the ranks anew, and return what it reported."""
    try:
        return in_process.go_on(run, **options)
    finally:
        if dist.is_initialized():  # a failed launch leaves it, because its process ends
            leave_world()


def new_run(folder: Path, **options: Any) -> TrainingRun:  # noqa: ANN401 -- as make_training_run
    return make_training_run(folder, world_size=1, steps=STEPS, **options)


def registrar(run: TrainingRun) -> Registrar:
    return Registrar.of(open_store(run.store_url), KeyFolder(run.keys))


class Finished:
    """A run that was never stopped, what it reported and the state it left."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.events = go_on(run)
        self.losses = losses(self.events)
        self.digests = run.state_digests()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(new_run(tmp_path_factory.mktemp("finished")))


# --- what a training leaves -----------------------------------------------------------


def test_it_reports_every_step_and_every_checkpoint(finished: Finished) -> None:
    assert [event["kind"] for event in finished.events[:2]] == [
        "training.started",
        "training.step",
    ]
    assert finished.events[0]["resumed_from"] is None
    assert list(finished.losses) == list(range(1, STEPS + 1))
    committed = of_kind(finished.events, "checkpoint.committed")
    assert [event["step"] for event in committed] == SAVED
    assert [event["train_loss"] for event in committed] == [finished.losses[s] for s in SAVED]
    assert finished.events[-1] == {"kind": "training.finished", "step": STEPS}


def test_the_probe_loss_falls(finished: Finished) -> None:
    probes = [e["probe_loss"] for e in of_kind(finished.events, "checkpoint.committed")]
    assert probes[-1] < probes[0]


def climb(run: TrainingRun, committed: Committed) -> VerificationReport:
    return verify(
        run.storage,
        committed.name,
        expected_id=committed.checkpoint_id,
        up_to=Rung.LOAD,
        record=run.record,
        cache=run.cache,
    )


def test_every_checkpoint_climbs_the_whole_ladder(finished: Finished) -> None:
    run = finished.run
    history = registrar(run).history()
    for committed in list_checkpoints(run.storage, run.record.run):
        report = climb(run, committed)
        assert report.passed, report.findings
        assert report.state_digest == finished.digests[committed.name.step.number]
        record = history.records[committed.checkpoint_id]
        assert record.committed is not None
        assert record.committed.num_bytes == committed.manifest.num_bytes


def test_the_ledger_tells_the_story_in_order(finished: Finished) -> None:
    ledger = registrar(finished.run).ledger
    ledger.verify()
    kinds = [event.kind for event in ledger.events()]
    assert kinds == [EventKind.ATTEMPT_STARTED] + [EventKind.CHECKPOINT_COMMITTED] * len(SAVED)


def test_the_same_run_again_gives_the_same_state(finished: Finished, tmp_path: Path) -> None:
    again = Finished(new_run(tmp_path, key="again"))
    assert again.losses == finished.losses
    assert again.digests == finished.digests


@pytest.mark.parametrize("method", ["lora", "full"])
def test_saving_does_not_change_what_is_learnt(tmp_path: Path, method: str) -> None:
    never = {"every_steps": 1000}
    often = {"every_steps": 1000, "every_minutes": 1e-6}
    seldom = Finished(new_run(tmp_path, key="seldom", method=method, save=never))
    always = Finished(new_run(tmp_path, key="always", method=method, save=often))
    assert list(seldom.digests) == [STEPS]
    assert list(always.digests) == list(range(1, STEPS + 1))  # time was up after every step
    assert always.losses == seldom.losses
    assert always.digests[STEPS] == seldom.digests[STEPS]


@pytest.mark.parametrize(
    "save",
    [
        {"asynchronous": False},
        {"staging": "copy"},
        {"writer": "process"},
        {"when_busy": "skip"},  # nothing is busy here
        {"full_every": 3, "delta_min_share": 0.0},
    ],
    ids=lambda save: next(iter(save)),
)
def test_every_way_of_saving_says_the_same(
    finished: Finished, tmp_path: Path, save: dict[str, object]
) -> None:
    again = Finished(new_run(tmp_path, save={"every_steps": 3, **save}))
    assert again.losses == finished.losses
    assert again.digests == finished.digests


def test_a_copy_that_takes_long_is_waited_for_before_the_state_changes(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Copying._take

    def slowly(self: Copying, *part: Any) -> None:  # noqa: ANN401 -- passed on as it is
        time.sleep(0.2)
        take(self, *part)

    monkeypatch.setattr(Copying, "_take", slowly)
    slow = Finished(new_run(tmp_path))
    assert slow.losses == finished.losses
    assert slow.digests == finished.digests
    for event in of_kind(slow.events, "checkpoint.committed"):
        assert event["pause_s"] < 10  # of what is held in the loop, all is told
    last = max(list_checkpoints(slow.run.storage), key=lambda c: c.name)
    assert last.name.step.number == STEPS


@pytest.mark.parametrize("asynchronous", [True, False])
def test_training_goes_on_beside_a_save_unless_it_is_told_to_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, asynchronous: bool
) -> None:
    create_parts = LocalStorage.create_parts

    def slowly(self: LocalStorage, key: str, *, num_bytes: int) -> PartWriter:
        time.sleep(1.0 if "step-00000003" in key else 0.0)
        return create_parts(self, key, num_bytes=num_bytes)

    monkeypatch.setattr(LocalStorage, "create_parts", slowly)
    save = {"every_steps": 3, "asynchronous": asynchronous}
    events = go_on(new_run(tmp_path, save=save))
    told = [(event["kind"], event.get("step")) for event in events]
    committed = told.index(("checkpoint.committed", 3))
    assert (committed < told.index(("training.step", 4))) is not asynchronous


def test_a_save_that_would_wait_is_skipped_where_asked_for_and_told(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_parts, may_write = LocalStorage.create_parts, threading.Event()

    def gated(self: LocalStorage, key: str, *, num_bytes: int) -> PartWriter:
        assert may_write.wait(60)
        return create_parts(self, key, num_bytes=num_bytes)

    def watch(event: JsonObject, _stop: StopRequest) -> None:
        if (event["kind"], event.get("step")) == ("training.step", 6):
            may_write.set()

    run = new_run(tmp_path, save={"every_steps": 1, "when_busy": "skip"})
    monkeypatch.setattr(LocalStorage, "create_parts", gated)
    events = go_on(run, watch=watch)
    skipped = of_kind(events, "save.skipped")
    # Two are called for and wait; those after are skipped until the first may go on.
    assert [event["step"] for event in skipped][:3] == [3, 4, 5]
    assert "one save is being written" in skipped[0]["reason"]
    digests = run.state_digests()
    assert {1, 2, STEPS} <= set(digests)  # the last is never skipped
    assert not set(digests) & {event["step"] for event in skipped}
    assert digests[STEPS] == finished.digests[STEPS]


def test_deltas_go_on_from_the_checkpoint_resumed_from(finished: Finished, tmp_path: Path) -> None:
    run = new_run(tmp_path, save={"every_steps": 3, "full_every": 10, "delta_min_share": 0.0})
    go_on(run, watch=stop_after(5))
    go_on(run)
    chains = {c.name.step.number: c.manifest.chain for c in list_checkpoints(run.storage)}
    assert chains == {3: 0, 5: 1, 6: 2, 8: 3}
    assert run.state_digests()[STEPS] == finished.digests[STEPS]
    for committed in list_checkpoints(run.storage, run.record.run):
        report = climb(run, committed)
        assert report.passed, report.findings


def test_an_attempt_begins_by_clearing_away_what_was_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(tmp_path)
    asked: list[float] = []

    def discard(_self: LocalStorage, *, older_than_s: float) -> list[str]:
        asked.append(older_than_s)
        return [".tmp/half-a-shard"]

    monkeypatch.setattr(LocalStorage, "discard_unfinished", discard)
    with caplog.at_level(logging.INFO, logger="strongroom.training.opening"):
        go_on(run, watch=stop_after(1))
    assert asked == [86_400.0]
    assert ".tmp/half-a-shard" in caplog.text

    def denied(_self: LocalStorage, *, older_than_s: float) -> list[str]:
        raise StorageDeniedError(f"listing uploads older than {older_than_s} s is not allowed")

    monkeypatch.setattr(LocalStorage, "discard_unfinished", denied)
    with caplog.at_level(logging.WARNING, logger="strongroom.training.opening"):
        assert go_on(run)[-1] == {"kind": "training.finished", "step": STEPS}
    assert "is not allowed" in caplog.text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_full_training_saves_every_parameter_and_learns(tmp_path: Path, dtype: str) -> None:
    done = Finished(new_run(tmp_path, method="full", dtype=dtype))
    assert done.losses[STEPS] < done.losses[1] - 0.3
    (newest,) = (c for c in list_checkpoints(done.run.storage) if c.name.step.number == STEPS)
    names = {t.name for t in newest.manifest.tensors if t.name.startswith("model.")}
    assert "model.model.embed_tokens.weight" in names
    assert len(names) == 20
    report = climb(done.run, newest)
    assert report.passed, report.findings


# --- what it goes on from -------------------------------------------------------------


@pytest.mark.parametrize("step", [2, 3, 5])
def test_stopped_and_resumed_equals_never_stopped(
    finished: Finished, tmp_path: Path, step: int
) -> None:
    run = new_run(tmp_path)
    before = go_on(run, watch=stop_after(step))
    assert before[-1] == {"kind": "training.stopped", "step": step}
    assert run.state_digests()[step] is not None
    after = go_on(run)
    assert after[0]["resumed_from"] == f"tiny/attempt-0001/step-{step:08d}"
    assert losses(before) | losses(after) == finished.losses
    assert len(losses(before)) + len(losses(after)) == STEPS
    assert run.state_digests()[STEPS] == finished.digests[STEPS]


def test_asked_to_stop_before_anything_new_it_saves_nothing(tmp_path: Path) -> None:
    run = new_run(tmp_path)

    def watch(_event: JsonObject, stop: StopRequest) -> None:
        stop.is_asked = True

    assert go_on(run, watch=watch)[-1] == {"kind": "training.stopped", "step": 0}
    assert checkpoint_names(run.storage, run.record.run) == []


def test_a_complete_run_started_again_reports_and_claims_nothing(finished: Finished) -> None:
    run = finished.run
    before = newest_attempt(run.storage, run.record.run)
    size = registrar(run).ledger.head().size
    assert go_on(run) == [{"kind": "training.finished", "step": STEPS}]
    assert newest_attempt(run.storage, run.record.run) == before == Attempt(1)
    assert registrar(run).ledger.head().size == size


def test_a_damaged_newest_checkpoint_is_passed_over(finished: Finished, tmp_path: Path) -> None:
    run = new_run(tmp_path)
    go_on(run)
    damage(run, STEPS)
    after = go_on(run)
    assert after[0]["resumed_from"] == "tiny/attempt-0001/step-00000006"
    newest = max(list_checkpoints(run.storage), key=lambda c: c.name)
    assert str(newest.name) == "tiny/attempt-0002/step-00000008"
    assert state_digest(CheckpointReader(run.storage, newest)) == finished.digests[STEPS]


def test_a_manifest_that_took_the_place_of_a_recorded_one_is_passed_over(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    go_on(run)
    newest = max(list_checkpoints(run.storage), key=lambda c: c.name)
    forged = replace(newest.manifest, metrics={**newest.manifest.metrics, "train_loss": 0.1})
    for file, data in {
        SEAL_FILE: seal_bytes(forged.checkpoint_id),
        MANIFEST_FILE: forged.to_bytes(),
    }.items():
        run.storage.delete(f"{newest.folder}/{file}")
        run.storage.create(f"{newest.folder}/{file}", data)
    assert forgotten_commits(run.storage, run.record.run, registrar(run).history()) == []
    assert go_on(run)[0]["resumed_from"] == "tiny/attempt-0001/step-00000006"


def test_with_nothing_usable_it_starts_anew_only_if_told_to(
    finished: Finished, tmp_path: Path
) -> None:
    run = new_run(tmp_path)
    go_on(run, watch=stop_after(4))
    damage(run, 3)
    damage(run, 4)
    with pytest.raises(NothingToResumeError) as caught:
        go_on(run)
    assert "step-00000003" in str(caught.value)
    assert "step-00000004" in str(caught.value)
    assert newest_attempt(run.storage, run.record.run) == Attempt(1)
    events = go_on(run, fresh_start=True)
    assert events[0]["resumed_from"] is None
    assert events[0]["attempt"] == 2
    assert losses(events) == finished.losses


def test_a_checkpoint_that_the_storage_lost_is_not_taken_for_none(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    go_on(run, watch=stop_after(2))
    (name,) = checkpoint_names(run.storage, run.record.run)
    run.storage.delete(f"runs/{name}/manifest.json")
    with pytest.raises(NothingToResumeError, match="manifest is gone"):
        go_on(run)


def test_a_quarantined_checkpoint_is_passed_over(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    go_on(run, watch=stop_after(4))
    newest = max(list_checkpoints(run.storage), key=lambda c: c.name)
    keeper = registrar(run)
    keeper.ledger.append(
        Event(
            kind=EventKind.CHECKPOINT_QUARANTINED,
            time=now_utc(),
            actor=keeper.actor,
            checkpoint_id=newest.checkpoint_id,
            checkpoint=newest.name,
            facts={"reason": "a test says so"},
        )
    )
    assert go_on(run)[0]["resumed_from"] == "tiny/attempt-0001/step-00000003"


def test_a_restored_model_with_another_probe_loss_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    go_on(run, watch=stop_after(2))
    monkeypatch.setattr(resume, "undisturbed_probe_loss", lambda *_: 1.25)
    with pytest.raises(VerificationError, match=r"got 1\.25"):
        go_on(run)


# --- what goes wrong ------------------------------------------------------------------


def test_a_commit_the_ledger_did_not_hear_of_is_entered_by_the_next_launch(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Blocking, so that the run stops there, and not a few steps later.
    run = new_run(tmp_path, save={"every_steps": 3, "asynchronous": False})
    enter = Registrar.enter_commit

    def deaf_at_six(self: Registrar, manifest: Manifest) -> None:
        if manifest.name.step.number == 6:
            raise StorageFullError("no space left for the ledger")
        enter(self, manifest)

    with monkeypatch.context() as patch:
        patch.setattr(Registrar, "enter_commit", deaf_at_six)
        with pytest.raises(SaveError, match="no space left for the ledger"):
            go_on(run)
    events = go_on(run)
    assert events[0]["kind"] == "checkpoint.committed"
    assert (events[0]["step"], events[0]["durable_s"]) == (6, None)
    assert events[1]["resumed_from"] == "tiny/attempt-0001/step-00000006"
    assert run.state_digests()[STEPS] == finished.digests[STEPS]
    history = registrar(run).history()
    committed = {r.name.step.number for r in history.records.values() if r.committed is not None}
    assert committed == set(SAVED)


def test_a_failed_save_stops_the_run_and_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    create_parts = LocalStorage.create_parts

    def full_at_six(self: LocalStorage, key: str, *, num_bytes: int) -> PartWriter:
        if "step-00000006" in key:
            raise StorageFullError(f"{key}: no space left")
        return create_parts(self, key, num_bytes=num_bytes)

    monkeypatch.setattr(LocalStorage, "create_parts", full_at_six)
    with pytest.raises(SaveError, match="StorageFullError"):
        go_on(run)
    steps = [name.step.number for name in checkpoint_names(run.storage, run.record.run)]
    assert 6 not in steps
    assert steps[0] == 3


def test_a_failed_save_is_noticed_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    write, has_ended = SaveSeries.write, threading.Event()
    steps: list[int] = []

    create_parts = LocalStorage.create_parts

    def failing(self: LocalStorage, key: str, *, num_bytes: int) -> PartWriter:
        if "step-" in key:
            raise StorageFullError(f"{key}: no space left")
        return create_parts(self, key, num_bytes=num_bytes)

    def writing(*arguments: Any) -> None:  # noqa: ANN401 -- passed on as they are
        try:
            write(*arguments)
        finally:
            has_ended.set()

    def watch(event: JsonObject, _stop: StopRequest) -> None:
        steps.append(event.get("step", 0))
        if event.get("step") == 4:
            has_ended.wait()
            time.sleep(0.3)  # what the thread still has to do is to hand its error over

    monkeypatch.setattr(LocalStorage, "create_parts", failing)
    monkeypatch.setattr(SaveSeries, "write", writing)
    with pytest.raises(SaveError, match="no space left"):
        go_on(run, watch=watch)
    assert max(steps) == 4  # saved at 3, and the next save would be at 6


def test_a_newer_attempt_fences_the_older_one_off(tmp_path: Path) -> None:
    run = new_run(tmp_path)

    def watch(event: JsonObject, _stop: StopRequest) -> None:
        if event["kind"] == "training.step" and event["step"] == 5:
            while not checkpoint_names(run.storage, run.record.run):
                time.sleep(0.01)  # the save of step 3 is still under way
            claim_attempt(run.storage, AttemptRecord(run=run.record.run))

    with pytest.raises(FencedError, match="attempt-0002"):
        go_on(run, watch=watch)
    steps = [name.step.number for name in checkpoint_names(run.storage, run.record.run)]
    assert steps == [3]


def test_a_loss_that_is_not_finite_is_never_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    loss_sum = completion_loss_sum
    calls = 0

    def diverging(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal calls
        calls += 1
        nats, count = loss_sum(logits, labels)
        return (nats * float("nan") if calls == 6 else nats), count

    monkeypatch.setattr(loop, "completion_loss_sum", diverging)
    with pytest.raises(TrainingError, match=r"step 6.*finite"):
        go_on(run)
    steps = [name.step.number for name in checkpoint_names(run.storage, run.record.run)]
    assert steps == [3]


def test_another_number_of_ranks_than_is_there_is_refused(tmp_path: Path) -> None:
    run = make_training_run(tmp_path, world_size=2)
    with pytest.raises(ConfigError, match="expected 2 ranks, got 1"):
        go_on(run)
    assert newest_attempt(run.storage, run.record.run) is None
