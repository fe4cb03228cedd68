"""What the end of a training means: it finished, was stopped, failed, or was cut off. Pure.

One answer for every launcher, from what the ranks told and what the launcher saw of their end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strongroom.canonical import JsonObject
from strongroom.errors import PreemptedError, RankLostError, StrongroomError, TrainingError
from strongroom.training.failure import error_from, first_cause, is_own_cause
from strongroom.training.launching.restarts import is_accident
from strongroom.training.reporting import ReportKind

GOES_ON = "the same command goes on from the newest checkpoint that verifies"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a training ended, as its launcher saw it.

    Attributes:
        who: the run, and its job where it has one.
        told: its events; its steps may be left out.
        end: how its processes ended, in a few words.
        hint: where to look for more; asked only where no rank said why.
        grace_s: seconds that it had to stop in.
        was_asked: the launcher asked it to stop.
        was_killed: it did not stop in time, and was killed by the launcher.
        was_cancelled: somebody else wanted its place.
        lost_a_rank: a rank was ended from outside, in a way that leaves it no word to say.
    """

    who: str
    told: Sequence[JsonObject]
    end: str
    hint: Callable[[], str]
    grace_s: float
    was_asked: bool
    was_killed: bool
    was_cancelled: bool = False
    lost_a_rank: bool = False

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
            if not is_accident(error) or not self._is_wanted:
                raise
            # Who asked it to stop does not want it to be started again.
            raise TrainingError(
                f"{self.who}: was asked to stop, and failed before its newest state was "
                f"committed: {error}"
            ) from error

    def _check(self) -> None:
        by_kind = {event["kind"]: event for event in self.told}
        failures = [event for event in self.told if event["kind"] == ReportKind.FAILED]
        is_cut_off = self.was_killed or self.was_cancelled or self.lost_a_rank
        # Of ranks that were ended from outside others say what only follows from that.
        if failures and (is_own_cause(first_cause(failures)) or not is_cut_off):
            raise error_from(first_cause(failures))
        if ReportKind.FINISHED in by_kind:
            return
        if stopped := by_kind.get(ReportKind.STOPPED):
            raise PreemptedError(
                f"{self.who}: stopped as asked; step {stopped['step']} is committed and the same "
                "command goes on from there"
            )
        if self.was_killed:
            raise TrainingError(
                f"{self.who}: did not stop within {self.grace_s:g} s of SIGTERM and was killed; "
                f"{GOES_ON}"
            )
        if ReportKind.STARTED not in by_kind and self._is_wanted:
            raise PreemptedError(f"{self.who}: stopped as asked, before its first step: {self.end}")
        kind = RankLostError if self.lost_a_rank else TrainingError
        raise kind(
            f"{self.who}: ended and no rank said why; expected it to finish, got {self.end}; "
            f"{self.hint()}\n{GOES_ON}"
        )

    @property
    def _is_wanted(self) -> bool:
        """Whether somebody wanted it to end, here or elsewhere."""
        return self.was_asked or self.was_cancelled
