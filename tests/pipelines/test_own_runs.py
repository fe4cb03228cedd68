from __future__ import annotations

import os
import subprocess
import sys

import dagster as dg
import pytest

from jobs.reconcile import reconcile
from pipelines.own_runs import PROCESS_TAG, end_dead_runs, own_tags
from tests.support.dagster_world import instance

__all__ = ["instance"]

STARTED = dg.DagsterRunStatus.STARTED


@pytest.fixture
def dead_pid() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def status(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


def test_a_run_whose_process_is_gone_is_ended_and_others_are_left_alone(
    instance: dg.DagsterInstance, dead_pid: int
) -> None:
    dead = {PROCESS_TAG: own_tags()[PROCESS_TAG].replace(str(os.getpid()), str(dead_pid))}
    elsewhere = {PROCESS_TAG: f"another-machine.{dead_pid}"}
    gone, ours, away, daemons = (
        instance.create_run_for_job(reconcile, status=STARTED, tags=tags)
        for tags in (dead, own_tags(), elsewhere, {})
    )

    assert end_dead_runs(instance) == [gone.run_id]
    assert end_dead_runs(instance) == []
    assert status(instance, gone) is dg.DagsterRunStatus.FAILURE
    assert [status(instance, run) for run in (ours, away, daemons)] == [STARTED] * 3
