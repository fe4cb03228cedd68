"""One rank of a training that goes wrong as it is told to: `strongroom.training`, with faults.

What is to go wrong stands in the environment, as `Fault`s in JSON. Each happens once, on whichever
attempt comes to it first, because its happening leaves a file behind.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from strongroom.training.launching import torchrun
from strongroom.training.launching.spec import Launch

FAULTS_VARIABLE = "STRONGROOM_TEST_FAULTS"
POLL_S = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What one rank does before it takes a step.

    Attributes:
        what: `hang`: take no step any more. `kill`: die without a word. `stop`: take the signal of
            a pre-emption. `wait`: wait until the file `go` is there.
        step: the step that is not begun yet.
        mark: the file that says it has happened.
        go: for `wait`.
    """

    what: Literal["hang", "kill", "stop", "wait"]
    step: int
    mark: str
    rank: int = 1
    go: str = ""

    @property
    def has_happened(self) -> bool:
        """Whether some attempt has come to it."""
        return Path(self.mark).exists()

    def happen(self) -> None:
        """Leave the mark, and go wrong."""
        Path(self.mark).touch(exist_ok=False)
        match self.what:
            case "hang":
                time.sleep(3600)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGTERM)
            case "wait":
                while not Path(self.go).exists():
                    time.sleep(POLL_S)


def in_environment(faults: Iterable[Fault]) -> str:
    """Return what `FAULTS_VARIABLE` is set to."""
    return json.dumps([asdict(fault) for fault in faults])


def faulty_command(spec: Launch, events: Path) -> list[str]:
    """Return the command of `torchrun.launch` with these ranks in the place of good ones."""
    return [
        "tests.support.faulty_rank" if word == "strongroom.training" else word
        for word in torchrun.command(spec, events)
    ]


def outlive(_parent: int | None = None) -> None:
    """Make no pact with the parent."""


def main(arguments: list[str]) -> int:
    """Train, with faults."""
    from strongroom.training import __main__ as rank_main
    from strongroom.training.loop import Loop

    faults = [Fault(**fault) for fault in json.loads(os.environ[FAULTS_VARIABLE])]
    if any(fault.what == "wait" for fault in faults):
        vars(rank_main)["die_with_parent"] = outlive
    take_step = Loop._step

    def step(self: Loop) -> None:
        for fault in faults:
            place = (fault.rank, fault.step)
            if place == (self.world.rank, self.progress.step + 1) and not fault.has_happened:
                fault.happen()
        take_step(self)

    Loop._step = step  # type: ignore[method-assign]
    return rank_main.main(arguments)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    os._exit(code)
