"""Going on from a checkpoint: on other ranks, under another strategy, and just as it was.

The cells that cover all of `make matrix`, trained by the same code; docs/reliability.md shows them
all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.reliability.cells import SIZES, Cell, all_cells, covering
from benchmarks.reliability.matrix import Matrix
from benchmarks.reliability.pool import pools

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    folder = tmp_path_factory.mktemp("matrix")
    with pools(SIZES, folder) as ranks:
        yield Matrix(folder, ranks)


@pytest.mark.parametrize("cell", covering(all_cells()), ids=str)
def test_it_goes_on(matrix: Matrix, cell: Cell) -> None:
    verdict = matrix.verdict(cell)
    assert verdict.faults == ()
    assert verdict.tensors > 0
    assert verdict.difference == 0.0 or not cell.is_same


def test_a_rank_that_fails_is_told_of_and_its_group_ends(tmp_path: Path) -> None:
    from benchmarks.reliability.worker import Task
    from tests.support.training_run import make_training_run

    run = make_training_run(tmp_path / "run", world_size=2)
    (tmp_path / "run" / "store" / "strongroom.json").unlink()
    with pools([2], tmp_path) as ranks, pytest.raises(RuntimeError, match="StoreMissingError"):
        ranks[2].launch(Task(launch=run.launch()))
