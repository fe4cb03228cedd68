from __future__ import annotations

import json
import math
from typing import Any

import pytest

from strongroom import canonical
from strongroom.errors import FormatError
from strongroom.evaluation.config import EvaluationConfig
from strongroom.evaluation.report import EvaluationReport, judge
from strongroom.names import CheckpointId, Digest


def report(**changes: float) -> EvaluationReport:
    values: dict[str, Any] = {
        "checkpoint_id": CheckpointId(Digest.of(b"checkpoint")),
        "dataset": Digest.of(b"dataset"),
        "base_model": Digest.of(b"base"),
        "num_rows": 4,
        "num_tokens": 40,
        "loss": 1.0,
        "bits_per_byte": 0.7,
        "base_loss": 1.5,
        "base_bits_per_byte": 1.1,
    }
    return EvaluationReport(**(values | changes))


def test_a_better_checkpoint_passes_and_every_rule_says_what_it_saw() -> None:
    verdict = judge(report(), EvaluationConfig(min_loss_improvement=0.2))
    assert verdict.passed
    assert len(verdict.reasons) == 2
    assert "improved by 0.5000, at least 0.2000 asked" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"loss": 1.4}, "failed: held-out loss 1.4000"),
        ({"bits_per_byte": 1.2}, "failed: bits per byte 1.2000"),
    ],
)
def test_each_rule_can_fail_alone(changes: dict[str, float], failed: str) -> None:
    verdict = judge(report(**changes), EvaluationConfig(min_loss_improvement=0.2))
    assert not verdict.passed
    assert next(r for r in verdict.reasons if r.startswith("failed")).startswith(failed)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_fails_and_is_stored_as_text(value: float) -> None:
    bad = report(loss=value)
    assert not judge(bad, EvaluationConfig()).passed
    stored = canonical.loads(canonical.dumps(bad.to_json()), what="report")
    assert stored["loss"] == repr(value)
    again = EvaluationReport.from_json(stored)
    assert repr(again.loss) == repr(value)


def test_a_report_survives_its_json() -> None:
    assert EvaluationReport.from_json(json.loads(json.dumps(report().to_json()))) == report()


def test_a_damaged_report_is_refused() -> None:
    document = report().to_json()
    del document["loss"]
    with pytest.raises(FormatError, match="loss"):
        EvaluationReport.from_json(document)
