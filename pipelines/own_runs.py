"""Runs executed in a process of our own, and what becomes of them when it dies.

A run that the daemon launched is watched by the daemon. One that was executed in a process without
a daemon says which process it was in, and the next such process ends those whose process is gone:
Dagster would show them as running for ever.
"""

import os
import socket

import dagster as dg

PROCESS_TAG = "strongroom/process"

UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def own_tags() -> dict[str, str]:
    """Return the tags of a run that is executed in this process."""
    return {PROCESS_TAG: f"{socket.gethostname()}.{os.getpid()}"}


def end_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Report as failed every run whose process, on this machine, is gone; return their ids."""
    ended = []
    for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)):
        host, _, pid = run.tags.get(PROCESS_TAG, "").rpartition(".")
        if host == socket.gethostname() and not _is_alive(int(pid)):
            instance.report_run_failed(run, f"its process, {pid} on {host}, is gone")
            ended.append(run.run_id)
    return ended


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True
