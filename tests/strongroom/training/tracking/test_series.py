from __future__ import annotations

import math

import pytest

from strongroom.training.tracking.series import SERIES, note_of, points_of, step_of

STEP = {
    "kind": "training.step",
    "step": 7,
    "loss": 1.25,
    "learning_rate": 1e-4,
    "grad_norm": 0.5,
    "tokens_per_s": 1000.0,
    "step_tokens": 500,
    "step_s": 0.5,
    "mfu": 0.4,
    "memory_bytes": 10**9,
}
COMMITTED = {
    "kind": "checkpoint.committed",
    "checkpoint": "nightly-7/attempt-0001/step-00000007",
    "checkpoint_id": "sha256:00",
    "step": 7,
    "num_bytes": 12345,
    "pause_s": 0.01,
    "durable_s": 2.5,
    "train_loss": 1.25,
    "probe_loss": 2.0,
}


def test_what_is_measured_of_a_step_is_shown() -> None:
    assert points_of(STEP) == {
        "train/loss": 1.25,
        "train/learning_rate": 1e-4,
        "train/grad_norm": 0.5,
        "speed/tokens_per_s": 1000.0,
        "speed/step_s": 0.5,
        "speed/mfu": 0.4,
        "memory/peak_bytes": 1e9,
    }
    assert note_of(STEP) is None


def test_what_is_measured_of_a_save_is_shown() -> None:
    assert points_of(COMMITTED) == {
        "save/pause_s": 0.01,
        "save/durable_s": 2.5,
        "save/bytes": 12345.0,
        "probe/loss": 2.0,
    }
    assert note_of(COMMITTED) is None


def test_what_is_not_known_makes_no_point() -> None:
    assert "speed/mfu" not in points_of({**STEP, "mfu": None})
    assert "save/durable_s" not in points_of({**COMMITTED, "durable_s": None})
    assert points_of({"kind": "training.step", "step": 7, "loss": 0.0}) == {"train/loss": 0.0}


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf", math.nan, math.inf])
def test_what_is_not_finite_is_shown_as_such(loss: str | float) -> None:
    shown = points_of({**STEP, "loss": loss})["train/loss"]
    assert not math.isfinite(shown)
    assert repr(shown) == str(loss)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="high"):
        points_of({**STEP, "loss": "high"})


def test_whatever_else_happens_is_a_note() -> None:
    passed_over = {"kind": "step.passed_over", "step": 8, "reason": "loss is nan", "loss": "nan"}
    assert points_of(passed_over) == {}
    assert note_of(passed_over) == "step: 8, reason: loss is nan, loss: nan"


@pytest.mark.parametrize(
    ("event", "step"),
    [
        (STEP, 7),
        ({"kind": "training.started", "run": "nightly-7"}, None),
        ({"kind": "training.rolled_back", "from_step": 9, "to_step": 4}, 4),
    ],
)
def test_an_event_belongs_to_a_step(event: dict[str, object], step: int | None) -> None:
    assert step_of(event) == step


def test_no_two_fields_share_a_series() -> None:
    series = [name for fields in SERIES.values() for name in fields.values()]
    assert len(set(series)) == len(series)
