"""TensorBoard files: one folder for each run, one file for each attempt and each roll-back.

A later file says from which step on it replaces the earlier ones, so that a step that was taken
again is shown once, as it was taken last.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from strongroom.canonical import JsonObject
from strongroom.errors import ConfigError
from strongroom.training.reporting import ReportKind
from strongroom.training.tracking.base import Tracked
from strongroom.training.tracking.series import note_of, points_of, step_of

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FLUSH_S = 5
"""How often files are written: the most that a `kill -9` can take from them."""


class TensorBoard:
    """Writes `<folder>/<run>/events.out.tfevents.*.attempt-0001`.

    Raises:
        ConfigError: tensorboard is not installed.
    """

    def __init__(self, tracked: Tracked) -> None:
        self._folder = tracked.folder / tracked.run
        self._suffix = f".attempt-{tracked.attempt:04d}"
        self._step = tracked.step
        self._told: dict[str, tuple[int, str]] = {}
        self._writer = self._opened()
        settings = json.dumps(tracked.settings, indent=2, ensure_ascii=False)
        self._writer.add_text("run/settings", f"```json\n{settings}\n```", self._step)

    def _opened(self) -> SummaryWriter:
        """Open a file that replaces what is shown of the steps after this one."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "tracking.tensorboard",
                ["needs tensorboard, which is not installed: pip install 'strongroom[tracking]'"],
            ) from error
        return SummaryWriter(
            str(self._folder),
            purge_step=self._step + 1,
            flush_secs=FLUSH_S,
            filename_suffix=self._suffix,
        )

    def tell(self, event: JsonObject) -> None:
        """Write one event's points, or its note."""
        kind, step = event["kind"], step_of(event)
        self._step = self._step if step is None else step
        if kind == ReportKind.ROLLED_BACK:
            self._writer.close()
            self._writer = self._opened()
        for series, value in points_of(event).items():
            self._writer.add_scalar(series, value, self._step)
        if (note := note_of(event)) is not None:
            # It shows one text of a kind and step, the last.
            step_told, told = self._told.get(kind, (None, ""))
            text = f"{told}\n\n{note}" if step_told == self._step else note
            self._told[kind] = self._step, text
            self._writer.add_text(f"events/{kind}", text, self._step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
