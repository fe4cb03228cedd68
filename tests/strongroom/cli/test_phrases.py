from __future__ import annotations

import pytest

from strongroom.cli.views.phrases import age, facts_in_words, metric_in_words, to_second

NOW = "2026-03-01T12:00:00.000Z"


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("2026-03-01T12:00:00.000Z", "0s"),
        ("2026-03-01T11:59:01.000Z", "59s"),
        ("2026-03-01T11:00:01.000Z", "59m"),
        ("2026-02-28T12:00:01.000Z", "23h"),
        ("2026-01-01T12:00:00.000Z", "59d"),
        ("2026-03-01T12:00:05.000Z", "0s"),  # clocks of two machines differ
    ],
)
def test_an_age_is_said_in_its_largest_unit(then: str, said: str) -> None:
    assert age(then, NOW) == said


def test_a_time_is_said_to_the_second_and_in_utc() -> None:
    assert to_second("2026-01-31T08:15:00.123Z") == "2026-01-31 08:15:00Z"


def test_facts_are_short_and_leave_out_what_is_not_there() -> None:
    facts = {
        "passed": True,
        "rung": 3,
        "attestation": "sha256:" + "ab" * 32,
        "replaces": None,
        "reasons": ["a", "b"],
    }
    assert facts_in_words(facts) == "passed=true rung=3 attestation=abababababab reasons=a; b"


@pytest.mark.parametrize(
    ("name", "said"), [("pause_s", "pause (s)"), ("train_loss", "train loss"), ("s", "s")]
)
def test_a_metric_is_said_with_its_unit(name: str, said: str) -> None:
    assert metric_in_words(name) == said
