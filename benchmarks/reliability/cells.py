"""The cells of the matrix: a run that is saved under one placement and goes on under another.

Pure; nothing is trained here. HSDP on one rank has nothing to replicate and is FSDP2's own, so that
three strategies on 1, 2 and 4 ranks are eight placements; every ordered pair of them is a cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, get_args

from strongroom.canonical import JsonObject
from strongroom.training.placement import Placement

Strategy = Literal["fsdp2", "hsdp", "zero3"]
Method = Literal["full", "lora", "lora, dropout"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
METHODS: tuple[Method, ...] = get_args(Method)
SIZES = (1, 2, 4)
MICRO_BATCH_ROWS: dict[Method, int | None] = {"full": 2, "lora": 1, "lora, dropout": None}
"""Of 8 rows a step: 4, 2 and 1 passes on 1, 2 and 4 ranks; 8, 4 and 2; or one on any."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A strategy on a number of ranks: what a row or a column of the table stands for."""

    strategy: Strategy
    ranks: int

    def __str__(self) -> str:
        """`hsdp@4`."""
        return f"{self.strategy}@{self.ranks}"

    def placement(self, method: Method) -> Placement:
        """Return it as a launch names it."""
        return Placement(
            strategy="zero3" if self.strategy == "zero3" else "fsdp2",
            world_size=self.ranks,
            replicas=2 if self.strategy == "hsdp" else 1,
            micro_batch_rows=MICRO_BATCH_ROWS[method],
        )


SPREADS = tuple(
    Spread(strategy, ranks)
    for strategy in STRATEGIES
    for ranks in SIZES
    if (strategy, ranks) != ("hsdp", 1)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One cell: what is trained, how it is spread up to the save, and how after it."""

    method: Method
    saved: Spread
    resumed: Spread

    def __str__(self) -> str:
        """`lora: hsdp@4 -> zero3@1`."""
        return f"{self.method}: {self.saved} -> {self.resumed}"

    @property
    def is_same(self) -> bool:
        """Whether it goes on as it was, so that everything must come out the same bit for bit."""
        return self.saved == self.resumed

    def to_json(self) -> JsonObject:
        """Return it as a document names it."""
        return {"method": self.method, "saved": str(self.saved), "resumed": str(self.resumed)}


def all_cells() -> list[Cell]:
    """Return every cell, those of one source after another.

    Dropout draws other masks where the ranks are others: with it there are cells for going on as
    before alone, which prove the random state of every rank.
    """
    return [
        cell
        for method in METHODS
        for saved in SPREADS
        for resumed in SPREADS
        if (cell := Cell(method=method, saved=saved, resumed=resumed)).is_same
        or method != "lora, dropout"
    ]


def covering(cells: Sequence[Cell]) -> list[Cell]:
    """Return few of `cells` that have in common with all of them what is worth trying.

    That is every method with every change of strategy; every pair of choices, which are the method
    and, of the save and of the resume, strategy and ranks; and that every strategy goes on as it
    was, with all parameters trained and with dropout. Greedy, and so the same every time; of cells
    that cover as much, one whose source is needed already comes first.
    """
    missing = {fact for cell in cells for fact in _facts(cell)}
    chosen: list[Cell] = []
    while missing:
        sources = {(cell.method, cell.saved) for cell in chosen}
        best = max(
            cells,
            key=lambda cell: (
                len(missing.intersection(_facts(cell))),
                (cell.method, cell.saved) in sources,
                -cell.saved.ranks - cell.resumed.ranks,
            ),
        )
        chosen.append(best)
        missing.difference_update(_facts(best))
    return sorted(chosen, key=cells.index)


def _facts(cell: Cell) -> Iterator[tuple[object, ...]]:
    choices = {
        "method": cell.method,
        "saved": cell.saved.strategy,
        "saved on": cell.saved.ranks,
        "resumed": cell.resumed.strategy,
        "resumed on": cell.resumed.ranks,
    }
    yield from combinations(choices.items(), 2)
    yield "changes", cell.method, cell.saved.strategy, cell.resumed.strategy
    if cell.is_same and cell.method != "lora":
        yield "same", cell.saved.strategy, cell.method
