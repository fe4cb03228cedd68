"""What srun starts in the place of a rank, for tests of the launcher: it says what it is told to.

`python -m tests.support.slurm_stand_in`-like: the settings' `python` points at a script that
`write_stand_in` writes, which takes the arguments of a rank. Rank 0 says the events of SAID, then
ends with CODE; without a CODE it waits for SIGTERM, says those of AT_STOP and ends with 75; without
AT_STOP it never ends by itself. A CODE below zero is a signal. Other ranks do the same in silence.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from strongroom.canonical import JsonObject
from strongroom.names import RunKey
from strongroom.storage.base import Storage
from strongroom.storage.store import open_storage
from strongroom.training.launching.slurm_rank import Task
from strongroom.training.launching.store_events import (
    LaunchId,
    launch_folder,
    reporting_to_store,
)

LATE_S = 1.0
"""How much later than the others rank 0 tells of a stop: its last words are not to be cut off."""
ROOT = Path(__file__).resolve().parent.parent.parent


def write_stand_in(folder: Path) -> Path:
    """Write a program to be taken for the nodes' interpreter; return it."""
    program = folder / "stand-in"
    module = "tests.support.slurm_stand_in"
    program.write_text(f'#!/bin/bash\ncd {ROOT}\nshift 2\nexec {sys.executable} -m {module} "$@"\n')
    program.chmod(0o755)
    return program


def variables(
    said: list[JsonObject], *, at_stop: list[JsonObject] | None, code: int | None
) -> dict[str, str]:
    """Return the variables that tell a stand-in what to do."""
    return {
        "SAID": json.dumps(said),
        "AT_STOP": json.dumps(at_stop),
        "CODE": json.dumps(code),
    }


def main(arguments: list[str]) -> int:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    given = dict(zip(arguments[::2], arguments[1::2], strict=False))
    said, at_stop, code = (json.loads(os.environ[name]) for name in ("SAID", "AT_STOP", "CODE"))
    task = Task.of(os.environ)
    storage = open_storage(given["--store"])
    run, launch = RunKey(given["--run-key"]), LaunchId.parse(given["--launch-id"])
    _wait_for_all(storage, f"{launch_folder(run, launch)}/ready", task)
    with reporting_to_store(storage, run, launch, task.rank) as report:

        def tell(events: list[JsonObject]) -> None:
            for event in events if task.rank == 0 else []:
                report(event)

        if os.environ.get("TELL_ALL"):
            report({"kind": "about", **task.variables(), "environment": dict(os.environ)})
        tell(said)
        while code is None:
            time.sleep(0.02)
            if stopped and at_stop is not None:
                time.sleep(LATE_S if task.rank == 0 else 0.0)
                tell(at_stop)
                return 75
    if code < 0:
        os.kill(os.getpid(), -code)
    return int(code)


def _wait_for_all(storage: Storage, folder: str, task: Task) -> None:
    """Return when every rank takes SIGTERM, as a training starts when all have met."""
    storage.create(f"{folder}/{task.rank}", b"")
    while len(list(storage.walk(folder))) < task.world_size:
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
