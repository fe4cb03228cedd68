"""The launcher of a training, as a process that can be killed, whose ranks note where they stand.

`python -m benchmarks.reliability.launcher FOLDER SLOW_S STEP_S ARGUMENTS`, the last being those of
`Launch.arguments`. It does what `strongroom train` does once a run is prepared: it supervises
attempts that torchrun starts. Events go to `events.jsonl` in `FOLDER`, which belongs to this launch
alone. What a killed launcher had not read yet of its ranks' events lies in the folder still.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchmarks.trial import ROOT
from strongroom.canonical import JsonObject
from strongroom.checkpoint.run_record import read_run
from strongroom.errors import StrongroomError
from strongroom.names import RunKey
from strongroom.storage.store import open_store
from strongroom.training.launching import torchrun
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.launching.supervise import supervise

EVENTS = "events.jsonl"
TRAINING = "strongroom.training"
GONE_WITHIN_S = 120.0


class Launcher:
    """A launch in a process of its own.

    Args:
        spec: what is launched.
        folder: of this launch alone; it is made here.
        slow_s: how long a rank waits in the middle of what it writes or copies.
        step_s: how long it waits for the rows of a step.
    """

    def __init__(self, spec: Launch, folder: Path, *, slow_s: float, step_s: float) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._marks = (spec.store_url, str(spec.run))
        command = [sys.executable, "-m", "benchmarks.reliability.launcher"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, str(folder), str(slow_s), str(step_s), *spec.arguments()],
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> int:
        """Wait until neither the launcher nor anything it started is left; return its code.

        Raises:
            RuntimeError: something outlived it.
        """
        code = self.process.wait()
        deadline_s = time.monotonic() + GONE_WITHIN_S
        while left := self._left():
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"processes outlived their launcher: {left}")
            time.sleep(0.01)
        return code

    def end(self) -> None:
        """Kill it, and whatever it started with it."""
        self.process.kill()
        self.wait()

    def events(self) -> list[JsonObject]:
        """Return all that was reported: what the launcher read, and what it did not come to."""
        found = list(_lines(self.folder / EVENTS))
        for file in self.folder.glob("strongroom-training-*/events.jsonl"):
            found += [event for event in _lines(file) if event not in found]
        return found

    def log(self) -> str:
        """Return what the launcher and its ranks said."""
        return (self.folder / "log").read_text(errors="replace")

    def _left(self) -> list[int]:
        return [pid for pid in _pids() if all(mark in _command(pid) for mark in self._marks)]


def _lines(file: Path) -> Iterator[JsonObject]:
    """Yield the events of a file; one that was cut off by the kill is none."""
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _command(pid: int) -> str:
    with suppress(OSError):  # it ended in the meantime
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def marked_command(folder: Path, slow_s: str, step_s: str) -> Callable[[Launch, Path], list[str]]:
    """Return what makes torchrun's command line, with `marked_rank` in the training's place."""

    def command(spec: Launch, events: Path) -> list[str]:
        plain = torchrun.command(spec, events)
        place = plain.index(TRAINING)
        rank = ["benchmarks.reliability.marked_rank", str(folder), slow_s, step_s]
        return [*plain[:place], *rank, *plain[place + 1 :]]

    return command


def main(arguments: list[str]) -> int:
    """Launch, and return the exit code."""
    folder, slow_s, step_s, *of_training = arguments
    parser = argparse.ArgumentParser()
    for name in ("--store", "--run-key", "--keys", "--cache", "--settings"):
        parser.add_argument(name, required=True)
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args(of_training)
    run = RunKey.parse(given.run_key)
    spec = Launch(
        store_url=given.store,
        run=run,
        keys=Path(given.keys),
        cache=Path(given.cache),
        settings=LaunchSettings.from_text(given.settings),
        quiet=given.quiet,
    )
    start = partial(torchrun.launch, command=marked_command(Path(folder), slow_s, step_s))
    record = read_run(open_store(given.store).storage, run)
    with (Path(folder) / EVENTS).open("a", encoding="utf-8") as out:
        try:
            for event in supervise(spec, record, start):
                out.write(json.dumps(event) + "\n")
                out.flush()
        except StrongroomError as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            return error.exit_code
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for whoever kills
    sys.exit(main(sys.argv[1:]))
