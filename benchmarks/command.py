"""The command line that every benchmark has, and the document it makes."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.machine import describe_machine
from benchmarks.report import markdown
from benchmarks.rounds import Table, Target
from tests.support.ceph import COMMANDS

FORMAT = "strongroom.benchmark/1"
FOLDER = Path(".strongroom/bench")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What is measured, how often and where.

    Attributes:
        mib: size of the state.
        rounds: how often each system is measured; medians are reported.
        places: kinds of places to store at.
        systems: names of the systems to measure; none means all.
        folder: everything stored goes into a new folder in it, and is deleted in the end.
    """

    mib: int
    rounds: int
    places: tuple[str, ...]
    systems: tuple[str, ...]
    folder: Path

    def wants(self, system: str) -> bool:
        """Return whether this system is to be measured."""
        return not self.systems or system in self.systems


Measured = tuple[list[Table], list[Target]]


def run(
    description: str,
    measure: Callable[[Settings], Measured],
    *,
    mib: int,
    places: Collection[str] = ("gateway", "disk"),
    systems: Collection[str] = (),
) -> None:
    """Measure as the command line says, and print a table or, with `--json`, the document.

    Args:
        description: for `--help`; its first word in lower case is the benchmark's name.
        measure: does it all.
        mib: size of the state unless the command line names another.
        places: kinds of places that can be chosen from, all unless the command line names some.
        systems: as `places`.
    """
    name = description.partition(":")[0].lower()
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--mib", type=int, default=mib, help=f"size of the state, {mib} by default")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, 5 by default")
    for option, choices in (("--place", places), ("--system", systems)):
        if choices:
            parser.add_argument(
                option,
                action="append",
                choices=choices,
                metavar="NAME",
                help=f"measure this alone; may be repeated; one of: {'; '.join(choices)}",
            )
    parser.set_defaults(place=None, system=None)
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"for what is stored: {FOLDER}")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args()
    if "gateway" in (chosen.place or places) and not all(map(shutil.which, COMMANDS)):
        parser.error("a Ceph gateway is needed: `make system-deps` installs it; or --place disk")
    logging.basicConfig(format="[bench] %(message)s", stream=sys.stderr)
    logging.getLogger("benchmarks").setLevel(logging.INFO)
    settings = Settings(
        mib=chosen.mib,
        rounds=chosen.rounds,
        places=tuple(chosen.place or places),
        systems=tuple(chosen.system or ()),
        folder=chosen.folder.absolute(),
    )
    settings.folder.mkdir(parents=True, exist_ok=True)
    machine = describe_machine()
    started = time.monotonic()
    tables, targets = measure(settings)
    document = {
        "format": FORMAT,
        "benchmark": name,
        "machine": machine,
        "settings": {"mib": settings.mib, "rounds": settings.rounds},
        "seconds": round(time.monotonic() - started, 1),
        "tables": [asdict(table) for table in tables],
        "targets": [{**asdict(target), "reached": target.reached} for target in targets],
    }
    print(json.dumps(document, indent=1) if chosen.json else markdown(document))
