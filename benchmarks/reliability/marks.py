"""Where each rank of a training stands, noted by itself just before it goes there.

A rank that is killed cannot say in the middle of what; its last note can. Each rank process appends
to a file of its own, unbuffered, so that what it noted last outlives it. Never imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

Phase = Literal[
    "starting",
    "restoring",
    "training",
    "staging",
    "agreeing",
    "shards",
    "index",
    "manifest",
    "ledger",
]
PHASES: dict[Phase, str] = {
    "starting": "before the first step: claims, inputs, model",
    "restoring": "reading the checkpoint to go on from",
    "training": "in a step",
    "staging": "copying the state",
    "agreeing": "ranks tell each other what to write, or that it is written",
    "shards": "writing a shard",
    "index": "writing `.metadata`",
    "manifest": "writing the seal or the manifest",
    "ledger": "after the manifest, entering it into the ledger",
}
"""In the order in which a launch comes to them. From `staging` on they belong to a save."""
SAVING: tuple[Phase, ...] = ("staging", "agreeing", "shards", "index", "manifest", "ledger")
_NOTHING = "-"


class Marks:
    """Writes the notes of this process.

    Args:
        folder: of one launch; it exists.
        rank: of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        name = f"rank-{rank}-{os.getpid()}-{os.getppid()}"
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def at(self, phase: Phase) -> None:
        """Note what comes next; a phase of a save beside what training does meanwhile."""
        self._write("s" if phase in SAVING else "t", phase)

    def saved(self) -> None:
        """Note that no save is under way."""
        self._write("s", _NOTHING)

    def _write(self, thread: str, phase: str) -> None:
        os.write(self._file, f"{thread} {phase}\n".encode())


@dataclass(frozen=True, kw_only=True, slots=True)
class Notes:
    """What one rank process noted.

    Attributes:
        agent: the process that started it: torchrun's agent.
        phases: all it noted, in order.
        saving: what its save was in the middle of; None where no save was under way.
        training: what else it did.
    """

    rank: int
    pid: int
    agent: int
    phases: tuple[str, ...] = field(repr=False)
    saving: Phase | None
    training: Phase

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what `Marks` wrote, whether or not its process lives."""
        _, rank, pid, agent = file.name.split("-")
        lines = [line.split() for line in file.read_text(encoding="ascii").splitlines()]
        last: dict[str, str] = {"t": "starting", "s": _NOTHING}
        last |= dict(lines)
        by_name: dict[str, Phase] = {phase: phase for phase in PHASES}
        return cls(
            rank=int(rank),
            pid=int(pid),
            agent=int(agent),
            phases=tuple(phase for _, phase in lines),
            saving=by_name.get(last["s"]),
            training=by_name[last["t"]],
        )


def read_notes(folder: Path) -> list[Notes]:
    """Return the notes of all rank processes of a launch, by rank."""
    return sorted((Notes.read(file) for file in folder.glob("rank-*")), key=lambda n: n.rank)


def furthest(notes: Sequence[Notes]) -> Phase:
    """Return the phase that any rank had come to: of a save, if one was under way on any."""
    if not notes:
        return "starting"
    found = [note.saving or note.training for note in notes]
    return max(found, key=list(PHASES).index)
