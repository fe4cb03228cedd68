"""What a load costs, and what checking every byte adds to it.

`python -m benchmarks.load`. What is loaded was written before the rounds. The gateway's OSD has it
in memory; of the disk it is read twice, from the page cache and, `cold`, after the page cache has
forgotten it. Each trial is a process that loads once to warm up and once to be measured, into
tensors that exist; that they then hold what was saved is checked outside of what is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

from benchmarks.command import Measured, Settings, run
from benchmarks.measure import Meter, PeakMemory
from benchmarks.places import Place, open_place
from benchmarks.rounds import Table, Target, Trial, run_rounds
from benchmarks.states import GIB, MIB, decoder_state, num_bytes_of
from benchmarks.systems import SYSTEMS, System
from benchmarks.systems.dcp import Backend, DcpBlocking, disk
from benchmarks.systems.unchecked import StrongroomUnchecked
from benchmarks.trial import run_trial
from strongroom.checkpoint.layout import checkpoint_folder
from tests.support.checkpoints import checkpoint_name

STEP = 1
OURS, UNCHECKED = "strongroom", "strongroom, unchecked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A system to load by, and the one of `SYSTEMS` that writes what it loads."""

    written_by: str
    make: Callable[[Place], System]


def _stock_of_ours(place: Place) -> System:
    """Return stock DCP, made to read the checkpoint that ours has written."""

    def reader(step: int) -> FileSystemReader:
        return FileSystemReader(Path(place.folder) / checkpoint_folder(checkpoint_name(step)))

    return DcpBlocking(Backend(writer=disk(place).writer, reader=reader))


def _same(kind: str, system: str, written_by: str = "") -> Reading:
    return Reading(written_by=written_by or system, make=SYSTEMS[kind][system])


_OURS_UNCHECKED = Reading(written_by=OURS, make=StrongroomUnchecked)
READINGS: dict[str, dict[str, Reading]] = {
    "gateway": {
        OURS: _same("gateway", OURS),
        UNCHECKED: _OURS_UNCHECKED,
        "torch.save + boto3": _same("gateway", "torch.save + boto3"),
        "DCP s3fs": _same("gateway", "DCP s3fs"),
        "DCP s3torchconnector": _same("gateway", "DCP s3torchconnector", "DCP s3fs"),
    },
    "disk": {
        OURS: _same("disk", OURS),
        UNCHECKED: _OURS_UNCHECKED,
        "torch.save": _same("disk", "torch.save"),
        "DCP disk": _same("disk", "DCP disk"),
        "DCP disk, ours read": Reading(written_by=OURS, make=_stock_of_ours),
    },
}
"""What is loaded by what, by the kind of place."""


def measure(settings: Settings) -> Measured:
    """Return a table for each place, and the targets."""
    tables, targets = [], []
    for kind in settings.places:
        readings = {name: it for name, it in READINGS[kind].items() if settings.wants(name)}
        with open_place(kind, settings.folder) as opened:
            what = {"place": opened.place.to_json(), "kind": kind, "mib": settings.mib}
            for system in dict.fromkeys(reading.written_by for reading in readings.values()):
                run_trial("benchmarks.load:write", {**what, "system": system})
            for cold in (False, True) if kind == "disk" else (False,):
                trials = [
                    Trial(
                        system=name,
                        work="benchmarks.load:load",
                        arguments={**what, "system": name, "cold": cold},
                    )
                    for name in readings
                ]
                title = f"load, {kind}" + (", cold" if cold else "")
                compared = ("seconds", OURS)
                tables.append(run_rounds(title, trials, settings.rounds, compared=compared))
                targets += _targets(kind, tables[-1])
    return tables, targets


def write(*, place: dict[str, Any], kind: str, system: str, mib: int) -> dict[str, float]:
    """Save what is to be loaded."""
    saving = SYSTEMS[kind][system](Place.from_json(place))
    saving.begin(decoder_state(mib * MIB), STEP)
    saving.before_update()
    saving.finish()
    saving.close()
    return {}


def load(
    *, place: dict[str, Any], kind: str, system: str, mib: int, cold: bool
) -> dict[str, float]:
    """Load as one system does; return what it cost.

    Args:
        place: where from.
        kind: of the place.
        system: one of `READINGS`.
        mib: size of the state.
        cold: have the page cache forget what is stored, before the load that is measured.

    Raises:
        RuntimeError: what was loaded is not what was saved.
    """
    where = Place.from_json(place)
    loading = READINGS[kind][system].make(where)
    state = decoder_state(mib * MIB, seed=1)
    loading.load(state, STEP)
    for tensor in state.values():
        tensor.zero_()
    if cold:
        where.forget()
    memory = PeakMemory()
    with Meter(where.server_pids) as meter:
        loading.load(state, STEP)
    extra_bytes = memory.extra_bytes()
    saved = decoder_state(mib * MIB)
    if not all(torch.equal(saved[name], tensor) for name, tensor in state.items()):
        raise RuntimeError(f"{system} loaded something else than was saved")
    loading.close()
    return {
        "seconds": meter.cost.wall_s,
        "gib_per_s": num_bytes_of(state) / GIB / meter.cost.wall_s,
        **meter.cost.cpu_per_gib(num_bytes_of(state)),
        "extra_mib": extra_bytes / MIB,
    }


def _targets(kind: str, table: Table) -> list[Target]:
    checking = table.ratio(OURS, "seconds", UNCHECKED)
    targets = [Target(f"{table.title}: with checking against without", "<=", 1.15, checking)]
    for stock in ("DCP disk", "DCP s3fs", "DCP s3torchconnector"):
        if stock in READINGS[kind]:
            ratio = table.ratio(OURS, "seconds", stock)
            targets.append(
                Target(f"{table.title}: checked against {stock}, unchecked", "<=", 1.0, ratio)
            )
    return targets


if __name__ == "__main__":
    names = dict.fromkeys(name for readings in READINGS.values() for name in readings)
    run("Load: what a load costs, by ours and by others.", measure, mib=1024, systems=names)
