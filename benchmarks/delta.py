"""What saving costs of which little has changed: adapters and their moments, 1 % of the bytes.

`python -m benchmarks.delta`. Each trial is a process that saves the state, changes the adapters,
saves (which fills the memory that is kept), changes them again and measures the next save: once as
a delta, once as the full save that it stands in for.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.command import Measured, Settings, run
from benchmarks.floors import warm_copy_s
from benchmarks.measure import Meter
from benchmarks.places import Place, open_place
from benchmarks.rounds import Table, Target, Trial, run_rounds
from benchmarks.states import MIB, adapter_state, change, decoder_state, num_bytes_of
from benchmarks.systems.strongroom import Strongroom

TRAINABLE_SHARE = 0.01
BEYOND_MAX = 0.05
"""1 % of a full save's time for 1 % of its bytes, and as much again four times for the requests
that every save makes, however small."""
MANY = 1000  # more than there are saves, so that none but the first is full
DELTA, FULL, RAW = "delta save", "full save", "SHA-256 of memory, all cores"


def measure(settings: Settings) -> Measured:
    """Return a table for each place, and the targets."""
    tables, targets = [], []
    for kind in settings.places:
        with open_place(kind, settings.folder) as opened:
            what = {"place": opened.place.to_json(), "mib": settings.mib}
            trials = [
                Trial(
                    system=name,
                    work="benchmarks.delta:save",
                    arguments={**what, "full_every": full_every},
                    after=opened.empty,
                )
                for name, full_every in ((DELTA, MANY), (FULL, 1))
            ]
            trials.append(
                Trial(system=RAW, work="benchmarks.floors:sha256", arguments={"mib": settings.mib})
            )
            table = run_rounds(
                f"delta, {kind}", trials, settings.rounds, compared=("seconds", FULL)
            )
        tables.append(table)
        targets += _targets(kind, table)
    return tables, targets


def save(*, place: dict[str, Any], mib: int, full_every: int) -> dict[str, float]:
    """Save three times and return what the third cost."""
    where = Place.from_json(place)
    adapters = adapter_state(mib * MIB, trainable_share=TRAINABLE_SHARE)
    state = decoder_state(mib * MIB - num_bytes_of(adapters)) | adapters
    copy_s = warm_copy_s(state)
    saving = Strongroom(where, full_every=full_every)
    for step in (1, 2, 3):
        change(adapters)
        before_bytes = where.stored_bytes()
        with Meter(where.server_pids) as meter:
            saving.begin(state, step)
            saving.finish()
    stored_bytes = where.stored_bytes() - before_bytes
    saving.close()
    return {
        "seconds": meter.cost.wall_s,
        "copy_s": copy_s,
        **meter.cost.cpu_per_gib(num_bytes_of(state)),
        "stored_mib": stored_bytes / MIB,
        "changed_mib": num_bytes_of(adapters) / MIB,
        "stored_per_changed": stored_bytes / num_bytes_of(adapters),
    }


def _targets(kind: str, table: Table) -> list[Target]:
    times = (table.rows[name]["seconds"] for name in (DELTA, RAW, FULL))
    copies = table.rows[DELTA]["copy_s"]
    beyond = [
        (delta_s - copy_s - hash_s) / full_s
        for copy_s, delta_s, hash_s, full_s in zip(copies, *times, strict=True)
    ]
    stored = table.median(DELTA, "stored_per_changed")
    return [
        Target(f"{kind}: bytes a delta stores against bytes changed", "<=", 1.05, stored),
        Target(
            f"{kind}: time of a delta beyond copying and hashing, against a full save's",
            "<=",
            BEYOND_MAX,
            median(beyond),
        ),
    ]


if __name__ == "__main__":
    run("Delta: what it costs to save a state of which 1 % has changed.", measure, mib=1024)
