"""Delta checkpoints: what one may borrow from another, and who must be kept for whom.

Invariant: a borrowed chunk names the file of the checkpoint that physically holds it, never one
that borrows it itself, so a delta is read from the files in its own manifest, whatever its chain.
Lender and borrower belong to the same run. Everything here is pure; this module never imports
torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from strongroom.checkpoint.entries import Chunk, FileEntry
from strongroom.checkpoint.manifest import Manifest
from strongroom.names import CheckpointId, CheckpointName


class ChunkKey(NamedTuple):
    """What two chunks have in common that may hold the same bytes: tensor, dtype, and box."""

    tensor: str
    dtype: str
    at: tuple[int, ...]
    shape: tuple[int, ...]


def delta_base(last: Manifest | None, *, full_every: int, min_share: float) -> Manifest | None:
    """Return the checkpoint the next save may borrow from; None: it is to be a full one.

    Args:
        last: the run's newest checkpoint that can be relied on, None where there is none.
        full_every: one save in so many is full, so a chain is at most `full_every` - 1 deltas long.
        min_share: least share, 0 to 1, of a delta's bytes that must have been borrowed for the next
            save to be a delta too.
    """
    if last is None or last.version == 1:  # whose digests are not those of containers
        return None
    if last.chain + 1 >= full_every:
        return None
    if last.chain > 0 and last.borrowed_share < min_share:
        return None
    return last


@dataclass(frozen=True, kw_only=True, slots=True)
class Loan:
    """What a delta on one base may borrow, as its own manifest would name it.

    Attributes:
        chunks: by what an equal one has in common with them.
        files: those the chunks lie in, by name.
    """

    chunks: Mapping[ChunkKey, Chunk] = field(default_factory=dict)
    files: Mapping[str, FileEntry] = field(default_factory=dict)


def loan_of(base: Manifest, base_id: CheckpointId) -> Loan:
    """Return what a delta on `base`, the checkpoint `base_id`, may borrow."""
    place = f"{base.name.attempt}/{base.name.step}"
    lent = {
        file.name: file
        if file.lender is not None
        else replace(file, name=f"{place}/{file.name}", lender=base_id)
        for file in base.files
    }
    chunks = {
        ChunkKey(entry.name, entry.dtype, chunk.at, chunk.shape): replace(
            chunk, file=lent[chunk.file].name
        )
        for entry in base.tensors
        for chunk in entry.chunks
    }
    return Loan(chunks=chunks, files={file.name: file for file in lent.values()})


def needed_checkpoints(
    manifests: Iterable[Manifest], kept: Iterable[CheckpointName] | None = None
) -> dict[CheckpointName, frozenset[CheckpointName]]:
    """Return the checkpoints that must be kept because others borrow from them, and these others.

    A lender is kept as a whole, so whoever it borrowed from itself is needed as well.

    Args:
        manifests: of all committed checkpoints, of any number of runs.
        kept: names of those that will be kept in any case; None means all.
    """
    by_name = {manifest.name: manifest for manifest in manifests}
    borrowers: dict[CheckpointName, set[CheckpointName]] = {}
    seen = set(by_name if kept is None else kept)
    waiting = sorted(seen)
    while waiting:
        name = waiting.pop()
        for lender in by_name[name].lenders if name in by_name else ():
            borrowers.setdefault(lender, set()).add(name)
            if lender not in seen:
                seen.add(lender)
                waiting.append(lender)
    return {lender: frozenset(borrowers[lender]) for lender in sorted(borrowers)}
