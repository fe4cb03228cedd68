"""The matrix: every placement goes on from every placement's checkpoint, in the middle of an epoch.

`python -m benchmarks.reliability.matrix`. Of each method and placement a run is trained to its end,
and the same run is stopped half way. Each cell takes a copy of the store of what was stopped, goes
on under its own placement, and is held against the run that was never stopped:

1. every tensor of model and optimizer, and all other state, is what the checkpoint says, at the
   moment of the resume, before anything is computed;
2. losses are equal where it goes on as it was, and so is the final state digest; else they are
   within 1e-6 of it, relative;
3. every row came once per epoch, in the one order of the run, whoever computed it;
4. the attempt's record and its first event say whether it is exact.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.reliability.cells import METHODS, SIZES, Cell, Method, Spread, all_cells, covering
from benchmarks.reliability.command import Measured, Options, run_command
from benchmarks.reliability.judging import loss_faults, num_trained, record_faults, state_faults
from benchmarks.reliability.pool import Ranks, pools
from benchmarks.reliability.trained import Trained, largest_difference, put_together, row_faults
from benchmarks.reliability.worker import Task
from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import list_checkpoints
from strongroom.data.cursor import Cursor, take
from strongroom.names import StateDigest
from strongroom.storage.local import LocalStorage
from strongroom.training.config import LaunchConfig
from strongroom.training.launching.spec import LaunchSettings
from tests.support.training_run import TrainingRun, make_training_run

NUM_ROWS = 36
BATCH_ROWS = 8
STEPS = 12
STOP_AFTER = 6
"""Row 48 of 96: epochs end within step 5 and with step 9, and it is stopped within the second."""
SEED = 7
LEARNING_RATE = 1e-3

logger = logging.getLogger("benchmarks.reliability")  # by whatever name this module runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How a cell came out.

    Attributes:
        faults: what is not as it must be; empty where the cell holds.
        difference: the largest of the losses after the resume, relative.
        tensors: how many of model and optimizer were compared.
    """

    cell: Cell
    faults: tuple[str, ...]
    difference: float
    tensors: int

    def to_json(self) -> JsonObject:
        """Return it as the document holds it."""
        return {
            **self.cell.to_json(),
            "faults": list(self.faults),
            "difference": self.difference,
            "tensors": self.tensors,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """What a cell goes on from, and what it is held against.

    Attributes:
        run: the run that was stopped.
        stopped: what was seen of it.
        whole: what was seen of the same run, never stopped.
        final: the state digest that that one ended in.
    """

    run: TrainingRun
    stopped: Trained
    whole: Trained
    final: StateDigest


class Matrix:
    """Trains what cells need.

    Args:
        folder: for all runs and stores.
        ranks: what trains them, by number of ranks.
        seed: of the runs.
    """

    def __init__(self, folder: Path, ranks: dict[int, Ranks], *, seed: int = SEED) -> None:
        self._folder = folder
        self._ranks = ranks
        self._seed = seed
        self._runs: dict[Method, TrainingRun] = {}
        self._source: tuple[Method, Spread, _Source] | None = None

    def verdict(self, cell: Cell) -> Verdict:
        """Return how a cell came out; cells of one source one after another take less time."""
        if self._source is None or self._source[:2] != (cell.method, cell.saved):
            self._source = cell.method, cell.saved, self._new_source(cell.method, cell.saved)
        return self._verdict(cell, self._source[2])

    def _run(self, method: Method) -> TrainingRun:
        """Return the run of a method, of which every launch takes a copy."""
        if method not in self._runs:
            self._runs[method] = make_training_run(
                self._folder / method.replace(", ", "-"),
                method="full" if method == "full" else "lora",
                dropout=0.1 if method == "lora, dropout" else 0.0,
                num_rows=NUM_ROWS,
                batch_rows=BATCH_ROWS,
                steps=STEPS,
                seed=self._seed,
                learning_rate=LEARNING_RATE,
                save={"every_steps": STEPS},
            )
        return self._runs[method]

    def _new_source(self, method: Method, spread: Spread) -> _Source:
        run = self._run(method)
        with self._copied(run, "whole") as never_stopped:
            whole = self._train(never_stopped, method, spread)
            final = never_stopped.state_digests()[STEPS]
        shutil.rmtree(self._folder / "stopped", ignore_errors=True)
        stopped = _copy(run, self._folder / "stopped")
        return _Source(
            run=stopped,
            stopped=self._train(stopped, method, spread, stop_after=STOP_AFTER),
            whole=whole,
            final=final,
        )

    def _verdict(self, cell: Cell, source: _Source) -> Verdict:
        began = time.monotonic()
        witness = self._folder / "witness"
        with self._copied(source.run, "cell") as run, _temporary(witness):
            (saved,) = list_checkpoints(run.storage, run.record.run)
            trained = self._train(run, cell.method, cell.resumed, witness=witness)
            difference = largest_difference(trained.losses, source.whole.losses)
            faults = [
                *state_faults(run.storage, saved, LocalStorage(witness)),
                *loss_faults(cell, trained, range(STOP_AFTER + 1, STEPS + 1), difference),
                *row_faults(source.stopped.rows + trained.rows, self._order(), NUM_ROWS),
                *record_faults(cell, run.storage, run.record.run, trained.started),
            ]
            got = run.state_digests()[STEPS]
        if cell.is_same and got != source.final:
            faults.append(f"final state: expected {source.final}, got {got}")
        told = "; ".join(faults) or f"holds, losses within {difference:.2g}"
        logger.info("%s: %s (%.1f s)", cell, told, time.monotonic() - began)
        return Verdict(
            cell=cell, faults=tuple(faults), difference=difference, tensors=num_trained(saved)
        )

    def _order(self) -> list[int]:
        return take(Cursor(seed=self._seed, num_rows=NUM_ROWS), STEPS * BATCH_ROWS)[0]

    def _train(
        self,
        run: TrainingRun,
        method: Method,
        spread: Spread,
        *,
        stop_after: int | None = None,
        witness: Path | None = None,
    ) -> Trained:
        placement = spread.placement(method)
        settings = LaunchSettings(placement=placement, launch=LaunchConfig(hang_timeout_s=300.0))
        task = Task(launch=run.launch(settings=settings), stop_after=stop_after, witness=witness)
        seen = self._ranks[spread.ranks].launch(task)
        return put_together(
            seen[0].events, [rank.batches for rank in seen], placement.micro_batches(BATCH_ROWS)
        )

    @contextmanager
    def _copied(self, run: TrainingRun, name: str) -> Iterator[TrainingRun]:
        """Yield a copy of a run and its store, for as long as the context lasts."""
        with _temporary(self._folder / name):
            yield _copy(run, self._folder / name)


def _copy(run: TrainingRun, folder: Path) -> TrainingRun:
    shutil.copytree(Path(run.store_url.removeprefix("file://")), folder)
    storage = LocalStorage(folder)
    return replace(run, store_url=storage.url, storage=storage)


@contextmanager
def _temporary(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(options: Options) -> Measured:
    """Return how every cell came out, or, shortened, those that cover all."""
    cells = covering(all_cells()) if options.is_short else all_cells()
    with pools(SIZES, options.folder) as ranks:
        matrix = Matrix(options.folder, ranks, seed=options.seed)
        verdicts = [matrix.verdict(cell) for cell in cells if options.wants(cell.method)]
    return Measured(
        settings={
            "rows": NUM_ROWS,
            "rows of a step": BATCH_ROWS,
            "steps": STEPS,
            "stopped after step": STOP_AFTER,
            "learning rate": LEARNING_RATE,
        },
        results=[verdict.to_json() for verdict in verdicts],
    )


if __name__ == "__main__":
    run_command("matrix", measure, parts=METHODS, seed=SEED)
