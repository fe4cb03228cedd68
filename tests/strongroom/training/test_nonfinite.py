"""A loss or a gradient that is not finite: the run stops, passes over the step, or goes back.

On one rank in this process, under both strategies, and at the end on two.
"""

from __future__ import annotations

import json
import math
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from strongroom.canonical import JsonObject
from strongroom.checkpoint.attempts import newest_attempt
from strongroom.checkpoint.catalogue import checkpoint_names, list_checkpoints
from strongroom.errors import TrainingError
from strongroom.model.adapters import with_adapter
from strongroom.names import Attempt
from strongroom.storage.base import PartWriter
from strongroom.storage.local import LocalStorage
from strongroom.training import loop
from strongroom.training import run as training_run
from strongroom.training.placement import StrategyName
from strongroom.training.probe import undisturbed_probe_loss
from strongroom.training.strategies.fsdp2 import Fsdp2
from strongroom.training.strategies.zero3 import Zero3
from strongroom.verification.ladder import Rung, verify
from tests.support.in_process import (
    as_the_only_rank,
    damage,
    go_on,
    losses,
    newest,
    of_kind,
    poison,
    stop_after,
    tensors,
)
from tests.support.ranks import run_ranks
from tests.support.training_run import TrainingRun, make_training_run

STEPS = 8
BAD = 5
"""The step that comes to nothing, between the checkpoints of steps 3 and 6."""
STRATEGIES: tuple[StrategyName, ...] = ("fsdp2", "zero3")

both = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(autouse=True, scope="module")
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with as_the_only_rank(tmp_path_factory.mktemp("gloo")):
        yield


def new_run(folder: Path, **options: Any) -> TrainingRun:  # noqa: ANN401 -- as make_training_run
    options = {"world_size": 1, "steps": STEPS, "dropout": 0.0, **options}
    return make_training_run(folder, **options)


def not_learning_from(patch: pytest.MonkeyPatch, bad: int) -> None:
    """Have the rows of one step not learnt from, by other means than the loop's."""
    for kind in (Fsdp2, Zero3):
        steps: dict[int, int] = {}

        def step(
            strategy: Any,  # noqa: ANN401 -- of either kind
            rate: float,
            take: Callable[[Any, float], None] = kind.step,
            steps: dict[int, int] = steps,
        ) -> None:
            steps[id(strategy)] = steps.get(id(strategy), 0) + 1
            if steps[id(strategy)] == bad:
                strategy.drop_gradients()
            else:
                take(strategy, rate)

        patch.setattr(kind, "step", step)


class Expected:
    """A finished run whose rows of the bad step were just not learnt from."""

    def __init__(self, run: TrainingRun, events: list[JsonObject]) -> None:
        self.losses = {step: loss for step, loss in losses(events).items() if step != BAD}
        self.tensors = tensors(run, newest(run))
        self.state = newest(run).manifest.state


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[StrategyName], Expected]:
    made: dict[StrategyName, Expected] = {}

    def of(strategy: StrategyName) -> Expected:
        if strategy not in made:
            run = new_run(tmp_path_factory.mktemp(strategy), strategy=strategy)
            with pytest.MonkeyPatch.context() as patch:
                not_learning_from(patch, BAD)
                made[strategy] = Expected(run, go_on(run))
        return made[strategy]

    return of


def check_equal(run: TrainingRun, events: list[JsonObject], expected: Expected) -> None:
    """Compare a run's end with one that did not learn from the rows of the bad step."""
    committed = newest(run)
    assert losses(events) == expected.losses
    assert committed.manifest.state == {**expected.state, "passed_over": [BAD]}
    got = tensors(run, committed)
    assert got.keys() == expected.tensors.keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.tensors.items())


def check_all_finite(run: TrainingRun) -> None:
    for committed in list_checkpoints(run.storage, run.record.run):
        report = verify(
            run.storage,
            committed.name,
            expected_id=committed.checkpoint_id,
            up_to=Rung.LOAD,
            record=run.record,
            cache=run.cache,
        )
        assert report.passed, report.findings
        assert all(math.isfinite(value) for value in committed.manifest.metrics.values())


def saved_steps(run: TrainingRun) -> list[tuple[int, int]]:
    """Return attempt and step of every checkpoint."""
    names = checkpoint_names(run.storage, run.record.run)
    return [(name.attempt.number, name.step.number) for name in names]


# --- stop -----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_by_default_the_run_stops_and_what_was_saved_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: StrategyName, kind: str
) -> None:
    run = new_run(tmp_path, strategy=strategy)
    poison(monkeypatch, {BAD}, kind)
    events: list[JsonObject] = []
    with pytest.raises(TrainingError, match=rf"step {BAD}: expected a finite loss") as caught:
        go_on(run, told=events)
    assert ("got loss nan" in str(caught.value)) is (kind == "loss")
    assert "gradient norm nan" in str(caught.value)
    assert sorted(losses(events)) == list(range(1, BAD))
    assert saved_steps(run) == [(1, 3)]
    check_all_finite(run)


def save_slowly(patch: pytest.MonkeyPatch) -> None:
    create_parts = LocalStorage.create_parts

    def slowly(self: LocalStorage, key: str, *, num_bytes: int) -> PartWriter:
        time.sleep(1.0)
        return create_parts(self, key, num_bytes=num_bytes)

    patch.setattr(LocalStorage, "create_parts", slowly)


def test_a_save_that_is_under_way_is_waited_for_before_the_run_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends with the run, and a thread that writes would end with it."""
    run = new_run(tmp_path)
    save_slowly(monkeypatch)
    poison(monkeypatch, {4})
    with pytest.raises(TrainingError, match="step 4: expected a finite loss"):
        go_on(run)
    assert saved_steps(run) == [(1, 3)]


# --- skip -----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_skipped_rows_are_not_learnt_from_and_all_else_is_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: Callable[[StrategyName], Expected],
    strategy: StrategyName,
    kind: str,
) -> None:
    wanted = expected(strategy)
    run = new_run(tmp_path, strategy=strategy, on_nonfinite="skip")
    poison(monkeypatch, {BAD}, kind)
    events = go_on(run)
    (told,) = of_kind(events, "step.passed_over")
    assert (told["step"], told["reason"]) == (BAD, "train.on_nonfinite is skip")
    assert (told["loss"] == "nan") is (kind == "loss")
    assert told["grad_norm"] == "nan"
    check_equal(run, events, wanted)
    assert [c.manifest.state.get("passed_over") for c in list_checkpoints(run.storage)] == [
        None,
        [BAD],
        [BAD],
    ]
    assert saved_steps(run) == [(1, 3), (1, 6), (1, 8)]
    check_all_finite(run)


def test_a_resume_knows_what_was_passed_over(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: Callable[[StrategyName], Expected],
) -> None:
    wanted = expected("fsdp2")
    run = new_run(tmp_path, on_nonfinite="skip", max_nonfinite_steps=1)
    poison(monkeypatch, {BAD})
    before = go_on(run, watch=stop_after(BAD))
    assert before[-1] == {"kind": "training.stopped", "step": BAD}
    # Nothing was learnt in the last step: its loss is that of the one before.
    assert newest(run).manifest.metrics["train_loss"] == losses(before)[BAD - 1]
    after = go_on(run)
    check_equal(run, before + after, wanted)


def test_what_a_resume_knows_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path, on_nonfinite="skip", max_nonfinite_steps=1)
    poison(monkeypatch, {BAD, 7})
    go_on(run, watch=stop_after(BAD))
    with pytest.raises(TrainingError, match=r"step 7: expected a finite loss.*after 1 steps"):
        go_on(run)
    assert saved_steps(run)[-1] == (2, 6)


def test_one_step_too_many_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path, on_nonfinite="skip", max_nonfinite_steps=2)
    poison(monkeypatch, {4, 5, 7})
    events: list[JsonObject] = []
    with pytest.raises(TrainingError, match=r"step 7: expected a finite loss.*after 2 steps"):
        go_on(run, told=events)
    assert [event["step"] for event in of_kind(events, "step.passed_over")] == [4, 5]
    assert newest(run).manifest.state["passed_over"] == [4, 5]


def test_steps_at_which_nothing_was_learnt_yet_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, on_nonfinite="skip", save={"every_steps": 1})
    poison(monkeypatch, {1, 2, 4})
    go_on(run)
    # Of the first two there is no loss to record, and no state but that of the base model.
    assert saved_steps(run) == [(1, step) for step in range(3, STEPS + 1)]
    third, fourth, *_ = list_checkpoints(run.storage, run.record.run)
    assert fourth.manifest.metrics["train_loss"] == third.manifest.metrics["train_loss"]
    check_all_finite(run)


def test_a_run_that_learnt_nothing_at_all_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, steps=2, on_nonfinite="skip")
    poison(monkeypatch, {1, 2})
    with pytest.raises(TrainingError, match="expected a step to learn from, got 2"):
        go_on(run)
    assert saved_steps(run) == []


# --- roll back ------------------------------------------------------------------------


@both
@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_rolled_back_it_goes_on_from_the_newest_checkpoint_and_passes_over_the_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: Callable[[StrategyName], Expected],
    strategy: StrategyName,
    kind: str,
) -> None:
    wanted = expected(strategy)
    run = new_run(tmp_path, strategy=strategy, on_nonfinite="rollback")
    computed = poison(monkeypatch, {BAD}, kind)
    events = go_on(run)
    told = [event["kind"] for event in events]
    (back,) = of_kind(events, "training.rolled_back")
    assert {**back, "loss": "", "grad_norm": ""} == {
        "kind": "training.rolled_back",
        "from_step": BAD,
        "to_step": 3,
        "checkpoint": "tiny/attempt-0001/step-00000003",
        "reason": "train.on_nonfinite is rollback",
        "loss": "",
        "grad_norm": "",
    }
    first, second = of_kind(events, "training.started")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert second["resumed_from"] == "tiny/attempt-0001/step-00000003"
    assert second["exact"] is True
    assert told.index("training.rolled_back") > told.index("training.started", 1)
    assert [event["step"] for event in of_kind(events, "step.passed_over")] == [BAD]
    assert computed == [1, 2, 3, 4, 5, 4, 6, 7, 8]
    check_equal(run, events, wanted)
    assert saved_steps(run) == [(1, 3), (2, 6), (2, 8)]
    check_all_finite(run)


def test_a_damaged_checkpoint_is_not_gone_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, on_nonfinite="rollback", save={"every_steps": 2})
    poison(monkeypatch, {7})

    def watch(event: JsonObject, _stop: object) -> None:
        if event["kind"] == "checkpoint.committed" and event["step"] == 6:
            damage(run, 6)

    (back,) = of_kind(go_on(run, watch=watch), "training.rolled_back")
    assert (back["from_step"], back["to_step"]) == (7, 4)
    assert back["checkpoint"] == "tiny/attempt-0001/step-00000004"
    assert newest(run).manifest.state["passed_over"] == [7]


def test_before_any_checkpoint_it_goes_back_to_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, on_nonfinite="rollback", save={"every_steps": 1000})
    poison(monkeypatch, {2})
    events = go_on(run)
    (back,) = of_kind(events, "training.rolled_back")
    assert (back["from_step"], back["to_step"], back["checkpoint"]) == (2, 0, None)
    assert sorted(losses(events)) == [1, *range(3, STEPS + 1)]
    assert saved_steps(run) == [(2, STEPS)]


def test_it_may_be_gone_back_several_times_and_one_too_many_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, on_nonfinite="rollback", max_nonfinite_steps=2)
    computed = poison(monkeypatch, {4, 5, 7})
    events: list[JsonObject] = []
    with pytest.raises(TrainingError, match=r"step 7: expected a finite loss.*after 2 steps"):
        go_on(run, told=events)
    assert [event["from_step"] for event in of_kind(events, "training.rolled_back")] == [4, 5]
    assert computed == [1, 2, 3, 4, 5, 6, 7]
    assert saved_steps(run) == [(1, 3), (3, 6)]
    assert newest(run).manifest.state["passed_over"] == [4, 5]
    assert newest_attempt(run.storage, run.record.run) == Attempt(3)


def test_a_save_right_after_the_step_passed_over_has_the_loss_of_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, on_nonfinite="rollback", save={"every_steps": 1})
    poison(monkeypatch, {4})
    go_on(run)
    metrics = {c.name.step.number: c.manifest.metrics for c in list_checkpoints(run.storage)}
    assert list(metrics) == list(range(1, STEPS + 1))
    assert metrics[4]["train_loss"] == metrics[3]["train_loss"]
    assert metrics[5]["train_loss"] != metrics[4]["train_loss"]
    check_all_finite(run)


def test_going_back_does_not_hold_two_models_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for two where one fills the memory."""
    run = new_run(tmp_path, on_nonfinite="rollback")
    poison(monkeypatch, {BAD})
    built: list[weakref.ref[Any]] = []
    left: list[bool] = []

    def noting(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 -- passed on as they are
        left.extend(model() is not None for model in built)
        model = with_adapter(*arguments, **options)
        built.append(weakref.ref(model))
        return model

    monkeypatch.setattr(training_run, "with_adapter", noting)
    go_on(run)
    assert len(built) == 2
    assert left == [False]


def test_asked_to_stop_while_it_goes_back_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, on_nonfinite="rollback")
    poison(monkeypatch, {BAD})
    events = go_on(run, watch=stop_after(BAD - 1))
    assert events[-1] == {"kind": "training.stopped", "step": BAD - 1}
    events += go_on(run)
    assert sorted(losses(events)) == [step for step in range(1, STEPS + 1) if step != BAD]


# --- a state that is not finite -------------------------------------------------------


def test_a_state_whose_probe_is_not_finite_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    save_slowly(monkeypatch)
    measured: list[float] = []

    def diverging(*given: Any) -> float:  # noqa: ANN401 -- passed on as they are
        measured.append(undisturbed_probe_loss(*given))
        return measured[-1] if len(measured) == 1 else math.inf

    monkeypatch.setattr(loop, "undisturbed_probe_loss", diverging)
    with pytest.raises(TrainingError, match=r"step 6: expected a finite loss of the probe"):
        go_on(run)
    assert saved_steps(run) == [(1, 3)]


# --- on two ranks, one of which alone sees it -----------------------------------------


def work(rank: int, folder: Path, *, runs: dict[str, TrainingRun]) -> None:
    told = {}
    for name, run in runs.items():
        with pytest.MonkeyPatch.context() as patch:
            if name == "expected":
                not_learning_from(patch, BAD)
            elif rank == 1:
                poison(patch, {BAD})
            told[name] = go_on(run)
    (folder / f"told-{rank}.json").write_text(json.dumps(told), encoding="utf-8")


def test_what_one_rank_sees_all_of_them_act_on(tmp_path: Path) -> None:
    runs = {
        name: make_training_run(
            tmp_path / name,
            steps=STEPS,
            dropout=0.0,
            strategy=strategy,
            on_nonfinite=policy,
        )
        for name, strategy, policy in (
            ("expected", "fsdp2", "stop"),
            ("skip", "fsdp2", "skip"),
            ("rollback", "zero3", "rollback"),
        )
    }
    run_ranks(2, partial(work, runs=runs), tmp_path)
    told, others = (
        json.loads((tmp_path / f"told-{rank}.json").read_text(encoding="utf-8"))
        for rank in range(2)
    )
    # What the first rank never saw as NaN it tells all the same; the second says nothing.
    assert all(events == [] for events in others.values())
    for name in ("skip", "rollback"):
        (passed_over,) = of_kind(told[name], "step.passed_over")
        assert (passed_over["step"], passed_over["loss"]) == (BAD, "nan")
    check_equal(runs["skip"], told["skip"], Expected(runs["expected"], told["expected"]))
    assert len(of_kind(told["rollback"], "training.rolled_back")) == 1
    assert newest(runs["rollback"]).manifest.state["passed_over"] == [BAD]
    assert losses(told["rollback"]) == pytest.approx(losses(told["skip"]), rel=1e-5)
