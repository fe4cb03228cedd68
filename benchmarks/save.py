"""What a save costs: the pause, the time until it is durable, CPU, memory, bytes.

`python -m benchmarks.save` measures every system at every place. Each trial is a process that saves
a state of 1 MiB (imports, connections), then the whole state twice: the first time fills the memory
that the system keeps, the second is measured.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.command import Measured, Settings, run
from benchmarks.floors import warm_copy_s
from benchmarks.measure import Cost, Meter, PeakMemory
from benchmarks.places import Place, open_place
from benchmarks.rounds import Table, Target, Trial, run_rounds
from benchmarks.states import MIB, change, decoder_state, num_bytes_of
from benchmarks.systems import SYSTEMS, System

DEVICE_STEP_S = 0.5
"""How long a device computes the next forward and backward, the CPU being idle, before it needs to
change the tensors: that much time has a copy that overlaps with them."""


def measure(settings: Settings) -> Measured:
    """Return a table for each place, and the targets."""
    tables, targets = [], []
    for kind in settings.places:
        with open_place(kind, settings.folder) as opened:
            trials = [
                Trial(
                    system=system,
                    work="benchmarks.save:save",
                    arguments={
                        "place": opened.place.to_json(),
                        "kind": kind,
                        "system": system,
                        "mib": settings.mib,
                    },
                    after=opened.empty,
                )
                for system in SYSTEMS[kind]
                if settings.wants(system)
            ]
            table = run_rounds(
                f"save, {kind}",
                trials,
                settings.rounds,
                compared=("durable_s", "strongroom"),
            )
        tables.append(table)
        targets += _targets(kind, table)
    return tables, targets


def save(*, place: dict[str, Any], kind: str, system: str, mib: int) -> dict[str, float]:
    """Save as one system does; return what it cost."""
    where = Place.from_json(place)
    state = decoder_state(mib * MIB)
    num_bytes = num_bytes_of(state)
    copy_s = warm_copy_s(state)
    saving = SYSTEMS[kind][system](where)
    try:
        _save(saving, decoder_state(MIB), 1, where)
        memory = PeakMemory()
        _save(saving, state, 2, where)
        change(state)
        stored_bytes = where.stored_bytes()
        pause_s, cost = _save(saving, state, 3, where)
        extra_bytes = memory.extra_bytes() - saving.staging_copies * num_bytes
        stored_bytes = where.stored_bytes() - stored_bytes
    finally:
        saving.close()
    return {
        "pause_s": pause_s,
        "copy_s": copy_s,
        "pause_copies": pause_s / copy_s,
        "durable_s": cost.wall_s,
        **cost.cpu_per_gib(num_bytes),
        "extra_mib": extra_bytes / MIB,
        "stored_mib": stored_bytes / MIB,
    }


def _save(saving: System, state: dict[str, Any], step: int, place: Place) -> tuple[float, Cost]:
    """Return the seconds that training waits, and the cost until the save is durable."""
    with Meter(place.server_pids) as meter:
        started = time.perf_counter()
        saving.begin(state, step)
        pause_s = time.perf_counter() - started
        if saving.overlapped:
            time.sleep(DEVICE_STEP_S)
            started = time.perf_counter()
            saving.before_update()
            pause_s += time.perf_counter() - started
        saving.finish()
    return pause_s, meter.cost


def _targets(kind: str, table: Table) -> list[Target]:
    ours, overlapped, naive = "strongroom", "strongroom, overlapped", "torch.save + boto3"
    copies = table.median(ours, "pause_copies"), table.median(overlapped, "pause_copies")
    targets = [
        Target(f"{kind}: pause, in warm copies (memcpy) of the state", "<=", 1.2, copies[0]),
        Target(f"{kind}: pause overlapped, in warm copies of the state", "<=", 0.15, copies[1]),
        Target(
            f"{kind}: peak extra memory beyond staging, MiB",
            "<=",
            64,
            table.median(ours, "extra_mib"),
        ),
    ]
    if kind == "gateway":
        cpu_s = table.median(ours, "client_cpu_s_per_gib")
        targets.append(Target("gateway: client CPU-s per GiB, with SHA-256", "<=", 1.5, cpu_s))
        for other, limit in ((naive, 0.7), ("DCP s3torchconnector", 0.9), ("DCP s3fs", 0.4)):
            ratio = table.ratio(ours, "durable_s", other)
            targets.append(Target(f"gateway: durable time against {other}", "<=", limit, ratio))
        for system, limit in ((ours, 1 / 40), (overlapped, 1 / 100)):
            ratio = table.ratio(system, "pause_s", naive)
            targets.append(Target(f"{system}: pause against {naive}", "<=", limit, ratio))
    return targets


if __name__ == "__main__":
    names = dict.fromkeys(name for systems in SYSTEMS.values() for name in systems)
    run("Save: what a save costs, by ours and by others.", measure, mib=1024, systems=names)
