"""Ours: `AsyncSaver` and `CheckpointReader`, as training and verification use them."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from benchmarks.places import Place
from strongroom.checkpoint.catalogue import read_checkpoint
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveOptions
from tests.support.checkpoints import checkpoint_name, ignore_commit, save_facts


class Strongroom:
    """Saves by an `AsyncSaver` of these options; see `SaveOptions`."""

    staging_copies = 1

    def __init__(
        self,
        place: Place,
        *,
        staging: Literal["copy", "overlap"] = "copy",
        writer: Literal["thread", "process"] = "thread",
        full_every: int = 1,
    ) -> None:
        self.overlapped = staging == "overlap"
        self.storage = place.storage()
        self._saver = AsyncSaver(
            self.storage,
            fence=lambda: None,
            on_commit=ignore_commit,
            options=SaveOptions(staging=staging, writer=writer, full_every=full_every),
        )

    def begin(self, state: dict[str, Tensor], step: int) -> None:
        """Copy the state, or begin to."""
        self._saver.save(state, save_facts(checkpoint_name(step)))

    def before_update(self) -> None:
        """Wait for the copy."""
        self._saver.wait_staged()

    def finish(self) -> None:
        """Wait for the commit."""
        self._saver.wait()

    def load(self, state: dict[str, Tensor], step: int) -> None:
        """Read by the manifest; every chunk is checked."""
        committed = read_checkpoint(self.storage, checkpoint_name(step))
        CheckpointReader(self.storage, committed).load_into(state)

    def close(self) -> None:
        """End the saving thread or process."""
        self._saver.close()
