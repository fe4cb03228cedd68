"""Verified, evaluated, promoted: what each says in Dagster, for good checkpoints and bad ones."""

from __future__ import annotations

import dagster as dg
import pytest

from assets.checkpoints import verified_checkpoint
from assets.evaluation import evaluated_checkpoint
from assets.partitions import CHECKPOINTS
from assets.promotion import promoted_checkpoint
from tests.support.dagster_world import (
    Script,
    commit,
    id_of,
    instance,
    key_of,
    last_check,
    name_of,
    run_govern,
    script,
)

__all__ = ["instance", "script"]


def materialisation(
    result: dg.ExecuteInProcessResult, asset: str
) -> dg.AssetMaterialization | None:
    events = result.asset_materializations_for_node(asset)
    return events[0] if events else None


@pytest.mark.parametrize(
    ("asset", "blocking"),
    [(verified_checkpoint, True), (evaluated_checkpoint, True), (promoted_checkpoint, False)],
)
def test_checks_are_partitioned_and_stop_what_comes_after(
    asset: dg.AssetsDefinition, blocking: bool
) -> None:
    specs = list(asset.check_specs)

    assert [(spec.blocking, spec.partitions_def) for spec in specs] == [(blocking, CHECKPOINTS)]


def test_a_good_checkpoint_goes_all_the_way(instance: dg.DagsterInstance, script: Script) -> None:
    commit(instance, 10)

    result = run_govern(instance, 10)

    assert result.success
    assert script.calls == [("verify", 10), ("evaluate", 10), ("promote", 10)]
    for asset in ("verified_checkpoint", "evaluated_checkpoint", "promoted_checkpoint"):
        event = materialisation(result, asset)
        assert event is not None
        assert event.partition == key_of(10)
        assert (event.tags or {})["dagster/data_version"] == str(id_of(name_of(10)))


def test_a_damaged_checkpoint_stops_there(instance: dg.DagsterInstance, script: Script) -> None:
    script.damaged = {10}
    commit(instance, 10)

    result = run_govern(instance, 10)

    assert not result.success
    assert script.calls == [("verify", 10)]
    assert last_check(instance, "verified_checkpoint", "intact", 10) is False
    assert materialisation(result, "verified_checkpoint") is None


def test_a_loss_that_is_not_finite_is_text_and_stops_promotion(
    instance: dg.DagsterInstance, script: Script
) -> None:
    script.worse = {10}
    commit(instance, 10)

    result = run_govern(instance, 10)

    event = materialisation(result, "evaluated_checkpoint")
    assert event is not None
    assert event.metadata["held_out_loss"] == dg.MetadataValue.text("not finite: nan")
    assert last_check(instance, "evaluated_checkpoint", "verdict", 10) is False
    assert ("promote", 10) not in script.calls


def test_a_refusal_by_policy_is_a_verdict_and_not_a_failure(
    instance: dg.DagsterInstance, script: Script
) -> None:
    script.refused = {10}
    commit(instance, 10)

    result = run_govern(instance, 10)

    assert result.success
    assert materialisation(result, "promoted_checkpoint") is None
    assert last_check(instance, "promoted_checkpoint", "policy", 10) is False


def test_each_checkpoint_keeps_its_own_verdict(
    instance: dg.DagsterInstance, script: Script
) -> None:
    script.damaged = {10}
    commit(instance, 10, 20)

    run_govern(instance, 10)
    run_govern(instance, 20)

    assert last_check(instance, "verified_checkpoint", "intact", 10) is False
    assert last_check(instance, "verified_checkpoint", "intact", 20) is True
