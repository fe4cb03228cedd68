"""Going on from a checkpoint: spread otherwise, with what is lost beside it, or not at all.

What goes on as it was is in test_run.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from strongroom.checkpoint.attempts import newest_attempt, read_attempt
from strongroom.checkpoint.catalogue import checkpoint_names
from strongroom.errors import ConfigError, FormatError, NothingToResumeError, VerificationError
from strongroom.model.build import build_base
from strongroom.names import Attempt
from strongroom.training import loop
from strongroom.training import run as training_run
from strongroom.training.launching.spec import LaunchSettings
from strongroom.training.placement import StrategyName
from strongroom.training.rng import random_state
from strongroom.verification.ladder import Rung, verify
from tests.support.in_process import (
    as_the_only_rank,
    damage,
    go_on,
    losses,
    newest,
    of_kind,
    stop_after,
    tensors,
)
from tests.support.training_run import TrainingRun, make_training_run

STEPS = 6


@pytest.fixture(autouse=True, scope="module")
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with as_the_only_rank(tmp_path_factory.mktemp("gloo")):
        yield


def new_run(folder: Path, **options: Any) -> TrainingRun:  # noqa: ANN401 -- as make_training_run
    return make_training_run(folder, world_size=1, steps=STEPS, **options)


def spread_as(run: TrainingRun, **placement: Any) -> LaunchSettings:  # noqa: ANN401 -- as Placement
    settings = run.launch().settings
    return replace(settings, placement=replace(settings.placement, **placement))


# --- spread otherwise -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("first", ["fsdp2", "zero3"])
def test_a_run_may_change_its_strategy_and_change_back(
    tmp_path: Path, dtype: str, first: StrategyName
) -> None:
    """Of a model in bfloat16 too, of which one strategy keeps float32 copies and the other none."""
    second: StrategyName = "zero3" if first == "fsdp2" else "fsdp2"
    options = {"dropout": 0.0, "dtype": dtype, "strategy": first}
    expected = losses(go_on(new_run(tmp_path / "never-stopped", **options)))
    run = new_run(tmp_path / "changed", **options)
    events = go_on(run, watch=stop_after(2))
    saved = tensors(run, newest(run))
    events += go_on(run, settings=spread_as(run, strategy=second), watch=stop_after(4))
    events += go_on(run)
    assert [event["strategy"] for event in of_kind(events, "training.started")] == [
        first,
        second,
        first,
    ]
    close = 1e-6 if dtype == "float32" else 1e-2
    assert losses(events) == pytest.approx(expected, rel=close)
    committed = newest(run)
    report = verify(
        run.storage,
        committed.name,
        expected_id=committed.checkpoint_id,
        up_to=Rung.LOAD,
        record=run.record,
        cache=run.cache,
    )
    assert report.passed, report.findings
    reasons = read_attempt(run.storage, run.record.run, Attempt(3)).inexact
    assert f"strategy '{first}' -> '{second}'" in reasons[0]
    assert any(f"strategy '{second}' -> '{first}'" in reason for reason in reasons)
    assert any("bfloat16" in reason for reason in reasons) is (dtype == "bfloat16")
    assert tensors(run, committed).keys() == saved.keys()


def test_another_version_of_what_computes_is_told_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    go_on(run, watch=stop_after(2))
    here = read_attempt(run.storage, run.record.run, Attempt(1)).environment
    assert here["torch"] == torch.__version__
    assert here["device"]
    monkeypatch.setattr(
        "strongroom.training.run.environment", lambda *_: here | {"torch": "2.99.0"}
    )
    (started,) = of_kind(go_on(run), "training.started")
    record = read_attempt(run.storage, run.record.run, Attempt(2))
    assert record.environment["torch"] == "2.99.0"
    (reason,) = record.inexact
    assert reason.startswith(f"torch '{torch.__version__}' -> '2.99.0': ")
    assert started["inexact"] == [reason]


def test_rows_taken_fewer_at_a_time_are_the_same_rows(tmp_path: Path) -> None:
    options = {"dropout": 0.0}
    expected = go_on(new_run(tmp_path / "at-once", **options))
    run = new_run(tmp_path / "fewer", **options)
    events = go_on(run, watch=stop_after(2))
    events += go_on(run, settings=spread_as(run, micro_batch_rows=3))
    assert losses(events) == pytest.approx(losses(expected), rel=1e-6)
    tokens, wanted = (
        [event["step_tokens"] for event in of_kind(told, "training.step")]
        for told in (events, expected)
    )
    assert tokens == wanted
    assert newest(run).manifest.state["counters"]["samples"] == 8 * STEPS


def test_ranks_that_cannot_share_the_rows_of_a_step_are_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with pytest.raises(ConfigError) as caught:
        go_on(run, settings=spread_as(run, world_size=3))
    assert "batch_rows: must be a multiple of world_size (3), got 8" in caught.value.faults
    with pytest.raises(ConfigError, match=r"replicas: must be 1 with strategy zero3"):
        go_on(run, settings=spread_as(run, strategy="zero3", replicas=2))
    assert newest_attempt(run.storage, run.record.run) is None


# --- with something lost, or wrong ----------------------------------------------------


def keys(run: TrainingRun) -> set[str]:
    return {info.key for info in run.storage.walk("runs")}


def test_a_save_that_never_ended_is_no_checkpoint_to_resume_from(tmp_path: Path) -> None:
    """Neither resumed from, nor taken for one that was lost, nor deleted."""
    run = new_run(tmp_path)
    go_on(run, watch=stop_after(1))
    (name,) = checkpoint_names(run.storage, run.record.run)
    half = f"runs/tiny/{name.attempt}/step-00000002/__0_0.distcp"
    run.storage.create(half, b"half a shard")
    events = go_on(run)
    assert events[0]["resumed_from"] == str(name)
    assert half in keys(run)


def test_a_fresh_start_is_asked_for_and_deletes_nothing(tmp_path: Path) -> None:
    """A newest checkpoint that cannot be used is no leave to begin anew (NeMo PR 10228)."""
    run = new_run(tmp_path)
    go_on(run, watch=stop_after(2))
    damage(run, 2)
    before = keys(run)
    with pytest.raises(NothingToResumeError, match="--fresh-start"):
        go_on(run)
    assert keys(run) == before
    assert go_on(run, fresh_start=True)[0]["resumed_from"] is None
    assert before < keys(run)


def test_a_lost_record_of_the_attempt_before_is_a_reason_and_no_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(tmp_path)
    events = go_on(run, watch=stop_after(2))
    key = f"runs/{run.record.run}/attempt-0001/attempt.json"
    run.storage.delete(key)
    run.storage.create(key, b"{}")
    events += go_on(run)
    second = of_kind(events, "training.started")[1]
    assert second["resumed_from"] == "tiny/attempt-0001/step-00000002"
    assert (second["exact"], len(second["inexact"])) == (False, 1)
    assert "was not recorded" in second["inexact"][0]
    assert "record of the attempt before cannot be read" in caplog.text
    assert sorted(losses(events)) == list(range(1, STEPS + 1))


def test_a_random_state_that_cannot_be_restored_is_an_error_and_not_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    with monkeypatch.context() as patch:
        # Whole by its digest, and of the right name: only who restores it can tell.
        patch.setattr(loop, "random_state", lambda: {**random_state(), "numpy": torch.arange(4)})
        go_on(run, watch=stop_after(2))
    with pytest.raises(FormatError, match="random state: expected uint8 of torch"):
        go_on(run)


@pytest.mark.parametrize("strategy", ["fsdp2", "zero3"])
def test_a_buffer_that_holds_garbage_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: StrategyName
) -> None:
    """As rotary frequencies of a model that was built without memory (LlamaFactory PR 10820)."""
    run = new_run(tmp_path, strategy=strategy)
    go_on(run, watch=stop_after(2))

    def without_frequencies(*given: Any) -> Any:  # noqa: ANN401 -- passed on as they are
        model = build_base(*given)
        for name, buffer in model.named_buffers():
            if name.endswith("inv_freq"):
                buffer.copy_(torch.rand_like(buffer))
        return model

    monkeypatch.setattr(training_run, "build_base", without_frequencies)
    with pytest.raises(VerificationError, match="the loaded model is not the one that was saved"):
        go_on(run)
