"""The learning rate as a plain function of the step: there is no scheduler to save or to restore.

This module never imports torch.
"""

from __future__ import annotations

import math

from strongroom.canonical import JsonObject
from strongroom.training.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the rate of the update that completes `step`, 1 to `config.steps`.

    It rises linearly over the warm-up, is `config.learning_rate` at the first step after it, and
    then stays, or follows half a cosine down to just above zero at the last step.
    Source of the cosine: Loshchilov and Hutter 2016, https://arxiv.org/abs/1608.03983, eq. 5
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    progress = (step - config.warmup_steps - 1) / (config.steps - config.warmup_steps)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))


def schedule_state(config: TrainConfig, step: int) -> JsonObject:
    """Return what a manifest records of the schedule; `step` is all of its state."""
    return {
        "schedule": config.schedule,
        "warmup_steps": config.warmup_steps,
        "steps": config.steps,
        "step": step,
    }
