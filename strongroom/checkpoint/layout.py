"""Where things of a run stand in a store: keys are built and parsed here, nowhere else.

Names are parsed exactly: what is not a run, attempt or step is reported and left alone.
"""

from __future__ import annotations

from strongroom.names import Attempt, CheckpointName, RunKey

RUNS = "runs"
LAUNCHES = "launches"
"""News of trainings that run elsewhere, apart from what they make: may be deleted at any time."""


def run_folder(run: RunKey) -> str:
    """`runs/<run>`."""
    return f"{RUNS}/{run}"


def run_record_key(run: RunKey) -> str:
    """`runs/<run>/run.json`: configuration, input digests, code and environment of the run."""
    return f"{run_folder(run)}/run.json"


def attempt_folder(run: RunKey, attempt: Attempt) -> str:
    """`runs/<run>/attempt-0001`."""
    return f"{run_folder(run)}/{attempt}"


def attempt_record_key(run: RunKey, attempt: Attempt) -> str:
    """`runs/<run>/attempt-0001/attempt.json`: created once; its existence is the fence."""
    return f"{attempt_folder(run, attempt)}/attempt.json"


def checkpoint_folder(name: CheckpointName) -> str:
    """`runs/<run>/attempt-0001/step-00000010`: one DCP directory."""
    return f"{attempt_folder(name.run, name.attempt)}/{name.step}"


def launches_folder(run: RunKey) -> str:
    """`launches/<run>`."""
    return f"{LAUNCHES}/{run}"
