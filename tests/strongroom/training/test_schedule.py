from __future__ import annotations

import pytest

from strongroom.training.config import TrainConfig
from strongroom.training.schedule import learning_rate, schedule_state


def config(**changes: object) -> TrainConfig:
    base = {"steps": 10, "batch_rows": 2, "learning_rate": 0.4, "warmup_steps": 4, **changes}
    return TrainConfig(**base)  # type: ignore[arg-type]


def test_warm_up_is_linear_and_reaches_the_full_rate() -> None:
    rates = [learning_rate(config(), step) for step in range(1, 11)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4] + [0.4] * 6)


def test_cosine_starts_at_the_full_rate_and_falls_to_just_above_zero() -> None:
    rates = [learning_rate(config(schedule="cosine"), step) for step in range(1, 11)]
    assert rates[3] == pytest.approx(0.4)
    assert rates[4] == pytest.approx(0.4)
    assert rates[7] == pytest.approx(0.2)  # half way
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 < rates[-1] < 0.05


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_without_warm_up_the_first_step_has_the_full_rate(schedule: str) -> None:
    assert learning_rate(config(warmup_steps=0, schedule=schedule), 1) == pytest.approx(0.4)


def test_a_run_that_is_all_warm_up_has_a_rate_at_every_step() -> None:
    rates = [learning_rate(config(warmup_steps=10, schedule="cosine"), step) for step in (1, 10)]
    assert rates == pytest.approx([0.04, 0.4])


def test_the_state_is_the_step() -> None:
    assert schedule_state(config(), 7)["step"] == 7
