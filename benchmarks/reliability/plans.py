"""Which runs are killed when: by chance, from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.reliability.cells import STRATEGIES, Spread
from benchmarks.reliability.kills import RANKS, TARGETS, Moment, Target
from benchmarks.reliability.marks import SAVING, Phase
from benchmarks.reliability.soaked import EVERY_STEPS, Plan

SLOW_S = 0.015
"""A rank waits so long in the middle of each copy and write, so that a kill can meet it there."""
STEP_S = 0.2
"""It waits so long for the rows of a step: a save then takes little more time than a step."""
START_S = 3.0
"""From a rank's first note to its first step, about."""
WITHIN_S: dict[Phase, float] = {
    "starting": START_S,
    "restoring": 0.05,
    "training": 2 * EVERY_STEPS * STEP_S,
}
"""How long after a phase was noted the kill may come; where nothing is said, `SLOW_S`."""
AIMED: tuple[Phase, ...] = tuple(phase for phase in SAVING if phase != "agreeing")
"""The phases of a save that are aimed at; what lies between is met by the way."""


def long_plans(seed: int) -> list[Plan]:
    """Return 56 kills of each strategy, and 12 under the supervisor."""
    of_launches = [
        Plan(
            name=strategy,
            spread=Spread(strategy, RANKS),
            moments=_by_chance(
                random.Random(f"{seed} {strategy}"),  # noqa: S311 -- moments, not secrets
                {"starting": 5, "restoring": 4, "training": 12, **dict.fromkeys(AIMED, 7)},
                TARGETS,
            ),
        )
        for strategy in STRATEGIES
    ]
    supervised = Plan(
        name="fsdp2, supervised",
        spread=Spread("fsdp2", RANKS),
        moments=_by_chance(
            random.Random(f"{seed} supervised"),  # noqa: S311 -- as above
            {"starting": 1, "restoring": 1, "training": 5, **dict.fromkeys(AIMED, 1)},
            TARGETS[1:],
        ),
        supervised=True,
    )
    return [*of_launches, supervised]


def short_plans(seed: int) -> list[Plan]:
    """Return what the tests can wait for: whom to kill in which phase, and when in it by chance."""
    choose = random.Random(seed)  # noqa: S311 -- as above
    wanted: dict[str, list[tuple[Target, Phase, int]]] = {
        "fsdp2": [
            ("rank 0", "manifest", 2),
            ("launcher", "shards", 1),
            ("agent", "ledger", 1),
            ("rank 1", "training", 1),
        ],
        "zero3, supervised": [
            ("rank 1", "staging", 2),
            ("agent", "index", 1),
            ("rank 0", "manifest", 2),
        ],
    }
    return [
        Plan(
            name=name,
            spread=Spread("fsdp2" if name == "fsdp2" else "zero3", RANKS),
            moments=[_moment(choose, *whom) for whom in chosen],
            supervised=name.endswith("supervised"),
        )
        for name, chosen in wanted.items()
    ]


def _by_chance(
    choose: random.Random, phases: dict[Phase, int], targets: Sequence[Target]
) -> list[Moment]:
    """Return so many moments of each phase, in an order of chance; targets take turns.

    But for the first: it comes when a checkpoint stands, so that all later attempts restore one.
    """
    wanted = [phase for phase, count in phases.items() for _ in range(count)]
    made = [
        _moment(
            choose,
            targets[number % len(targets)],
            phase,
            choose.randint(1, 2 if phase in AIMED else 1),
        )
        for number, phase in enumerate(wanted)
    ]
    choose.shuffle(made)
    made.insert(0, made.pop(next(n for n, moment in enumerate(made) if moment.phase == "ledger")))
    return made


def _moment(choose: random.Random, target: Target, phase: Phase, times: int) -> Moment:
    return Moment(
        target=target,
        phase=phase,
        times=times,
        after_s=choose.uniform(0.0, WITHIN_S.get(phase, SLOW_S)),
    )
