"""Copies a checkpoint out of its store, into a folder that needs nothing else: format `dcp`.

A full checkpoint is copied byte for byte and keeps its id. A delta becomes full: what it borrows is
copied into shards of its own, so it has another id and the same state digest. Stock readers of
`torch.distributed.checkpoint` load either. Every byte is checked against the manifest before it is
stored, and the copy's own manifest comes last: before it there is no copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.entries import Chunk, FileEntry, TensorEntry
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE, Manifest, seal_bytes
from strongroom.checkpoint.parallel import run_parallel
from strongroom.checkpoint.reading.files import CheckpointFiles
from strongroom.checkpoint.reading.spans import RANGE_BYTES, Span, spans_of
from strongroom.checkpoint.shard import METADATA_FILE, SHARD_NAME, ShardHeader, shard_name
from strongroom.checkpoint.writing.shard_plan import PART_BYTES
from strongroom.checkpoint.writing.stock_index import stock_index
from strongroom.errors import ConflictError, IntegrityError
from strongroom.names import Digest
from strongroom.storage.base import Part, PartWriter, Storage


def export_dcp(
    storage: Storage, committed: Committed, target: Storage, *, threads: int = 4
) -> Manifest:
    """Copy a checkpoint to the root of `target`, and return the manifest of the copy.

    Raises:
        ConflictError: something stands there already; it was left as it was.
        IntegrityError: a byte is not the one in the manifest; the copy has no manifest then.
        StorageError: as the storages.
    """
    _check_empty(target)
    manifest = committed.manifest
    files = CheckpointFiles(storage, committed)
    files.check((file.name for file in manifest.files), threads=threads)
    if manifest.version == 1 or not manifest.lenders:
        copy = manifest
        for file in manifest.files:
            if file.sha256 is not None:
                _copy_whole(storage, manifest.key_of(file.name), target, file)
        names = {file.name: file.name for file in manifest.files if file.sha256 is None}
        _copy_shards(storage, manifest, names, target, threads=threads)
    else:
        copy = _copy_delta(storage, manifest, target, threads=threads)
    target.create(SEAL_FILE, seal_bytes(copy.checkpoint_id))
    target.create(MANIFEST_FILE, copy.to_bytes())
    return copy


def _check_empty(target: Storage) -> None:
    found = next(iter(target.walk("")), None)
    if found is not None:
        raise ConflictError(
            f"{target.url}: expected an empty folder to export into, got one that holds "
            f"{found.key}; choose another"
        )


def _copy_whole(storage: Storage, key: str, target: Storage, file: FileEntry) -> None:
    """Copy a file whose digest is that of all its bytes."""
    digest = hashlib.sha256()
    with target.create_stream(file.name) as stream:
        for start in range(0, file.num_bytes, RANGE_BYTES):
            num_bytes = min(RANGE_BYTES, file.num_bytes - start)
            data = storage.read(key, offset=start, num_bytes=num_bytes)
            digest.update(data)
            stream.write(data)
        if digest.hexdigest() != str(file.sha256).removeprefix("sha256:"):
            raise IntegrityError(
                "a file was changed after it was written",
                file=key,
                expected=str(file.sha256),
                got=str(Digest(digest.hexdigest())),
            )


def _copy_delta(storage: Storage, manifest: Manifest, target: Storage, *, threads: int) -> Manifest:
    """Copy all shards a delta needs, under names of its own; return its manifest as a full one."""
    names = dict(_own_names(manifest))
    moved = _copy_shards(storage, manifest, names, target, threads=threads)
    tensors = tuple(
        replace(tensor, chunks=_in_order(moved[chunk] for chunk in tensor.chunks))
        for tensor in manifest.tensors
    )
    index = stock_index(manifest.name, tensors, save_id=manifest.save_id)
    target.create(METADATA_FILE, index)
    shards = [
        FileEntry(name=info.key, num_bytes=info.num_bytes, sha256=None)
        for info in target.walk("")
        if info.key != METADATA_FILE
    ]
    files = [
        FileEntry(name=METADATA_FILE, num_bytes=len(index), sha256=Digest.of(index)),
        *shards,
    ]
    return replace(manifest, files=tuple(files), tensors=tensors, chain=0)


def _own_names(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield each shard with a name in the copy: its own, or the next free one of its rank."""
    used = [0] * manifest.world_size
    for file in sorted(manifest.files, key=lambda file: (file.lender is not None, file.name)):
        match = SHARD_NAME.fullmatch(file.name.rpartition("/")[2])
        if match is None:
            continue
        rank = int(match[1]) % manifest.world_size  # a lender may have had more ranks
        yield file.name, shard_name(rank, used[rank])
        used[rank] += 1


def _in_order(chunks: Iterable[Chunk]) -> tuple[Chunk, ...]:
    return tuple(sorted(chunks, key=lambda chunk: (chunk.at, chunk.file, chunk.offset)))


def _copy_shards(
    storage: Storage,
    manifest: Manifest,
    names: Mapping[str, str],
    target: Storage,
    *,
    threads: int,
) -> dict[Chunk, Chunk]:
    """Copy the containers that `manifest` needs of each shard; return where each stands now.

    `names` leads from the name of each shard in the manifest to that in the copy.
    """
    moved: dict[Chunk, Chunk] = {}
    by_file: dict[str, list[Span]] = {file: [] for file in names}
    for span in spans_of(manifest.tensors):
        if span.chunk.file in by_file:
            by_file[span.chunk.file].append(span)
    for file, spans in by_file.items():
        shard = _ShardCopy.plan(manifest, names[file], spans)
        with target.create_parts(names[file], num_bytes=shard.num_bytes) as writer:
            tasks = (
                partial(_copy_part, storage, manifest.key_of(file), writer, part)
                for part in shard.parts(max(target.part_min_bytes, PART_BYTES))
            )
            run_parallel(tasks, threads=threads)
        moved |= shard.moved
    return moved


@dataclass(frozen=True, kw_only=True, slots=True)
class _Move:
    """One container: where it stands, and where in the copy."""

    span: Span
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _PartCopy:
    number: int
    header: bytes
    moves: tuple[_Move, ...]
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _ShardCopy:
    """One shard of the copy: a header, then the containers in the order they stood in."""

    header: bytes
    moves: tuple[_Move, ...]
    num_bytes: int
    moved: dict[Chunk, Chunk]

    @classmethod
    def plan(cls, manifest: Manifest, name: str, spans: list[Span]) -> _ShardCopy:
        match = SHARD_NAME.fullmatch(name)
        assert match is not None, name  # noqa: S101 -- made by `shard_name`, or checked before
        header = ShardHeader(
            name=manifest.name, save_id=manifest.save_id, rank=int(match[1])
        ).to_bytes()
        position = len(header)
        moves = []
        for span in sorted(spans, key=lambda span: (span.chunk.offset, span.end)):
            moves.append(_Move(span=span, offset=position))
            position += span.chunk.num_bytes
        moved = {
            move.span.chunk: replace(move.span.chunk, file=name, offset=move.offset)
            for move in moves
        }
        return cls(header=header, moves=tuple(moves), num_bytes=position, moved=moved)

    def parts(self, part_bytes: int) -> Iterator[_PartCopy]:
        """Yield the containers in parts of at least `part_bytes`, but for the last."""
        number, header, offset = 1, self.header, 0
        moves: list[_Move] = []
        size = len(header)
        for move in self.moves:
            if size >= part_bytes:
                yield _PartCopy(number=number, header=header, moves=tuple(moves), offset=offset)
                number, header, offset, moves, size = number + 1, b"", move.offset, [], 0
            moves.append(move)
            size += move.span.chunk.num_bytes
        yield _PartCopy(number=number, header=header, moves=tuple(moves), offset=offset)


def _copy_part(storage: Storage, key: str, writer: PartWriter, part: _PartCopy) -> None:
    """Read containers, check each, and put them as one part."""
    buffers = [memoryview(part.header)] if part.header else []
    digests = []
    for move in part.moves:
        chunk = move.span.chunk
        container = memoryview(bytearray(chunk.num_bytes))
        storage.read_into(key, chunk.offset, [container])
        got = Digest(hashlib.sha256(container).hexdigest())
        if got != chunk.sha256:
            raise _changed(key, move.span.tensor, chunk, got)
        buffers.append(container)
        digests.append(got)
    sha256 = digests[0] if len(buffers) == len(digests) == 1 else None
    writer.put(Part(number=part.number, offset=part.offset, buffers=tuple(buffers), sha256=sha256))


def _changed(key: str, tensor: TensorEntry, chunk: Chunk, got: Digest) -> IntegrityError:
    return IntegrityError(
        "a chunk was changed after it was written",
        file=key,
        tensor=tensor.name,
        offset=chunk.offset,
        expected=str(chunk.sha256),
        got=str(got),
    )
