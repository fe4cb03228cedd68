"""Writes one shard: a header line, then each chunk in its container, hashed as it is written.

The SHA-256 of a chunk and of the file are taken from the memory that is handed to the storage, so
no second read is needed, and what the storage does to the bytes shows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from torch import Tensor

from strongroom.checkpoint.container import dtype_name, frame, raw_bytes
from strongroom.checkpoint.manifest import Chunk, FileEntry
from strongroom.checkpoint.shard import ShardHeader, padding
from strongroom.names import Digest
from strongroom.storage.base import ObjectWriter

WRITE_BYTES = 4 * 2**20
"""Bytes handed to hash and storage at a time: what is in flight stays in the processor's cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenChunk:
    """A chunk as it was written, and where its container stands for stock readers."""

    chunk: Chunk
    dtype: str
    container_offset: int
    container_bytes: int


class ShardWriter:
    """Writes to a stream that its owner opens and commits.

    Args:
        stream: where to, at its beginning.
        name: the file's name in the checkpoint.
        header: what the first line says.
    """

    def __init__(self, stream: ObjectWriter, *, name: str, header: ShardHeader) -> None:
        self._stream = stream
        self._name = name
        self._hash = hashlib.sha256()
        self._num_bytes = 0
        self._put(header.to_bytes())

    def write(self, tensor: Tensor, *, at: tuple[int, ...]) -> WrittenChunk:
        """Append a chunk; `at` is the index of its first element in the whole tensor."""
        tensor = tensor.detach().cpu().contiguous()
        shape = tuple(tensor.shape)
        container = frame(shape, tensor.dtype)
        self._put(padding(self._num_bytes))
        container_offset = self._num_bytes
        self._put(container.header)
        offset = self._num_bytes
        raw = raw_bytes(tensor)
        digest = hashlib.sha256()
        for start in range(0, len(raw), WRITE_BYTES):
            part = raw[start : start + WRITE_BYTES]
            digest.update(part)
            self._put(part)
        self._put(container.trailer)
        return WrittenChunk(
            chunk=Chunk(
                at=at,
                shape=shape,
                file=self._name,
                offset=offset,
                num_bytes=len(raw),
                sha256=Digest(digest.hexdigest()),
            ),
            dtype=dtype_name(tensor.dtype),
            container_offset=container_offset,
            container_bytes=self._num_bytes - container_offset,
        )

    def entry(self) -> FileEntry:
        """Return the file as it stands when nothing more is written."""
        return FileEntry(
            name=self._name, num_bytes=self._num_bytes, sha256=Digest(self._hash.hexdigest())
        )

    def _put(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._stream.write(data)
        self._num_bytes += len(data)
