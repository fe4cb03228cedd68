from __future__ import annotations

import pytest

from strongroom import canonical
from strongroom.data.cursor import Cursor, take
from strongroom.errors import FormatError
from strongroom.names import Digest
from strongroom.training.config import RunConfig, parse_config
from strongroom.training.progress import Progress, manifest_state

BASE = Digest.of(b"base")


def run_config(method: str = "lora") -> RunConfig:
    return parse_config(
        {
            "model": {"source": "tiny"},
            "data": {"sources": [{"uri": "rows.jsonl"}]},
            "adapter": {"method": method},
            "train": {"steps": 5, "batch_rows": 4, "learning_rate": 0.1},
        },
        source="test",
    )


def test_a_stored_state_gives_the_same_progress_again() -> None:
    progress = Progress.start(Cursor(seed=3, num_rows=10))
    for _ in range(3):
        _, cursor = take(progress.cursor, 4)
        progress = progress.after_step(tokens=50, samples=4, cursor=cursor)
    state = manifest_state(progress, run_config(), base_model=BASE, param_groups=[{"lr": 0.1}])
    stored = canonical.loads(canonical.dumps(state), what="state")
    assert Progress.of(stored) == progress
    assert (progress.step, progress.tokens, progress.samples) == (3, 150, 12)
    assert progress.cursor == Cursor(seed=3, num_rows=10, epoch=1, position=2)


@pytest.mark.parametrize(("method", "trainable_only"), [("lora", True), ("full", False)])
def test_the_state_says_what_the_tensors_are(method: str, trainable_only: bool) -> None:
    progress = Progress.start(Cursor(seed=0, num_rows=2))
    state = manifest_state(progress, run_config(method), base_model=BASE, param_groups=[])
    assert state["model"]["base_model"] == str(BASE)
    assert state["model"]["trainable_only"] is trainable_only
    assert state["model"]["adapter"]["method"] == method


@pytest.mark.parametrize("missing", ["counters", "cursor"])
def test_a_state_that_lacks_something_is_refused(missing: str) -> None:
    progress = Progress.start(Cursor(seed=0, num_rows=2))
    state = manifest_state(progress, run_config(), base_model=BASE, param_groups=[])
    del state[missing]
    with pytest.raises(FormatError, match="counters or cursor"):
        Progress.of(state)


def test_steps_passed_over_are_stored_once_each_and_in_order() -> None:
    progress = Progress.start(Cursor(seed=0, num_rows=9))
    for _ in range(4):
        progress = progress.after_step(tokens=1, samples=1, cursor=progress.cursor)
    progress = progress.passing_over([4, 2]).passing_over([2, 9])
    assert progress.passed_over == (2, 4, 9)
    state = manifest_state(progress, run_config(), base_model=BASE, param_groups=[])
    stored = canonical.loads(canonical.dumps(state), what="state")
    assert stored["passed_over"] == [2, 4, 9]
    assert Progress.of(stored) == progress


def test_a_state_says_nothing_of_steps_passed_over_where_there_are_none() -> None:
    """So that it keeps the digest that it had before there was such a thing."""
    progress = Progress.start(Cursor(seed=0, num_rows=9))
    state = manifest_state(progress, run_config(), base_model=BASE, param_groups=[])
    assert "passed_over" not in state
    assert Progress.of(state).passed_over == ()


@pytest.mark.parametrize("wrong", [7, ["x"], [None]])
def test_steps_passed_over_that_are_none_are_refused(wrong: object) -> None:
    progress = Progress.start(Cursor(seed=0, num_rows=9))
    state = manifest_state(progress, run_config(), base_model=BASE, param_groups=[])
    with pytest.raises(FormatError, match="malformed"):
        Progress.of({**state, "passed_over": wrong})


@pytest.mark.parametrize(
    ("passed_over", "learnt"), [((), 3), ((2,), 2), ((1, 2, 3), 0), ((2, 4), 2)]
)
def test_a_step_that_is_yet_to_come_takes_nothing_from_what_was_learnt(
    passed_over: tuple[int, ...], learnt: int
) -> None:
    cursor = Cursor(seed=0, num_rows=9)
    progress = Progress(step=3, tokens=3, samples=3, cursor=cursor, passed_over=passed_over)
    assert progress.num_learnt == learnt
