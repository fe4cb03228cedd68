"""Writes the shards of one rank, part by part, by several threads; each byte is hashed once.

A container's SHA-256 is taken from the memory that is handed to the storage, so no second read is
needed, and what the storage does to the bytes shows. Where a container is a part by itself, its
digest goes along, and storage that must sign what it sends hashes nothing again. Either a shard
becomes durable whole, or nothing of it is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from strongroom.checkpoint.entries import Chunk, FileEntry
from strongroom.checkpoint.parallel import run_parallel
from strongroom.checkpoint.shard import ShardHeader, shard_name
from strongroom.checkpoint.writing import shard_plan
from strongroom.checkpoint.writing.pieces import Piece, digest_of
from strongroom.checkpoint.writing.shard_plan import PlannedPart, PlannedShard, plan_shards
from strongroom.names import Digest
from strongroom.storage.base import Part, PartWriter, Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenShards:
    """What a rank has written: its files, and a chunk for each piece, in their order."""

    files: tuple[FileEntry, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardWriter:
    """Writes the shards of one rank.

    Attributes:
        folder: the checkpoint's, in `storage`.
        header: what every shard begins with.
        pieces: may be none; the rank then has one shard, of the header alone.
        digests: those of containers that were hashed before, by the piece's place among `pieces`.
        threads: how many hash and write at the same time.
    """

    storage: Storage
    folder: str
    header: ShardHeader
    pieces: Sequence[Piece]
    digests: Mapping[int, Digest] = field(default_factory=dict)
    threads: int

    def write(self) -> WrittenShards:
        """Write all pieces; they are durable when this returns.

        Raises:
            StorageError, ConflictError: as the storage; of the shard under way nothing is left.
        """
        shards = plan_shards(
            [piece.num_bytes for piece in self.pieces],
            header_bytes=len(self.header.to_bytes()),
            part_bytes=max(self.storage.part_min_bytes, shard_plan.PART_BYTES),
            shard_bytes=shard_plan.SHARD_BYTES,
        )
        files: list[FileEntry] = []
        chunks: dict[int, Chunk] = {}
        for index, shard in enumerate(shards):
            name = shard_name(self.header.rank, index)
            chunks |= self._write_shard(name, shard)
            files.append(FileEntry(name=name, num_bytes=shard.num_bytes, sha256=None))
        return WrittenShards(
            files=tuple(files), chunks=tuple(chunks[number] for number in range(len(chunks)))
        )

    def _write_shard(self, name: str, shard: PlannedShard) -> dict[int, Chunk]:
        key = f"{self.folder}/{name}"
        with self.storage.create_parts(key, num_bytes=shard.num_bytes) as writer:
            tasks = (partial(self._write_part, writer, name, part) for part in shard.parts)
            written = run_parallel(tasks, threads=self.threads)
        return {number: chunk for chunks in written for number, chunk in chunks.items()}

    def _write_part(self, writer: PartWriter, file: str, part: PlannedPart) -> dict[int, Chunk]:
        """Hash and store one part; return its chunks by the place of their pieces."""
        has_header = part.number == 1
        buffers = [memoryview(self.header.to_bytes())] if has_header else []
        chunks: dict[int, Chunk] = {}
        for number, offset in part.places:
            piece = self.pieces[number]
            container = piece.buffers()
            buffers += container
            chunks[number] = Chunk(
                at=piece.at,
                shape=piece.box.shape,
                file=file,
                offset=offset,
                num_bytes=piece.num_bytes,
                sha256=self.digests.get(number) or digest_of(container),
                data_offset=len(piece.frame.header),
            )
        digests = [chunk.sha256 for chunk in chunks.values()]
        writer.put(
            Part(
                number=part.number,
                offset=part.offset,
                buffers=tuple(buffers),
                sha256=digests[0] if len(digests) == 1 and not has_header else None,
            )
        )
        return chunks
