"""Which failures are tried again, how often, how soon and on how many ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from strongroom.errors import (
    ConfigError,
    FencedError,
    FormatError,
    HungError,
    IntegrityError,
    NothingToResumeError,
    ObjectMissingError,
    PeerError,
    PreemptedError,
    RankLostError,
    SaveError,
    StorageDeniedError,
    StorageFullError,
    StoreMissingError,
    StoreUnreachableError,
    StrongroomError,
    TrainingError,
    VerificationError,
)
from strongroom.training.config import LaunchConfig
from strongroom.training.launching.restarts import Restart, Restarts, is_accident
from strongroom.training.placement import Placement

LOST = RankLostError("a rank was ended by signal 9")
HUNG = HungError("rank 0, step 7: got nothing")
FOUR = Placement(strategy="fsdp2", world_size=4)
DAMAGED = IntegrityError("a chunk was changed", file="f", expected="1", got="2")


def restarts(
    config: LaunchConfig | None = None, *, batch_rows: int = 8, placement: Placement = FOUR
) -> Restarts:
    config = config or LaunchConfig(max_restarts=3, restart_delay_s=5.0)
    return Restarts(config=config, batch_rows=batch_rows, placement=placement)


def after(begun: Restarts, *errors: StrongroomError) -> Iterator[Restart]:
    """Yield what is done about one failure after another."""
    for error in errors:
        restart, begun = begun.after(error)
        assert restart is not None
        yield restart


@pytest.mark.parametrize("kind", [RankLostError, HungError, PeerError, SaveError])
def test_what_may_have_been_an_accident_is_tried_again(kind: type[StrongroomError]) -> None:
    assert is_accident(kind("by accident"))


def test_a_store_that_did_not_answer_is_tried_again() -> None:
    assert is_accident(StoreUnreachableError("no answer"))


@pytest.mark.parametrize(
    "error",
    [
        TrainingError("loss is not finite"),
        FencedError("a newer attempt owns the run"),
        PreemptedError("stopped as asked"),
        NothingToResumeError("none can be used"),
        ConfigError("config.yaml", ["train.steps: must be at least 1"]),
        VerificationError("probe loss"),
        FormatError("not canonical"),
        DAMAGED,
        StorageFullError("no space left"),
        StorageDeniedError("not allowed"),
        StoreMissingError("no store"),
        ObjectMissingError("no object"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_would_come_out_the_same_is_not(error: StrongroomError) -> None:
    assert not is_accident(error)
    begun = restarts()
    assert begun.after(error) == (None, begun)


def test_delays_double_and_restarts_are_bounded() -> None:
    begun = restarts()
    told = []
    for error in (HUNG, PeerError("x"), HUNG):
        restart, begun = begun.after(error)
        assert restart is not None
        told.append((restart.number, restart.delay_s, restart.placement))
    assert told == [(1, 5.0, FOUR), (2, 10.0, FOUR), (3, 20.0, FOUR)]
    assert begun.after(HUNG) == (None, begun)


def test_no_restarts_are_none() -> None:
    begun = restarts(LaunchConfig(max_restarts=0))
    assert begun.after(LOST) == (None, begun)


def test_a_checkpoint_further_on_lets_the_count_begin_anew() -> None:
    begun = restarts()
    for number in range(10):
        for error in (LOST, HUNG, LOST):
            restart, begun = begun.after(error)
            assert restart is not None
        begun = begun.after_commit(number + 1)
    assert (begun.number, begun.lost_in_a_row) == (0, 0)


def test_a_checkpoint_of_a_step_that_was_committed_before_does_not() -> None:
    """Such as one whose store damages everything: it comes to the same place for ever."""
    begun = restarts().after_commit(5)
    for _ in range(3):
        restart, begun = begun.after(HUNG)
        assert restart is not None
        begun = begun.after_commit(4).after_commit(5)
    assert begun.after(HUNG)[0] is None
    assert begun.after_commit(6).after(HUNG)[0] is not None


# --- on how many ranks ----------------------------------------------------------------

MAY_SHRINK = LaunchConfig(max_restarts=9, min_world_size=1)


def test_a_rank_that_is_lost_twice_running_is_done_without() -> None:
    first, second, third = after(restarts(MAY_SHRINK), LOST, LOST, LOST)
    assert first.placement == FOUR
    # 3 ranks cannot share 8 rows; of 2 each takes 4, and no more than 2 at a time, as before.
    assert second.placement == replace(FOUR, world_size=2, micro_batch_rows=2)
    assert third.placement == replace(FOUR, world_size=1, micro_batch_rows=2)


def test_rows_of_a_pass_stay_as_they_were_configured() -> None:
    four = replace(FOUR, micro_batch_rows=1)
    _, second = after(restarts(MAY_SHRINK, placement=four), LOST, LOST)
    assert second.placement == replace(four, world_size=2)
    assert second.placement.micro_batches(8) == 4


def test_another_failure_or_a_checkpoint_between_is_not_twice_running() -> None:
    for placement in (r.placement for r in after(restarts(MAY_SHRINK), LOST, HUNG, LOST, HUNG)):
        assert placement == FOUR
    _, begun = restarts(MAY_SHRINK).after(LOST)
    restart, _ = begun.after_commit(3).after(LOST)
    assert restart is not None
    assert restart.placement == FOUR


@pytest.mark.parametrize("fewest", [None, 4])
def test_all_ranks_are_needed_unless_fewer_are_allowed(fewest: int | None) -> None:
    config = LaunchConfig(max_restarts=3, min_world_size=fewest)
    assert {r.placement for r in after(restarts(config), LOST, LOST, LOST)} == {FOUR}


def test_never_fewer_than_allowed_nor_such_as_cannot_share_the_rows() -> None:
    config = replace(MAY_SHRINK, min_world_size=3)
    assert {r.placement for r in after(restarts(config), LOST, LOST)} == {FOUR}
    _, second = after(restarts(config, batch_rows=12), LOST, LOST)
    assert second.placement.world_size == 3


def test_replicas_are_kept_where_they_can_be() -> None:
    eight = replace(FOUR, world_size=8, replicas=2)
    _, second, third = after(restarts(MAY_SHRINK, batch_rows=24, placement=eight), LOST, LOST, LOST)
    assert (second.placement.world_size, second.placement.replicas) == (6, 2)
    assert (third.placement.world_size, third.placement.replicas) == (4, 2)
