"""What the ranks decide together, on two of them, with a saver that disagrees with itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch.distributed as dist

from strongroom.canonical import JsonObject
from strongroom.data.cursor import Cursor
from strongroom.errors import PeerError, SaveError, StrongroomError
from strongroom.training.config import RunConfig, parse_config
from strongroom.training.loop import End, Launched, Loop
from strongroom.training.progress import Progress
from strongroom.training.stop import StopRequest
from strongroom.training.watchdog import Watchdog
from strongroom.training.world import World
from tests.support.ranks import run_ranks

STEPS = 7


class Saver:
    """Stands in for the saver of one rank."""

    def __init__(self, *, busy_at: set[int], fails_at: int | None = None) -> None:
        self.step = 0
        self.saved: list[int] = []
        self.waits = 0
        self._busy_at = busy_at
        self._fails_at = fails_at

    def is_busy(self) -> bool:
        return self.step in self._busy_at

    def check(self) -> None:
        if self.step == self._fails_at:
            raise SaveError("the process that writes for this rank was killed by signal 9")

    def wait(self) -> None:
        self.waits += 1


class Steps(Loop):
    """A loop whose steps learn nothing and whose saves are noted."""

    __slots__ = ()

    def _step(self) -> None:
        self.progress = replace(self.progress, step=self.progress.step + 1)
        self._stand_in.step = self.progress.step

    def _save(self) -> None:
        self._stand_in.saved.append(self.progress.step)

    @property
    def _stand_in(self) -> Saver:
        return cast("Saver", self.saver)


def loop(rank: int, saver: Saver, told: list[JsonObject]) -> Steps:
    nothing = cast("Any", None)
    return Steps(
        launched=Launched(
            run=nothing,
            attempt=nothing,
            parent=None,
            inputs=nothing,
            config=configured(),
            placement=configured().train.placement,
            probe=nothing,
        ),
        world=World(rank=rank, size=dist.get_world_size()),
        strategy=cast("Any", SimpleNamespace(model=_Model())),
        rows=nothing,
        saver=cast("Any", saver),
        report=told.append,
        stop=StopRequest(),
        watchdog=Watchdog(60.0, tell=nothing),
        meter=nothing,
        progress=Progress(step=0, tokens=0, samples=0, cursor=Cursor(seed=0, num_rows=1)),
    )


class _Model:
    def train(self) -> None:
        """Nothing learns here."""


def configured() -> RunConfig:
    return parse_config(
        {
            "model": {"source": "tiny"},
            "data": {"sources": [{"uri": "rows.jsonl"}]},
            "train": {"steps": STEPS, "batch_rows": 2, "learning_rate": 0.1},
            "save": {"every_steps": 1, "when_busy": "skip"},
        },
        source="test",
    )


def work(rank: int, folder: Path) -> None:
    told: list[JsonObject] = []
    # Each is busy at other steps, and one of them at the last, which is never skipped.
    saver = Saver(busy_at={2, 3} if rank == 0 else {3, 5, STEPS})
    assert loop(rank, saver, told).run() is End.COMPLETE
    found: dict[str, object] = {"saved": saver.saved, "told": told}

    saver = Saver(busy_at=set(), fails_at=3 if rank == 1 else None)
    try:
        loop(rank, saver, told).run()
    except StrongroomError as error:
        found["failure"] = type(error).__name__
        found["waits"] = saver.waits
    (folder / f"found-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("loop")
    run_ranks(2, work, folder)
    return [
        json.loads((folder / f"found-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)
    ]


def test_a_save_that_any_rank_would_wait_for_is_skipped_by_all(
    found: list[dict[str, Any]],
) -> None:
    assert [rank["saved"] for rank in found] == [[1, 4, 6, STEPS]] * 2
    first, second = (rank["told"] for rank in found)
    assert [event["step"] for event in first] == [2, 3, 5]
    assert {event["kind"] for event in first} == {"save.skipped"}
    assert second == []  # rank 0 speaks for all


def test_a_failure_that_one_rank_knows_of_stops_all_once_what_is_good_is_kept(
    found: list[dict[str, Any]],
) -> None:
    assert [rank["failure"] for rank in found] == [PeerError.__name__, SaveError.__name__]
    assert [rank["waits"] for rank in found] == [1, 1]
