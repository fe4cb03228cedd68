"""One job on a cluster, looked after until it has ended: asked to stop, killed when it is late.

Nothing waits in here: `attend` does what is due now. Slurm's controller may be silent for a while,
as when it is upgraded; jobs go on meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from strongroom.errors import StorageError, TrainingError
from strongroom.training.launching.slurm_commands import CommandFailedError, JobState, Slurm

KILL_MARGIN_S = 10.0
"""SIGTERM takes its time through Slurm; a job gets this much longer than its grace."""
REPEAT_S = 15.0
"""Between two requests to stop, or to kill, a job that has not ended."""
END_TIMEOUT_S = 600.0
"""A job that was killed and is still there after this is on a node that nobody reaches."""
LOG_LINES = 8
"""How many lines of the job's log an error shows."""
LOG_TAIL_BYTES = 16_384

logger = logging.getLogger(__name__)


def last_lines(log: Path) -> str:
    """Return the end of a job's log, to be added to an error; or why there is none."""
    try:
        data = log.read_bytes()
    except OSError as error:
        return f" ({error.strerror})"
    lines = data[-LOG_TAIL_BYTES:].decode(errors="replace").splitlines()
    return "".join(f"\n  {line}" for line in lines[-LOG_LINES:])


class Patience:
    """Bears with a service that is silent, for so long and no longer."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._silent_since: float | None = None

    @contextmanager
    def with_silence(self) -> Iterator[None]:
        """Pass over an error that another try may mend.

        Raises:
            TrainingError: nothing else has come for too long.
        """
        try:
            yield
        except (CommandFailedError, StorageError) as error:
            if isinstance(error, StorageError) and not error.retryable:
                raise
            self._bear(error)
        else:
            self._silent_since = None

    def _bear(self, error: Exception) -> None:
        if self._silent_since is None:
            self._silent_since = monotonic()
            logger.warning("tried again until it answers: %s", error)
        limit_s = self._limit_s
        if monotonic() - self._silent_since > limit_s:
            # What is left to do is to stop the job, which has its grace and is not to fail at once.
            self._silent_since = None
            self._limit_s = min(limit_s, END_TIMEOUT_S)
            raise TrainingError(
                f"no answer for {limit_s:g} s: {error}; the job is stopped as far as it can be; "
                "the same command goes on from the newest checkpoint that verifies"
            ) from error


class Job:
    """A submitted job.

    Attributes:
        state: as Slurm last told it.
        was_killed: it did not stop in time.
    """

    def __init__(
        self, slurm: Slurm, job_id: str, *, grace_s: float, poll_s: float, patience: Patience
    ) -> None:
        self.job_id = job_id
        self.state = JobState(name="PENDING")
        self.was_killed = False
        self._slurm = slurm
        self._grace_s = grace_s
        self._poll_s = poll_s
        self._patience = patience
        self._deadline: float | None = None
        self._next_look = self._next_request = monotonic()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called while it had not ended."""
        return self._deadline is not None

    @property
    def has_ended(self) -> bool:
        """Whether none of its processes is left."""
        return self.state.has_ended

    def stop(self) -> None:
        """Have it stopped, from the next `attend` on, with its grace."""
        if self._deadline is None and not self.has_ended:
            logger.info("stopping job: job=%s grace_s=%g", self.job_id, self._grace_s)
            self._deadline = monotonic() + self._grace_s + KILL_MARGIN_S
            self.expect_end()

    def stop_now(self) -> None:
        """Have it killed, from the next `attend` on."""
        self._deadline = self._next_request = monotonic()
        self.expect_end()

    def expect_end(self) -> None:
        """Look at its state at every `attend` from now on."""
        self._poll_s = 0.0
        self._next_look = monotonic()

    def attend(self) -> None:
        """Do what is due, and look how it is.

        Raises:
            TrainingError: Slurm has not answered for too long, or cannot end the job.
        """
        now = monotonic()
        if self._deadline is not None and now >= self._next_request:
            self._next_request = now + REPEAT_S
            self._request(now, self._deadline)
        if now >= self._next_look:
            self._next_look = now + self._poll_s
            with self._patience.with_silence():
                self.state = self._slurm.state(self.job_id)

    def kill(self) -> None:
        """Kill it and do not wait: for who cannot stay."""
        self._slurm.kill(self.job_id)

    def _request(self, now: float, deadline: float) -> None:
        if now < deadline:
            self._slurm.ask_to_stop(self.job_id)
            self._next_request = min(self._next_request, deadline)
            return
        if now > deadline + END_TIMEOUT_S:
            raise TrainingError(
                f"job {self.job_id}: killed {END_TIMEOUT_S:g} s ago and still {self.state}; its "
                "node may be out of reach: ask who runs the cluster. It can commit nothing once "
                "the run has been launched again"
            )
        if not self.was_killed:
            logger.error("job did not stop and is killed: job=%s %s", self.job_id, self.state)
        self.was_killed = True
        self._slurm.kill(self.job_id)
