"""Launch a training on this machine through torchrun, and hand on what it reports, as it happens.

Invariant: when `launch` ends, by whatever end, no process that it started is left. Asked to stop,
the training gets SIGTERM and `grace_s` seconds to commit a last checkpoint; what it reports in that
time is still handed on; then it is killed. Never imports torch.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from strongroom.canonical import JsonObject
from strongroom.parent import PARENT_VARIABLE
from strongroom.training.launching.agent import agent_command
from strongroom.training.launching.ending import Ending
from strongroom.training.launching.spec import Launch

STDERR = 2
POLL_S = 0.1
SIGNALLED = 128
"""Exit codes above it mean that the first rank that failed was ended by that signal."""
HINT = "standard error may tell; what runs out of memory is ended by signal 9 and cannot say so"
KILL_MARGIN_S = 10.0
"""torchrun itself kills workers after the grace time; it gets this much longer to do so."""

logger = logging.getLogger(__name__)


def command(spec: Launch, events: Path) -> list[str]:
    """Return the command line; the training reports to the file `events`."""
    training = ("-m", "strongroom.training", *spec.arguments(), "--events", str(events))
    return agent_command(spec.placement.world_size, *training)


def environment(spec: Launch) -> dict[str, str]:
    """Return the environment: this process's, with what the ranks need on one machine."""
    return {
        **os.environ,
        PARENT_VARIABLE: str(os.getpid()),
        **spec.environment(),
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, round(spec.grace_s))),
    }


def launch(
    spec: Launch, *, command: Callable[[Launch, Path], list[str]] = command
) -> Generator[JsonObject, None, None]:
    """Start the training and yield its events (see `reporting`) until it has ended.

    An exception that is raised in here, such as KeyboardInterrupt or Dagster's interruption, stops
    the training as described above and is raised again at the end. SIGTERM stops it too where the
    process has no handler of its own for it. Close the generator if you leave it early.

    Raises:
        PreemptedError: the training was stopped, and its newest state is committed.
        StrongroomError: what the training failed with, of the same class.
        TrainingError: it ended without a word, or did not stop in time.
    """
    with tempfile.TemporaryDirectory(prefix="strongroom-training-") as folder:
        file = Path(folder) / "events.jsonl"
        file.touch()
        with file.open(encoding="utf-8") as news, stop_signal() as is_stop_asked:
            training = _Training(spec, command(spec, file), news)
            told: list[JsonObject] = []
            try:
                for event in training.follow(is_stop_asked):
                    told.append(event)
                    yield event
            finally:
                training.end()
            training.conclude(told)


class _Training:
    """A running torchrun and what is heard of it."""

    def __init__(self, spec: Launch, command: list[str], news: TextIO) -> None:
        self._spec = spec
        self._news = news
        self._rest = ""
        self._deadline: float | None = None
        self._killed = False
        # A session of its own: a terminal's Ctrl-C reaches this process alone, which then stops
        # the training in good order.
        self._process = subprocess.Popen(  # noqa: S603 -- our own command
            command,
            env=environment(spec),
            stdin=subprocess.DEVNULL,
            stdout=STDERR,  # standard output is for results, of whoever launches
            start_new_session=True,
        )
        logger.info(
            "training launched: run=%s world_size=%d pid=%d",
            spec.run,
            spec.placement.world_size,
            self._process.pid,
        )

    def follow(self, is_stop_asked: Callable[[], bool]) -> Iterator[JsonObject]:
        """Yield events until the process has ended; raise again what interrupted this."""
        interruption: BaseException | None = None
        has_ended = False
        while not has_ended:
            events: list[JsonObject] = []
            try:
                # Asked before reading: what was said before the end is not missed.
                has_ended = self._process.poll() is not None
                events = self._read()
                if not events and not has_ended:
                    time.sleep(POLL_S)
                if is_stop_asked():
                    self._stop()
                self._kill_if_late()
            except BaseException as error:
                if interruption is not None:
                    self._deadline = time.monotonic()  # asked twice: no more grace
                    raise
                interruption = error
                self._stop()
            yield from events
        if interruption is not None:
            raise interruption

    def end(self) -> None:
        """Return when no process is left; one that was not asked to stop yet is asked now."""
        self._stop()
        while self._process.poll() is None:
            time.sleep(POLL_S)
            self._kill_if_late()

    def conclude(self, told: list[JsonObject]) -> None:
        """Raise what the training ended with, if it did not finish."""
        code = self._process.returncode
        # Of torchrun itself the code is negative.
        signalled = -code if code < 0 else max(code - SIGNALLED, 0)
        cause = (
            f"a rank ended by signal {signalled}" if signalled else f"torchrun ended with {code}"
        )
        ending = Ending(
            who=f"run {self._spec.run}",
            told=told,
            end=cause,
            hint=lambda: HINT,
            grace_s=self._spec.grace_s,
            was_asked=self._deadline is not None,
            was_killed=self._killed,
            lost_a_rank=signalled > 0,
        )
        ending.check()

    def _read(self) -> list[JsonObject]:
        *lines, self._rest = (self._rest + self._news.read()).split("\n")
        return [json.loads(line) for line in lines]

    def _stop(self) -> None:
        if self._deadline is None and self._process.poll() is None:
            logger.info("stopping training: run=%s grace_s=%g", self._spec.run, self._spec.grace_s)
            self._deadline = time.monotonic() + self._spec.grace_s + KILL_MARGIN_S
            self._process.send_signal(signal.SIGTERM)

    def _kill_if_late(self) -> None:
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        if self._process.poll() is None:
            logger.error("training did not stop and is killed: run=%s", self._spec.run)
            self._killed = True
            # Its workers, in sessions of their own, die with it (`parent`).
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def stop_signal() -> Iterator[Callable[[], bool]]:
    """Take SIGTERM as a wish to stop, where nobody else handles it; yield whether it came."""
    asked = threading.Event()
    is_free = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not is_free:
        yield asked.is_set
        return
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
