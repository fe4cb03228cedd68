"""What the end of a job means: the training finished, was stopped, failed, or was cut off.

A decision on what was told and seen; nothing but the job's log is read, for the words of an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strongroom.canonical import JsonObject
from strongroom.errors import PreemptedError, RankLostError, StrongroomError, TrainingError
from strongroom.names import RunKey
from strongroom.training.failure import error_from, first_cause, is_own_cause
from strongroom.training.launching.restarts import is_accident
from strongroom.training.launching.slurm_commands import JobState
from strongroom.training.reporting import ReportKind

LOG_LINES = 8
"""How many lines of the job's log an error shows."""
LOG_TAIL_BYTES = 16_384
GOES_ON = "the same command goes on from the newest checkpoint that verifies"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a job ended, as its launcher saw it.

    Attributes:
        was_asked: the launcher asked it to stop.
        was_killed: it did not stop within `grace_s`, and was killed by the launcher.
        told: the events of the training, without its steps.
    """

    run: RunKey
    job_id: str
    state: JobState
    was_asked: bool
    was_killed: bool
    grace_s: float
    log: Path
    told: list[JsonObject]

    def check(self) -> None:
        """Return if the training finished.

        Raises:
            PreemptedError: it was stopped, and its newest state is committed.
            StrongroomError: what it failed with, of the same class.
            RankLostError: a rank or its node died and could not say why.
            TrainingError: it ended without a word, or not in time.
        """
        try:
            self._check()
        except StrongroomError as error:
            if not is_accident(error) or not (self.was_asked or self.state.was_cancelled):
                raise
            # Who asked it to stop, here or by scancel, does not want it to be started again.
            raise TrainingError(
                f"{self._job}: was asked to stop, and failed before its newest state was "
                f"committed: {error}"
            ) from error

    def _check(self) -> None:
        by_kind = {event["kind"]: event for event in self.told}
        failures = [event for event in self.told if event["kind"] == ReportKind.FAILED]
        if failures and (is_own_cause(first_cause(failures)) or not self._was_cut_off):
            raise error_from(first_cause(failures))
        if ReportKind.FINISHED in by_kind:
            return
        if stopped := by_kind.get(ReportKind.STOPPED):
            raise PreemptedError(
                f"run {self.run}: stopped as asked; step {stopped['step']} is committed and the "
                "same command goes on from there"
            )
        if self.was_killed:
            raise TrainingError(
                f"{self._job}: did not stop within {self.grace_s:g} s of SIGTERM and was killed; "
                f"{GOES_ON}"
            )
        if ReportKind.STARTED not in by_kind and (self.was_asked or self.state.was_cancelled):
            raise PreemptedError(f"{self._job}: was stopped before its first step: {self.state}")
        kind = RankLostError if self.state.lost_a_rank else TrainingError
        raise kind(
            f"{self._job}: ended and no rank said why; expected it to finish, got {self.state}; "
            f"its log is {self.log}{self._log_tail()}\n{GOES_ON}"
        )

    @property
    def _job(self) -> str:
        return f"run {self.run}: job {self.job_id}"

    @property
    def _was_cut_off(self) -> bool:
        """Whether ranks were ended from outside, so that what others say only follows from that."""
        return self.was_killed or self.state.was_cancelled or self.state.lost_a_rank

    def _log_tail(self) -> str:
        """Return the end of the log, or why there is none."""
        try:
            data = self.log.read_bytes()
        except OSError as error:
            return f" ({error.strerror})"
        lines = data[-LOG_TAIL_BYTES:].decode(errors="replace").splitlines()
        return "".join(f"\n  {line}" for line in lines[-LOG_LINES:])
