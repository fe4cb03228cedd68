"""What a compared system does: saves a state, and loads it again."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class System(Protocol):
    """One way to save, as it would be used for one training; made in the process that measures.

    A save is `begin`, then `before_update`, then `finish`; the next begins after that.
    """

    @property
    def overlapped(self) -> bool:
        """Whether the copy of the state goes on after `begin` has returned."""
        ...

    @property
    def staging_copies(self) -> int:
        """How many copies of the state it holds in memory while saving, by design."""
        ...

    def begin(self, state: dict[str, Tensor], step: int) -> None:
        """Begin to save; training may go on when this returns, or it is all done by then."""
        ...

    def before_update(self) -> None:
        """Return when the tensors that were given may be changed."""
        ...

    def finish(self) -> None:
        """Return when the save is durable; raise what went wrong with it."""
        ...

    def load(self, state: dict[str, Tensor], step: int) -> None:
        """Fill `state` with what was saved."""
        ...

    def close(self) -> None:
        """Give back threads, processes and memory."""
        ...


class Blocking:
    """The part of a system whose saves are durable when `begin` returns."""

    overlapped = False
    staging_copies = 0

    def before_update(self) -> None:
        """Return at once."""

    def finish(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Nothing is kept."""
