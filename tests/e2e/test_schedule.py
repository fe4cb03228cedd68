"""Dagster's own scheduler, on a clock that stands still, launches one run for each date."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_test_daemon_workspace_context, freeze_time
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._scheduler.scheduler import launch_scheduled_runs

from pipelines.home import prepare_home
from resources.store import ROOT

pytestmark = pytest.mark.e2e

NIGHT = datetime(2026, 1, 31, 2, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkspaceProcessContext]:
    """The repository's workspace, with the schedule switched on an hour before the first night."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    prepare_home()
    with (
        dg.DagsterInstance.get() as instance,
        create_test_daemon_workspace_context(
            WorkspaceFileTarget([str(ROOT / "workspace.yaml")]), instance
        ) as context,
    ):
        with freeze_time(NIGHT - 60 * MINUTE):
            location = context.create_request_context().get_code_location("strongroom")
            (repository,) = location.get_repositories().values()
            instance.start_schedule(repository.get_schedule("nightly"))
        yield context


def scheduler_looks(workspace: WorkspaceProcessContext, at: datetime) -> None:
    """Let the scheduler do what its daemon does once, at that time."""
    with freeze_time(at):
        logger = logging.getLogger("scheduler")
        for problem in launch_scheduled_runs(workspace, logger, at, iteration_times={}):
            assert problem is None


def launched(workspace: WorkspaceProcessContext) -> list[str]:
    """Return the run keys launched so far, oldest first."""
    runs = workspace.instance.get_runs()
    assert {run.job_name for run in runs} <= {"finetune"}
    return [run.tags["dagster/partition"] for run in reversed(runs)]


def test_one_run_for_each_date(workspace: WorkspaceProcessContext) -> None:
    scheduler_looks(workspace, NIGHT - MINUTE)
    assert launched(workspace) == []

    for minutes in (0, 1, 2, 600):
        scheduler_looks(workspace, NIGHT + minutes * MINUTE)
    assert launched(workspace) == ["nightly-2026-01-31"]

    scheduler_looks(workspace, NIGHT + timedelta(days=1))
    assert launched(workspace) == ["nightly-2026-01-31", "nightly-2026-02-01"]


def test_a_date_whose_run_exists_is_not_launched_again(
    workspace: WorkspaceProcessContext,
) -> None:
    scheduler_looks(workspace, NIGHT)
    state = next(
        state
        for state in workspace.instance.all_instigator_state()
        if state.instigator_name == "nightly"
    )
    # The scheduler forgets its ticks, as when it died before it noted the last one.
    workspace.instance.purge_ticks(
        state.instigator_origin_id,
        state.selector_id,
        before=(NIGHT + timedelta(days=9)).timestamp(),
    )
    scheduler_looks(workspace, NIGHT + MINUTE)

    assert launched(workspace) == ["nightly-2026-01-31"]
