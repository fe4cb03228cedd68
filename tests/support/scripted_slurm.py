"""A Slurm whose one job does what a script says, and what its training tells."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from strongroom.canonical import JsonObject
from strongroom.errors import (
    TrainingError,
)
from strongroom.names import RunKey
from strongroom.storage.store import Store
from strongroom.training.launching.slurm_commands import (
    CommandFailedError,
    JobState,
    Slurm,
)
from strongroom.training.launching.store_events import (
    LaunchId,
    launch_folder,
)

RUN = RunKey("nightly-7")
STARTED = {"kind": "training.started", "run": "nightly-7", "attempt": 1, "world_size": 2}
STEP = {"kind": "training.step", "step": 1, "loss": 2.5}
STOPPED = {"kind": "training.stopped", "step": 5}
FINISHED = {"kind": "training.finished", "step": 9}
FAILED = {
    "kind": "training.failed",
    "rank": 0,
    "error": "NothingToResumeError",
    "exit_code": 62,
    "message": "run nightly-7: none can be used",
    "facts": {},
}
PENDING = JobState(name="PENDING", reason="Resources")
RUNNING = JobState(name="RUNNING", nodes="first,second")
COMPLETED = JobState(name="COMPLETED", exit_code="0:0")
WAIT_S = 60.0


def interruption(number: signal.Signals) -> Callable[[], None]:
    """Return what sends this process a signal soon, when it waits in `launch_on_slurm` again."""
    return threading.Timer(1.0, os.kill, (os.getpid(), number)).start


def hear(
    events: Generator[JsonObject, None, None],
    heard: list[JsonObject],
    then: Callable[[], None],
) -> None:
    """Listen, and do something when the training has started."""
    for event in events:
        heard.append(event)
        if event == STARTED:
            then()


@dataclass(eq=False)
class Scripted(Slurm):
    """Slurm, with one job of ours that behaves as told.

    Attributes:
        said: what rank 0 tells once the job runs.
        at_stop: what it tells when it is asked to stop, and ends; None: it does not hear.
        states: what the job goes through, one a question; the last one stays.
        silent: how many questions about the job are not answered.
        found: older jobs of the run, each with how it ends.
        calls: what was done to which job.
        at: what else happens at a call; once.
    """

    store: Store
    said: list[JsonObject] = field(default_factory=list)
    at_stop: list[JsonObject] | None = None
    states: list[JobState] = field(default_factory=lambda: [PENDING, RUNNING])
    silent: int = 0
    refuses: str | None = None
    dies: bool = True
    found: dict[str, JobState] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    at: dict[str, signal.Signals] = field(default_factory=dict)
    launch: LaunchId | None = None
    num_told: int = 0

    def submit(self, script: Path, options: list[str]) -> str:
        found = re.search(r"--launch-id (\S+)", script.read_text())
        assert found
        self.launch = LaunchId.parse(found[1])
        self.calls.append(("submit", "7"))
        if self.refuses is not None:
            self.found["8"] = RUNNING
            raise TrainingError(self.refuses)
        self._tell(self.said)
        assert options
        return "7"

    def interrupting(self, number: signal.Signals) -> Callable[[], None]:
        """Return what has this process get a signal when its launcher looks at the job next."""
        return lambda: self.at.update(state=number)

    def state(self, job_id: str) -> JobState:
        self._happen("state")
        if job_id in self.found:
            return self.found[job_id]
        if self.silent > 0:
            self.silent -= 1
            raise CommandFailedError("Unable to contact slurm controller (connect failure)")
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def find(self, name: str) -> list[str]:
        self.calls.append(("find", name))
        return [job_id for job_id, state in self.found.items() if not state.has_ended]

    def ask_to_stop(self, job_id: str) -> None:
        self.calls.append(("ask_to_stop", job_id))
        self._happen("ask_to_stop")
        if job_id in self.found:
            self.found[job_id] = JobState(name="FAILED", exit_code="75:0")
        elif self.at_stop is not None:
            self._tell(self.at_stop)
            self.states = [RUNNING, JobState(name="COMPLETING"), JobState(name="FAILED")]

    def kill(self, job_id: str) -> None:
        self.calls.append(("kill", job_id))
        self._happen("kill")
        if job_id in self.found:
            self.found[job_id] = JobState(name="CANCELLED")
        elif self.dies:
            self.states = [JobState(name="CANCELLED")]

    def done_to(self, job_id: str) -> list[str]:
        return [call for call, what in self.calls if what == job_id]

    def _happen(self, call: str) -> None:
        if call in self.at:
            os.kill(os.getpid(), self.at.pop(call))

    def _tell(self, events: list[JsonObject]) -> None:
        assert self.launch
        for event in events:
            self.num_told += 1
            key = f"{launch_folder(RUN, self.launch)}/events/00000-{self.num_told:08d}.jsonl"
            self.store.storage.create(key, json.dumps(event).encode())


def left_in(store: Store) -> list[str]:
    return [info.key for info in store.storage.walk("launches")]
