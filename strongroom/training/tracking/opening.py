"""Open the trackers that a configuration asks for.

What the caller must mend is an error when they are opened: a package that is not installed, a key
that is missing, a folder that cannot be written. Whatever the world does, then or later (a full
disk, a network that is gone), ends the one tracker with a warning and one `tracker.failed` event,
and training goes on without it. Nothing is lost but a picture: the record is the store.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from strongroom.canonical import JsonObject
from strongroom.errors import ConfigError
from strongroom.training.tracking.base import OnFailure, Tracked, Tracker
from strongroom.training.tracking.config import TrackingConfig
from strongroom.training.tracking.following import Follower, report_failure

logger = logging.getLogger(__name__)


def open_trackers(  # noqa: PLR0913 -- what a tracker can want to know
    config: TrackingConfig,
    *,
    folder: Path,
    run: str,
    attempt: int,
    step: int,
    settings: JsonObject,
    on_failure: OnFailure,
) -> Tracker:
    """Return all trackers as one; telling it neither waits nor raises, and any thread may.

    Rank 0 alone opens them, in the training process, once the attempt is claimed, and closes them
    before it ends.

    Args:
        config: which trackers.
        folder: where files go, unless the configuration says where.
        run: key of the run.
        attempt: its number.
        step: optimizer steps taken before this attempt; what was shown of later ones is replaced.
        settings: the run's configuration, as JSON.
        on_failure: is given `tracker.failed` events; never called from within `tell`.

    Raises:
        ConfigError: a tracker is asked for that cannot work as it is configured.
    """
    tracked = Tracked(
        folder=Path(config.folder).expanduser() if config.folder else folder,
        run=run,
        attempt=attempt,
        step=step,
        settings=settings,
    )
    followers: list[Follower] = []
    try:
        for name, make in _wanted(config, tracked):
            try:
                followers.append(Follower(name, make(), on_failure))
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001 -- what a library raises; training goes on
                report_failure(name, error, on_failure)
    except ConfigError:
        for follower in followers:
            follower.close()
        raise
    return _Trackers(followers=tuple(followers))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trackers:
    followers: tuple[Follower, ...]

    def tell(self, event: JsonObject) -> None:
        for follower in self.followers:
            follower.tell(event)

    def close(self) -> None:
        for follower in self.followers:
            follower.close()


def _make_folder(folder: Path) -> None:
    """Make the folder, unless the disk is full: that the trackers then find for themselves."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise ConfigError(
                "tracking.folder", [f"{folder} cannot be written: {error.strerror}"]
            ) from error


def _wanted(
    config: TrackingConfig, tracked: Tracked
) -> Iterator[tuple[str, Callable[[], Tracker]]]:
    if config.tensorboard:
        from strongroom.training.tracking.tensorboard import TensorBoard

        _make_folder(tracked.folder)
        yield "tensorboard", lambda: TensorBoard(tracked)
    if (wandb := config.wandb) is not None:
        from strongroom.training.tracking.wandb import Wandb, mode_of

        mode = mode_of(wandb, os.environ)
        if mode == "disabled":
            logger.info("tracking turned off by WANDB_MODE: tracker=wandb run=%s", tracked.run)
        else:
            _make_folder(tracked.folder)
            yield "wandb", lambda: Wandb(wandb, tracked, mode=mode)
