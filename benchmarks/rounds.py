"""Trials of several systems, interleaved round by round, and what a benchmark found in them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.trial import run_trial
from strongroom.canonical import JsonObject

logger = logging.getLogger(__name__)

Samples = dict[str, list[float]]
"""Values of each quantity, one a round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A measurement to be repeated in every round.

    Attributes:
        system: name of the row its numbers belong to.
        work: `module:function` that measures, in a process of its own.
        arguments: of that function.
        after: called when it has ended, outside of what is measured.
    """

    system: str
    work: str
    arguments: JsonObject
    after: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """What was measured of several systems in the same rounds.

    Attributes:
        title: what was measured, and where.
        rows: the samples of each system, by its name.
        compared: a quantity, and the system that the others are to be divided by.
    """

    title: str
    rows: dict[str, Samples]
    compared: tuple[str, str]

    def median(self, system: str, quantity: str) -> float | None:
        """Return the median of all rounds; None where it was not measured."""
        samples = self.rows.get(system, {}).get(quantity)
        return median(samples) if samples else None

    def ratio(self, system: str, quantity: str, to: str) -> float | None:
        """Return the median of the rounds' ratios: both values of each are of the same round."""
        ratios = paired_ratios(self.rows, system, quantity, to)
        return median(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a figure must keep.

    Attributes:
        what: the figure in words.
        bound: `<=` or `>=`.
        limit: the bound's value.
        got: the figure; None where it was not measured.
    """

    what: str
    bound: str
    limit: float
    got: float | None

    @property
    def reached(self) -> bool | None:
        """Whether the bound is kept; None where nothing was measured."""
        if self.got is None:
            return None
        return self.got <= self.limit if self.bound == "<=" else self.got >= self.limit


def paired_ratios(rows: Mapping[str, Samples], system: str, quantity: str, to: str) -> list[float]:
    """Return a system's values divided by those of another in the same rounds."""
    above, below = (rows.get(name, {}).get(quantity, []) for name in (system, to))
    return [a / b for a, b in zip(above, below, strict=False)]


def run_rounds(
    title: str, trials: Sequence[Trial], rounds: int, *, compared: tuple[str, str]
) -> Table:
    """Run every trial once a round, beginning each round with another one; see `Table`."""
    rows: dict[str, Samples] = {trial.system: {} for trial in trials}
    for number in range(rounds):
        start = number % len(trials)
        for trial in (*trials[start:], *trials[:start]):
            logger.info("%s, round %d of %d: %s", title, number + 1, rounds, trial.system)
            numbers = run_trial(trial.work, trial.arguments)
            trial.after()
            for quantity, value in numbers.items():
                rows[trial.system].setdefault(quantity, []).append(value)
    return Table(title=title, rows=rows, compared=compared)
