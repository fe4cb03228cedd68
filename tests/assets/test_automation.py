"""Automation: each checkpoint goes its own way, and a bad one goes nowhere."""

from __future__ import annotations

import dagster as dg

from tests.support.dagster_world import (
    Script,
    commit,
    governance,
    instance,
    key_of,
    run_govern,
    script,
)

__all__ = ["instance", "script"]

VERIFIED = dg.AssetKey("verified_checkpoint")
EVALUATED = dg.AssetKey("evaluated_checkpoint")
PROMOTED = dg.AssetKey("promoted_checkpoint")


class Daemon:
    """Ticks as the daemon does, and runs what a tick asks for."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.cursor: dg.AssetDaemonCursor | None = None

    def tick(self) -> dict[str, set[str]]:
        """Return which partitions are asked for, by asset."""
        result = dg.evaluate_automation_conditions(
            governance(), instance=self.instance, cursor=self.cursor
        )
        self.cursor = result.cursor
        return {
            key.to_user_string(): {
                partition for partition in result.get_requested_partitions(key) if partition
            }
            for key in (VERIFIED, EVALUATED, PROMOTED)
        }

    def tick_and_run(self, *steps: int) -> dict[str, set[str]]:
        """Tick, and execute what was asked for, one run for each of `steps`."""
        requested = self.tick()
        for step in steps:
            assets = [name for name, keys in requested.items() if key_of(step) in keys]
            if assets:
                run_govern(self.instance, step, *assets)
        return requested


def keys(*steps: int) -> set[str]:
    return {key_of(step) for step in steps}


def test_a_bad_checkpoint_is_neither_evaluated_nor_promoted_while_others_are(
    instance: dg.DagsterInstance, script: Script
) -> None:
    script.damaged = {20}
    daemon = Daemon(instance)
    daemon.tick()
    commit(instance, 10, 20, 30)

    first = daemon.tick_and_run(10, 20, 30)
    second = daemon.tick_and_run(10, 20, 30)
    third = daemon.tick_and_run(10, 20, 30)

    assert first["verified_checkpoint"] == keys(10, 20, 30)
    assert second["promoted_checkpoint"] == keys(10, 30)
    assert all(not asked for asked in third.values())
    assert ("evaluate", 20) not in script.calls
    assert ("promote", 20) not in script.calls
    assert instance.get_materialized_partitions(VERIFIED) == keys(10, 30)
    assert instance.get_materialized_partitions(PROMOTED) == keys(10, 30)


def test_a_later_good_checkpoint_is_promoted_while_the_bad_one_stays(
    instance: dg.DagsterInstance, script: Script
) -> None:
    script.damaged = {10}
    daemon = Daemon(instance)
    daemon.tick()
    commit(instance, 10)
    daemon.tick_and_run(10)
    commit(instance, 20)
    daemon.tick_and_run(10, 20)
    daemon.tick_and_run(10, 20)

    assert instance.get_materialized_partitions(PROMOTED) == keys(20)
    assert script.calls.count(("verify", 10)) == 1


def test_a_checkpoint_that_is_not_better_is_evaluated_but_not_promoted(
    instance: dg.DagsterInstance, script: Script
) -> None:
    script.worse = {10}
    daemon = Daemon(instance)
    daemon.tick()
    commit(instance, 10, 20)
    daemon.tick_and_run(10, 20)
    asked = daemon.tick_and_run(10, 20)

    assert asked["promoted_checkpoint"] == keys(20)
    assert instance.get_materialized_partitions(EVALUATED) == keys(10, 20)
    assert ("promote", 10) not in script.calls


def test_what_was_committed_while_no_daemon_ran_is_verified_by_the_first_tick(
    instance: dg.DagsterInstance, script: Script
) -> None:
    script.damaged = {20}
    commit(instance, 10, 20)
    daemon = Daemon(instance)

    first = daemon.tick_and_run(10, 20)
    later = [daemon.tick_and_run(10, 20) for _ in range(3)]

    assert first["verified_checkpoint"] == keys(10, 20)
    assert all(tick["verified_checkpoint"] == set() for tick in later)
    assert instance.get_materialized_partitions(EVALUATED) == keys(10)
    assert instance.get_materialized_partitions(PROMOTED) == keys(10)


def test_a_checkpoint_committed_again_by_a_newer_attempt_is_verified_again(
    instance: dg.DagsterInstance, script: Script
) -> None:
    daemon = Daemon(instance)
    daemon.tick()
    commit(instance, 10)
    daemon.tick_and_run(10)
    daemon.tick_and_run(10)
    commit(instance, 10)
    daemon.tick_and_run(10)

    assert script.calls.count(("verify", 10)) == 2


def test_what_was_governed_before_the_daemon_started_is_left_alone(
    instance: dg.DagsterInstance, script: Script
) -> None:
    script.worse = {20}
    commit(instance, 10, 20)
    run_govern(instance, 10)
    run_govern(instance, 20)
    daemon = Daemon(instance)

    ticks = [daemon.tick_and_run(10, 20) for _ in range(2)]

    assert all(not asked for tick in ticks for asked in tick.values())


def test_a_failed_check_stops_what_comes_after_whatever_was_materialised(
    instance: dg.DagsterInstance, script: Script
) -> None:
    daemon = Daemon(instance)
    commit(instance, 10)
    daemon.tick()
    for event in (
        dg.AssetMaterialization(VERIFIED, partition=key_of(10)),
        dg.AssetCheckEvaluation(
            asset_key=VERIFIED, check_name="intact", passed=False, partition=key_of(10)
        ),
    ):
        instance.report_runless_asset_event(event)

    assert daemon.tick()["evaluated_checkpoint"] == set()
    assert script.calls == []
