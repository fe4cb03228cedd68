"""Weights & Biases: a run there for a run here, resumed by every attempt.

Its own process, wandb-core, writes the files and speaks to the server; it ends with this one.
Nothing but the points and notes of events, the run's settings and the versions of Python and wandb
is handed to it: no console, code, git state, command line, host, packages or system metrics, and no
report of its crashes. Offline, nothing opens a connection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Literal

from strongroom.canonical import JsonObject
from strongroom.errors import ConfigError, PreemptedError, TrainingError
from strongroom.training.reporting import ReportKind
from strongroom.training.tracking.base import Tracked
from strongroom.training.tracking.config import WandbConfig
from strongroom.training.tracking.series import note_of, points_of, step_of

if TYPE_CHECKING:
    import wandb

Mode = Literal["offline", "online", "disabled"]
MODES: tuple[Mode, ...] = ("offline", "online", "disabled")

INIT_S = 30.0
"""How long the start of a training waits for the server."""
UPLOAD_S = 20.0
"""How long its end waits for what is not uploaded yet; it stays in the file."""
FLUSH_S = 5.0
"""How often wandb-core writes: the most that a `kill -9` can take from the file."""
WRITTEN_S = 60.0
"""What it has not written after so long, it cannot write."""
PROBE_BYTES = 65536
"""A disk that has no room for so much is full."""


def mode_of(config: WandbConfig, environment: Mapping[str, str]) -> Mode:
    """Return what WANDB_MODE says, else what the configuration says.

    Raises:
        ConfigError: WANDB_MODE is something else, or there is no key to go online with.
    """
    mode = environment.get("WANDB_MODE", config.mode)
    if mode not in MODES:
        raise ConfigError(
            "WANDB_MODE", [f"must be one of {', '.join(MODES)}, or not be set; got {mode!r}"]
        )
    if mode == "online" and not environment.get("WANDB_API_KEY"):
        raise ConfigError(
            "tracking.wandb",
            ["mode online needs a key in WANDB_API_KEY, which is not set; or take mode offline"],
        )
    return mode


class Wandb:
    """Hands what is measured to wandb-core.

    Raises:
        ConfigError: wandb is not installed, or does not take the configuration or the key.
    """

    def __init__(self, config: WandbConfig, tracked: Tracked, *, mode: Mode) -> None:
        # Where it could not write, wandb would take the system's temporary folder instead.
        (tracked.folder / "wandb").mkdir(parents=True, exist_ok=True)
        _keep_to_itself(tracked.folder)
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "tracking.wandb",
                ["needs wandb, which is not installed: pip install 'strongroom[tracking]'"],
            ) from error
        self._library = wandb
        self._attempt = tracked.attempt
        self._step = tracked.step
        self._exit_code = TrainingError.exit_code  # until the training says that it ended well
        try:
            self._run = self._begun(config, tracked, mode)
        except Exception as error:
            wandb.teardown()
            misconfigured = wandb.errors.UsageError, wandb.errors.AuthenticationError, ValueError
            if isinstance(error, misconfigured):
                raise ConfigError("tracking.wandb", [str(error)]) from error
            raise
        self._run.define_metric("*", step_metric="step")
        self._file = _FileWatch(Path(self._run.settings.sync_file))

    def _begun(self, config: WandbConfig, tracked: Tracked, mode: Mode) -> wandb.Run:
        library = self._library
        run: wandb.Run = library.init(
            project=config.project,
            entity=config.entity,
            group=config.group,
            id=tracked.run,
            name=tracked.run,
            resume="allow",
            mode="online" if mode == "online" else "offline",
            dir=tracked.folder,
            config=tracked.settings,
            allow_val_change=True,  # another attempt may be placed otherwise
            settings=library.Settings(
                console="off",
                program="strongroom.training",  # not the path of this command
                save_code=False,
                disable_code=True,
                disable_git=True,
                x_save_requirements=False,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_disable_stats=True,
                x_transaction_log_flush_interval=FLUSH_S,
                silent=True,
                init_timeout=INIT_S,
                finish_timeout=UPLOAD_S,
                finish_timeout_raises=True,
            ),
        )
        return run

    def tell(self, event: JsonObject) -> None:
        """Log one event's points, or its note, over the training's own step.

        Raises:
            OSError: wandb-core is gone, or writes nothing any more.
        """
        kind, step = event["kind"], step_of(event)
        self._step = self._step if step is None else step
        row: dict[str, float | str] = {**points_of(event)}
        if (note := note_of(event)) is not None:
            row[f"events/{kind}"] = note
        self._file.check()
        self._run.log({**row, "step": self._step, "attempt": self._attempt})
        self._file.expect()
        if kind == ReportKind.FINISHED:
            self._exit_code = 0
        elif kind == ReportKind.STOPPED:
            self._exit_code = PreemptedError.exit_code
            self._run.mark_preempting()

    def close(self) -> None:
        """Finish the run there, and end wandb-core.

        Raises:
            TimeoutError: not all could be uploaded; it is in the file.
            OSError: not all could be written.
        """
        with self._file.ending():
            try:
                self._run.finish(exit_code=self._exit_code)
            finally:
                self._library.teardown()


def _keep_to_itself(folder: Path) -> None:
    """Set what wandb and wandb-core read from the environment alone."""
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # it looks its host up even offline
    os.environ.pop("WANDB_SERVICE", None)  # a core of somebody else's would not end with us
    os.environ.setdefault("WANDB_CACHE_DIR", str(folder / "wandb" / "cache"))


class _FileWatch:
    """Whether the file of a run grows while it should: wandb-core says nothing of a full disk."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._size = self._size_now()
        self._expected_since: float | None = None

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Raise OSError if what is handed over last, in this context, is not written."""
        self._size = self._size_now()
        yield
        self.check_now()
        # What was written could be less than all: the disk may have become full just now.
        with TemporaryFile(dir=self._file.parent) as file:
            file.write(bytes(PROBE_BYTES))

    def expect(self) -> None:
        """Something was handed over, and is to be written."""
        if self._expected_since is None:
            self._expected_since = time.monotonic()

    def check(self) -> None:
        """Raise OSError if something should have been written by now, and was not."""
        since = self._expected_since
        if since is not None and time.monotonic() - since > WRITTEN_S:
            self.check_now()

    def check_now(self) -> None:
        """Raise OSError if nothing was written since the last check."""
        size = self._size_now()
        if size <= self._size:
            raise OSError(
                f"{self._file}: expected more than {self._size} bytes, got {size}; "
                "is the disk full? wandb-core's log beside it may tell"
            )
        self._size = size
        self._expected_since = None

    def _size_now(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0
