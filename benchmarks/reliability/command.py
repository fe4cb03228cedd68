"""The command line of the matrix and the soak, and the document they make."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe_machine
from benchmarks.reliability.report import markdown
from strongroom.canonical import JsonObject

FORMAT = "strongroom.reliability/1"
PACKAGES = ("strongroom", "torch", "transformers", "peft", "deepspeed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the command line says.

    Attributes:
        folder: for everything that is made; deleted in the end.
        seed: of all chance.
        is_short: try what the tests try.
        only: names of what to try; empty for all.
    """

    folder: Path
    seed: int
    is_short: bool
    only: tuple[str, ...]

    def wants(self, name: str) -> bool:
        """Return whether this is to be tried."""
        return not self.only or name in self.only


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What was found.

    Attributes:
        settings: what was tried.
        results: one object for each trial; its `faults` are empty where all came out as it must.
    """

    settings: JsonObject
    results: list[JsonObject]

    @property
    def holds(self) -> bool:
        """Whether something was tried, and all of it came out as it must."""
        return bool(self.results) and not any(result["faults"] for result in self.results)


def run_command(
    name: str, measure: Callable[[Options], Measured], *, parts: Sequence[str], seed: int
) -> None:
    """Do what the command line says, and print the tables; the exit code is 1 where one fails.

    Args:
        name: `matrix` or `soak`.
        measure: tries it all.
        parts: names of what can be tried by itself.
        seed: unless the command line names another.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.reliability.{name}")
    parser.add_argument("--short", action="store_true", help="try what the tests try")
    parser.add_argument("--only", action="append", choices=parts, help="may be repeated")
    parser.add_argument("--seed", type=int, default=seed, help=f"of all chance, {seed} by default")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write one JSON document there")
    chosen = parser.parse_args()
    logging.basicConfig(format=f"[{name}] %(message)s", stream=sys.stderr)
    logging.getLogger("benchmarks").setLevel(logging.INFO)
    machine = describe_machine(PACKAGES)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"strongroom-{name}-") as folder:
        measured = measure(
            Options(
                folder=Path(folder),
                seed=chosen.seed,
                is_short=chosen.short,
                only=tuple(chosen.only or ()),
            )
        )
    document = {
        "format": FORMAT,
        "part": name,
        "machine": machine,
        "settings": {"seed": chosen.seed, **measured.settings},
        "seconds": round(time.monotonic() - began, 1),
        "results": measured.results,
    }
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(document, indent=1), encoding="utf-8")
    print(markdown(document))
    sys.exit(0 if measured.holds else 1)
