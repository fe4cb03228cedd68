"""What rung 1 of the verification costs, beside hashing the same bytes in memory.

`python -m benchmarks.verify`. Each trial is a process that verifies a checkpoint of 1 MiB to warm
up and then the whole one, which lies in memory: in the page cache, or in that of the gateway's OSD.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.command import Measured, Settings, run
from benchmarks.measure import Meter, PeakMemory
from benchmarks.places import Place, open_place
from benchmarks.rounds import Table, Target, Trial, run_rounds
from benchmarks.states import GIB, MIB, decoder_state
from benchmarks.systems.strongroom import Strongroom
from benchmarks.trial import run_trial
from strongroom.checkpoint.catalogue import read_checkpoint
from strongroom.verification.ladder import Rung, verify
from tests.support.checkpoints import checkpoint_name

RAW = "SHA-256 of memory, all cores"
WHOLE, QUARTER = "rung 1", "rung 1, a quarter of it"
WARM_STEP, WHOLE_STEP, QUARTER_STEP = 1, 2, 3


def measure(settings: Settings) -> Measured:
    """Return a table for each place, and the targets."""
    tables, targets = [], []
    for kind in settings.places:
        with open_place(kind, settings.folder) as opened:
            place = opened.place.to_json()
            run_trial("benchmarks.verify:write", {"place": place, "mib": settings.mib})
            trials = [
                Trial(
                    system=name,
                    work="benchmarks.verify:climb",
                    arguments={"place": place, "step": step},
                )
                for name, step in ((WHOLE, WHOLE_STEP), (QUARTER, QUARTER_STEP))
            ]
            for name, threads in ((RAW, None), ("SHA-256 of memory, one core", 1)):
                arguments = {"mib": settings.mib, "threads": threads}
                trials.append(
                    Trial(system=name, work="benchmarks.floors:sha256", arguments=arguments)
                )
            table = run_rounds(
                f"verify, {kind}", trials, settings.rounds, compared=("gib_per_s", RAW)
            )
        tables.append(table)
        targets += _targets(kind, table)
    return tables, targets


def write(*, place: dict[str, Any], mib: int) -> dict[str, float]:
    """Save what is to be verified, three sizes of it."""
    saving = Strongroom(Place.from_json(place))
    for step, num_mib in ((WARM_STEP, 1), (WHOLE_STEP, mib), (QUARTER_STEP, max(mib // 4, 1))):
        saving.begin(decoder_state(num_mib * MIB), step)
        saving.finish()
    saving.close()
    return {}


def climb(*, place: dict[str, Any], step: int) -> dict[str, float]:
    """Verify one checkpoint as far as rung 1; return what that cost."""
    where = Place.from_json(place)
    storage = where.storage()
    num_bytes = read_checkpoint(storage, checkpoint_name(step)).manifest.num_bytes
    for number in (WARM_STEP, step):
        memory = PeakMemory()
        with Meter(where.server_pids) as meter:
            report = verify(storage, checkpoint_name(number), expected_id=None, up_to=Rung.BYTES)
        report.raise_for_findings()
    return {
        "seconds": meter.cost.wall_s,
        "gib_per_s": num_bytes / GIB / meter.cost.wall_s,
        **meter.cost.cpu_per_gib(num_bytes),
        "extra_mib": memory.extra_bytes() / MIB,
    }


def _targets(kind: str, table: Table) -> list[Target]:
    more_mib = [
        whole - quarter
        for whole, quarter in zip(
            table.rows[WHOLE]["extra_mib"], table.rows[QUARTER]["extra_mib"], strict=True
        )
    ]
    rate = table.ratio(WHOLE, "gib_per_s", RAW)
    return [
        Target(f"{kind}: rate of rung 1 against raw SHA-256 of all cores", ">=", 0.85, rate),
        Target(f"{kind}: memory for four times the bytes, MiB more", "<=", 16, median(more_mib)),
    ]


if __name__ == "__main__":
    run("Verify: what the first rung of verification costs.", measure, mib=1024)
