"""A launcher of a training, as a process that a test can kill: events go to standard output.

`python -m tests.support.launcher JSON`, the JSON being the fields of a `Launch`.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from strongroom.canonical import JsonObject
from strongroom.errors import StrongroomError
from strongroom.names import RunKey
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.launching.torchrun import launch

ROOT = Path(__file__).resolve().parent.parent.parent
GONE_WITHIN_S = 60.0


class Launcher:
    """`launch` in a process of its own."""

    def __init__(self, spec: Launch) -> None:
        fields = json.dumps(dataclasses.asdict(spec) | {"run": str(spec.run)}, default=str)
        self._marks = (spec.store_url, str(spec.run))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.launcher", fields],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )

    def events(self) -> Iterator[JsonObject]:
        """Yield what the training reports, until the launcher has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the launcher, and to no other process."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until neither the launcher nor anything it started is left; return its code."""
        code = self._process.wait()
        deadline = time.monotonic() + GONE_WITHIN_S
        while left := self._left():
            assert time.monotonic() < deadline, f"processes outlived their launcher: {left}"
            time.sleep(0.02)
        return code

    def _left(self) -> list[int]:
        return [pid for pid in _pids() if all(mark in _command(pid) for mark in self._marks)]


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""  # ended in the meantime


def main() -> int:
    fields = json.loads(sys.argv[1])
    spec = Launch(
        **{
            **fields,
            "run": RunKey(fields["run"]),
            "keys": Path(fields["keys"]),
            "cache": Path(fields["cache"]),
            "settings": LaunchSettings.from_text(json.dumps(fields["settings"])),
        }
    )
    try:
        for event in launch(spec):
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()
    except StrongroomError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
