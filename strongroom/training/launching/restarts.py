"""Whether a training that failed is started again, and on how many ranks: a pure answer.

What may have been an accident is tried again: a rank that died without a word, a hang, a store that
did not answer. What would come out the same again, such as a loss that is not finite or a damaged
input, is not. Never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strongroom.errors import (
    HungError,
    PeerError,
    RankLostError,
    SaveError,
    StorageError,
    StrongroomError,
)
from strongroom.training.config import LaunchConfig
from strongroom.training.placement import Placement, placement_faults

ACCIDENTS = (RankLostError, HungError, PeerError, SaveError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """What is done next: the training is started again, after a while."""

    number: int
    placement: Placement
    delay_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Restarts:
    """What happened to a training since it last got further.

    Attributes:
        number: how often it was started again since.
        lost_in_a_row: how many times running it ended because a rank was lost.
        furthest: the highest step of which a checkpoint was committed.
    """

    config: LaunchConfig
    batch_rows: int
    placement: Placement
    number: int = 0
    lost_in_a_row: int = 0
    furthest: int = 0

    def after_commit(self, step: int) -> Restarts:
        """Return it after a checkpoint was committed: what was tried before does not count.

        One of a step that was committed before is no progress: a training that always comes to the
        same place is not started again for ever.
        """
        if step <= self.furthest:
            return self
        return replace(self, number=0, lost_in_a_row=0, furthest=step)

    def after(self, error: StrongroomError) -> tuple[Restart | None, Restarts]:
        """Return what to do about a failure, None for giving up, and what is known then."""
        if self.number >= self.config.max_restarts or not is_accident(error):
            return None, self
        lost = self.lost_in_a_row + 1 if isinstance(error, RankLostError) else 0
        # Lost twice running, a rank is taken to be gone for good.
        placement = self._smaller() if lost > 1 else self.placement
        after = replace(self, number=self.number + 1, lost_in_a_row=lost, placement=placement)
        delay_s = self.config.restart_delay_s * 2**self.number
        return Restart(number=after.number, placement=placement, delay_s=delay_s), after

    def _smaller(self) -> Placement:
        """Return the largest smaller placement that keeps the rows of a step, if one is allowed.

        A rank then takes more rows of a step, but no more of them at a time than before.
        """
        now = self.placement
        fewest = self.config.min_world_size or now.world_size
        at_a_time = now.micro_batch_rows or self.batch_rows // now.world_size
        for world_size in range(now.world_size - 1, fewest - 1, -1):
            smaller = replace(now.with_world_size(world_size), micro_batch_rows=at_a_time)
            if not placement_faults(smaller, self.batch_rows):
                return smaller
        return now


def is_accident(error: StrongroomError) -> bool:
    """Return whether the same again might come out otherwise."""
    return isinstance(error, ACCIDENTS) or (isinstance(error, StorageError) and error.retryable)
