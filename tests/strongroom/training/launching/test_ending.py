"""What an end means follows from what was told and seen, wherever the training ran."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strongroom.canonical import JsonObject
from strongroom.errors import (
    NothingToResumeError,
    PeerError,
    PreemptedError,
    RankLostError,
    StrongroomError,
    TrainingError,
)
from strongroom.training.failure import failure_event
from strongroom.training.launching.ending import Ending

STARTED: JsonObject = {"kind": "training.started"}
STOPPED: JsonObject = {"kind": "training.stopped", "step": 5}
FINISHED: JsonObject = {"kind": "training.finished", "step": 9}
OWN = failure_event(NothingToResumeError("none can be used"), rank=1)
OF_A_PEER = failure_event(PeerError("rank 0 is gone"), rank=1)
ENDING = Ending(
    who="run r",
    told=(),
    end="exit code 1",
    hint=lambda: "the log is long",
    grace_s=30.0,
    was_asked=False,
    was_killed=False,
)


def test_a_training_that_says_so_has_finished() -> None:
    replace(ENDING, told=[STARTED, FINISHED]).check()
    # What is stopped after its last word has finished all the same.
    replace(ENDING, told=[STARTED, FINISHED], was_asked=True, was_killed=True).check()


@pytest.mark.parametrize(
    ("told", "seen", "kind", "words"),
    [
        ([STARTED], {}, TrainingError, "no rank said why.*exit code 1; the log is long"),
        ([STARTED], {"lost_a_rank": True}, RankLostError, "no rank said why"),
        ([STARTED, OWN], {}, NothingToResumeError, "none can be used"),
        ([STARTED, OWN], {"lost_a_rank": True}, NothingToResumeError, "none can be used"),
        ([STARTED, OF_A_PEER], {}, PeerError, "rank 0 is gone"),
        ([STARTED, OF_A_PEER], {"lost_a_rank": True}, RankLostError, "no rank said why"),
        ([STARTED, OF_A_PEER, OWN], {}, NothingToResumeError, "none can be used"),
        ([STARTED, STOPPED], {}, PreemptedError, "step 5 is committed"),
        ([STARTED, STOPPED], {"was_killed": True}, PreemptedError, "step 5 is committed"),
        ([STARTED], {"was_killed": True}, TrainingError, "did not stop within 30 s"),
        ([], {"was_asked": True}, PreemptedError, "before its first step: exit code 1"),
        ([], {"was_cancelled": True}, PreemptedError, "before its first step"),
        ([], {}, TrainingError, "no rank said why"),
        # Who asked it to stop does not want it to be started again, whatever became of it.
        ([STARTED, OF_A_PEER], {"was_asked": True}, TrainingError, "was asked to stop, and failed"),
        ([STARTED], {"was_cancelled": True, "lost_a_rank": True}, TrainingError, "was asked to"),
        ([STARTED, OWN], {"was_asked": True}, NothingToResumeError, "none can be used"),
    ],
)
def test_an_end_is_told_by_its_cause(
    told: list[JsonObject], seen: dict[str, Any], kind: type[StrongroomError], words: str
) -> None:
    with pytest.raises(StrongroomError, match=f"(?s){words}") as caught:
        replace(ENDING, told=told, **seen).check()
    assert type(caught.value) is kind
