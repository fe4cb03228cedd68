"""When to save, and what to do about a step that came to nothing: pure answers.

Every rank asks with the same moment and so gets the same answer; the clock enters as a fact that
the ranks have agreed on, never as a reading of each rank's own. This module never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from strongroom.training.config import SaveConfig, TrainConfig


class SaveReason(StrEnum):
    """Why a checkpoint is saved."""

    STOP = "training was asked to stop"
    END = "training is complete"
    STEPS = "as many steps were taken as are wanted between checkpoints"
    TIME = "as much time has passed as is wanted between checkpoints"


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """The moment between two steps.

    Attributes:
        step: steps taken so far.
        last_step: steps of the whole run.
        saved_step: the step of the newest save of this run; 0 where there is none.
        time_is_up: whether `every_minutes` have passed since that save, as all ranks agreed.
        stopping: whether any rank was asked to stop, as all ranks agreed.
        is_busy: whether a save would have to wait for another one's end, on any rank.
    """

    step: int
    last_step: int
    saved_step: int
    time_is_up: bool
    stopping: bool
    is_busy: bool = False


def reason_to_save(config: SaveConfig, moment: Moment) -> SaveReason | None:
    """Return why a checkpoint is to be saved at this moment, or None."""
    if moment.step == moment.saved_step:
        return None  # nothing was learnt since
    if moment.step == moment.last_step:
        return SaveReason.END
    if moment.stopping:
        return SaveReason.STOP
    if moment.step % config.every_steps == 0:
        return SaveReason.STEPS
    if moment.time_is_up:
        return SaveReason.TIME
    return None


def is_skipped(config: SaveConfig, moment: Moment, reason: SaveReason) -> bool:
    """Return whether a save that is due is passed over: where asked for, and the next one comes."""
    comes_again = reason in {SaveReason.STEPS, SaveReason.TIME}
    return config.when_busy == "skip" and moment.is_busy and comes_again


def is_time_up(config: SaveConfig, seconds_since_save: float) -> bool:
    """Return whether as much time has passed as may pass between two saves."""
    return seconds_since_save >= config.every_minutes * 60.0


def answer_to_nonfinite(
    config: TrainConfig, num_passed_over: int
) -> Literal["stop", "skip", "rollback"]:
    """Return what a step whose loss or gradient is not finite does.

    Args:
        config: how the run is trained.
        num_passed_over: how many steps of the run were passed over before this one.
    """
    return config.on_nonfinite if num_passed_over < config.max_nonfinite_steps else "stop"
