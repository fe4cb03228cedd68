"""Servers that tests start: on 127.0.0.1, in processes that never outlive the tests."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LIBC = ctypes.CDLL(None)


def start(
    command: Sequence[str | Path],
    *,
    log: Path,
    cwd: Path | None = None,
    ended_by: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a server whose output goes to `log`; Linux ends it when this process is killed.

    It also ends with the thread that started it: start it from one that stays.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(LIBC.prctl, PR_SET_PDEATHSIG, ended_by),  # noqa: PLW1509 -- it calls prctl alone
        )


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_it_answers(
    url: str, process: subprocess.Popen[bytes], *, log: Path, timeout_s: float
) -> None:
    """Wait until an HTTP GET of `url` is answered with 200.

    Raises:
        RuntimeError: the process ended, or did not answer in time; gives its log.
    """
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=timeout_s):  # noqa: S310 -- our own http server
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} did not answer at {url}:\n{tail(log)}")


def tail(log: Path, *, num_chars: int = 4000) -> str:
    """Return the end of a log, whatever its bytes are."""
    return log.read_text(errors="replace")[-num_chars:]
