from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from strongroom.training.config import SaveConfig, TrainConfig
from strongroom.training.policy import (
    Moment,
    SaveReason,
    answer_to_nonfinite,
    is_skipped,
    is_time_up,
    reason_to_save,
)

CONFIG = SaveConfig(every_steps=10, every_minutes=2.0)
QUIET = Moment(step=7, last_step=25, saved_step=0, time_is_up=False, stopping=False)


@pytest.mark.parametrize(
    ("moment", "reason"),
    [
        (QUIET, None),
        (replace(QUIET, step=10), SaveReason.STEPS),
        (replace(QUIET, step=20, saved_step=10), SaveReason.STEPS),
        (replace(QUIET, step=25, saved_step=20), SaveReason.END),
        (replace(QUIET, time_is_up=True), SaveReason.TIME),
        (replace(QUIET, stopping=True), SaveReason.STOP),
        (replace(QUIET, step=25, saved_step=20, stopping=True), SaveReason.END),
        (replace(QUIET, step=10, stopping=True), SaveReason.STOP),
        (replace(QUIET, step=10, time_is_up=True), SaveReason.STEPS),
    ],
)
def test_each_reason_to_save(moment: Moment, reason: SaveReason | None) -> None:
    assert reason_to_save(CONFIG, moment) == reason


@pytest.mark.parametrize("step", [0, 10, 25])
def test_what_is_saved_already_is_not_saved_again(step: int) -> None:
    moment = Moment(step=step, last_step=25, saved_step=step, time_is_up=True, stopping=True)
    assert reason_to_save(CONFIG, moment) is None


@pytest.mark.parametrize("reason", SaveReason)
@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("when_busy", ["wait", "skip"])
def test_only_a_save_that_comes_again_is_skipped_and_only_where_it_would_wait(
    reason: SaveReason, *, is_busy: bool, when_busy: Literal["wait", "skip"]
) -> None:
    config = SaveConfig(when_busy=when_busy)
    comes_again = reason in {SaveReason.STEPS, SaveReason.TIME}
    expected = when_busy == "skip" and is_busy and comes_again
    assert is_skipped(config, replace(QUIET, is_busy=is_busy), reason) is expected


def test_time_is_up_after_as_many_minutes_as_configured() -> None:
    assert not is_time_up(CONFIG, 119.9)
    assert is_time_up(CONFIG, 120.0)


@pytest.mark.parametrize("wanted", ["stop", "skip", "rollback"])
@pytest.mark.parametrize(("before", "is_too_many"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_step_that_is_not_finite_does_as_configured_until_there_are_too_many(
    wanted: Literal["stop", "skip", "rollback"], before: int, *, is_too_many: bool
) -> None:
    config = TrainConfig(
        steps=9, batch_rows=1, learning_rate=0.1, on_nonfinite=wanted, max_nonfinite_steps=2
    )
    assert answer_to_nonfinite(config, before) == ("stop" if is_too_many else wanted)
