from __future__ import annotations

import json
from pathlib import Path

import pytest

from strongroom.errors import (
    ConfigError,
    FencedError,
    IntegrityError,
    NothingToResumeError,
    PolicyError,
    StrongroomError,
    TrainingError,
)
from strongroom.training.failure import error_from, exit_code_of, failure_event, first_cause

ERRORS = [
    NothingToResumeError("run nightly: none of 3 can be used"),
    FencedError("run nightly: attempt-0001 may not commit any more"),
    ConfigError("config.yaml", ["train.steps: must be at least 1, got 0", "data: is missing"]),
    PolicyError("promotion", ["too few approvals"]),
    IntegrityError(
        "a chunk was changed", file="a/b.distcp", tensor="w", offset=64, expected="1", got="2"
    ),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_it_left(error: StrongroomError) -> None:
    event = json.loads(json.dumps(failure_event(error, rank=1)))
    arrived = error_from(event)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
    assert arrived.exit_code == error.exit_code == event["exit_code"]


def test_facts_that_json_does_not_have_arrive_as_text() -> None:
    error = TrainingError("disk")
    error.__dict__["path"] = Path("a/b")
    assert vars(error_from(failure_event(error, rank=0))) == {"path": "a/b"}


def test_an_error_that_is_not_ours_arrives_as_a_training_error_with_its_name() -> None:
    event = failure_event(ZeroDivisionError("division by zero"), rank=1)
    arrived = error_from(event)
    assert type(arrived) is TrainingError
    assert "rank 1" in str(arrived)
    assert "ZeroDivisionError: division by zero" in str(arrived)
    assert exit_code_of(ZeroDivisionError()) == TrainingError.exit_code


def test_a_peer_that_lost_its_connection_is_not_the_cause() -> None:
    lost = failure_event(RuntimeError("Connection closed by peer"), rank=1)
    cause = failure_event(FencedError("newer attempt"), rank=0)
    assert first_cause([lost, cause]) is cause
    assert first_cause([lost]) is lost
