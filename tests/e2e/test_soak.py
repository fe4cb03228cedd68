"""A few kills at the worst of moments; `make soak` kills a hundred times, docs/reliability.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reliability.plans import short_plans
from benchmarks.reliability.soak import SEED, Soak
from benchmarks.reliability.soaked import Plan

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("plan", short_plans(SEED), ids=lambda plan: plan.name)
def test_a_run_that_is_killed_again_and_again_ends_as_if_left_alone(
    plan: Plan, tmp_path: Path
) -> None:
    soaked = Soak(plan, tmp_path).soak()
    assert soaked.faults == []
    assert [kill.moment for kill in soaked.kills] == list(plan.moments)
    assert soaked.restarts == (len(plan.moments) if plan.supervised else 0)
    assert any(kill.lost_steps > 0 for kill in soaked.kills)  # not only lucky moments
    assert max(kill.lost_intervals for kill in soaked.kills) <= 1
    assert len(soaked.losses) == plan.steps
