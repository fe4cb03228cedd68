"""What one rank of a save does: borrow what it can, write the rest.

Each byte is hashed once: what could be borrowed, before anything is written; all else while it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strongroom.checkpoint.delta import ChunkKey
from strongroom.checkpoint.entries import Chunk
from strongroom.checkpoint.layout import checkpoint_folder
from strongroom.checkpoint.shard import ShardHeader
from strongroom.checkpoint.writing.pieces import Piece, digest_pieces
from strongroom.checkpoint.writing.shard_writer import ShardWriter, WrittenShards
from strongroom.names import CheckpointName
from strongroom.storage.base import Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTask:
    """What the coordinator tells each rank of the save.

    Attributes:
        lendable: chunks of the base in the place of one of this rank's, of which some may be equal.
    """

    name: CheckpointName
    save_id: str
    rank: int
    lendable: Mapping[ChunkKey, Chunk]


def write_rank(
    storage: Storage, task: RankTask, pieces: Sequence[Piece], *, threads: int
) -> WrittenShards:
    """Make every piece a chunk, borrowed or written; the shards are durable when this returns.

    Raises:
        StorageError, ConflictError: as the storage; of the shard under way nothing is left.
    """
    keys = [ChunkKey(piece.tensor, piece.dtype, piece.at, piece.box.shape) for piece in pieces]
    candidates = [number for number, key in enumerate(keys) if key in task.lendable]
    hashed = digest_pieces([pieces[number] for number in candidates], threads=threads)
    digests = dict(zip(candidates, hashed, strict=True))
    chunks = {
        number: task.lendable[keys[number]]
        for number, digest in digests.items()
        if task.lendable[keys[number]].sha256 == digest
    }
    rest = [number for number in range(len(pieces)) if number not in chunks]
    written = ShardWriter(
        storage=storage,
        folder=checkpoint_folder(task.name),
        header=ShardHeader(name=task.name, save_id=task.save_id, rank=task.rank),
        pieces=[pieces[number] for number in rest],
        digests={place: digests[number] for place, number in enumerate(rest) if number in digests},
        threads=threads,
    ).write()
    chunks |= dict(zip(rest, written.chunks, strict=True))
    return replace(written, chunks=tuple(chunks[number] for number in range(len(pieces))))
