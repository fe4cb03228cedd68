"""Checks of the run's own checkpoints, each found by its name, alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.preflight import (
    H100,
    LARGE_FACTS,
    SMALL_FACTS,
    found,
    large,
    on_machine,
    only,
    saved,
    small,
    with_checkpoints,
)


def test_verification_off() -> None:
    unverified = [saved(step) for step in range(50, 0, -10)]
    config = small(train={"steps": 60})
    finding = only(config, with_checkpoints(SMALL_FACTS, *unverified))
    assert (finding.check, finding.severity) == ("verification-off", "warn")
    assert found(config, with_checkpoints(SMALL_FACTS, *unverified[1:])) == []
    for one in ({"is_verified": True}, {"is_quarantined": True}):
        looked_at = [*unverified[:4], saved(10, **one)]
        assert found(config, with_checkpoints(SMALL_FACTS, *looked_at)) == []
    # Those that were verified long ago do not make up for the newest.
    old = with_checkpoints(SMALL_FACTS, *unverified, saved(5, is_verified=True))
    assert only(config, old).check == "verification-off"


@pytest.mark.parametrize("lacking", [{"without_optimizer": 3}, {"has_optimizer_settings": False}])
def test_optimizer_left_out(lacking: dict[str, Any]) -> None:
    finding = only(small(), with_checkpoints(SMALL_FACTS, saved(20, **lacking)))
    assert (finding.check, finding.severity) == ("optimizer-left-out", "stop")
    what = "state of 3 of its 240 parameters" if "without_optimizer" in lacking else "the settings"
    assert finding.saw.startswith("small-talk/20 lacks ")
    assert what in finding.saw
    assert "others" not in finding.saw
    two = only(small(), with_checkpoints(SMALL_FACTS, saved(20, **lacking), saved(10, **lacking)))
    assert two.saw.endswith("so do others: small-talk/10")
    # An older one that is whole is gone on from.
    passed_over = only(small(), with_checkpoints(SMALL_FACTS, saved(20, **lacking), saved(10)))
    assert passed_over.severity == "warn"
    assert "goes on from small-talk/10" in passed_over.mend
    # So is the newest one, where an older one lacks it.
    older = only(
        small(), with_checkpoints(SMALL_FACTS, saved(20), saved(10, without_optimizer=240))
    )
    assert (older.check, older.severity) == ("optimizer-left-out", "warn")
    quarantined = saved(20, is_quarantined=True, **lacking)
    assert found(small(), with_checkpoints(SMALL_FACTS, quarantined, saved(10))) == []


def test_resharding_untested() -> None:
    config = large(train={"world_size": 16, "replicas": 2})
    finding = only(config, LARGE_FACTS)
    assert (finding.check, finding.severity) == ("resharding-untested", "warn")
    assert "16 ranks" in finding.saw
    for pairs, is_found in {
        ((16, 16),): True,  # the same size says nothing
        ((8, 4),): True,  # a smaller one says little
        ((16, 8),): False,
        ((4, 2), (8, 16)): False,
    }.items():
        assert bool(found(config, with_checkpoints(LARGE_FACTS, resharded=pairs))) is is_found
    elastic = large(launch={"min_world_size": 4})
    assert only(elastic, LARGE_FACTS).check == "resharding-untested"
    assert found(large(launch={"min_world_size": 8}), LARGE_FACTS) == []  # none may be lost
    # Up to four ranks the release itself is the evidence.
    small_one = large(train={"world_size": 4}, launch={"min_world_size": 1})
    assert found(small_one, on_machine(LARGE_FACTS, accelerators=(H100,) * 4)) == []


def test_data_state_left_out() -> None:
    lacking = saved(20, lacks=("the data cursor", "the random state of 1 of 2 ranks"))
    finding = only(small(), with_checkpoints(SMALL_FACTS, lacking))
    assert (finding.check, finding.severity) == ("data-state-left-out", "stop")
    assert "small-talk/20 lacks the data cursor, the random state" in finding.saw
    assert only(small(), with_checkpoints(SMALL_FACTS, lacking, saved(10))).severity == "warn"
    fresh = with_checkpoints(SMALL_FACTS, lacking, fresh_start=True)
    assert only(small(), fresh).severity == "warn"


def test_resume_without_optimizer() -> None:
    weights_only = saved(20, without_optimizer=240)
    finding = only(small(), with_checkpoints(SMALL_FACTS, weights_only))
    assert (finding.check, finding.severity) == ("resume-without-optimizer", "stop")
    assert "small-talk/20" in finding.saw
    assert only(small(), with_checkpoints(SMALL_FACTS, weights_only, saved(10))).severity == "warn"
    fresh = with_checkpoints(SMALL_FACTS, weights_only, fresh_start=True)
    assert only(small(), fresh).severity == "warn"


def test_a_base_model_that_is_another_trainings_checkpoint() -> None:
    assert SMALL_FACTS.model is not None
    taken_up = replace(SMALL_FACTS, model=replace(SMALL_FACTS.model, left_behind=("optimizer.pt",)))
    finding = only(small(), taken_up)
    assert (finding.check, finding.severity) == ("resume-without-optimizer", "warn")
    assert "optimizer.pt" in finding.saw
    # Once the run has checkpoints of its own it goes on from these.
    assert found(small(), with_checkpoints(taken_up, saved(10))) == []
