"""What a manifest lists: files, tensors, and the chunks that say where a tensor's bytes stand.

Every entry that was read is possible by itself: sizes fit shapes, a chunk lies inside its file.
This module never imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strongroom.canonical import JsonObject
from strongroom.names import CheckpointId, Digest

FRAME_MAX_BYTES = 64 * 2**10
"""Most bytes of a container beside the raw bytes of its tensor; torch writes under 2 KiB."""

DTYPE_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Every dtype a tensor may have (torch's names), with the bytes of one element."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file that the checkpoint needs.

    Attributes:
        name: in the checkpoint's own directory; of a borrowed file its path from the run's folder,
            `attempt-0001/step-00000010/__0_0.distcp`.
        sha256: of the whole file; None for a shard of version 2, whose every byte is covered by its
            chunks' digests and its header.
        lender: the checkpoint it belongs to, where this one, a delta, borrows it.
    """

    name: str
    num_bytes: int
    sha256: Digest | None
    lender: CheckpointId | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A box of one tensor: `shape` elements from index `at`, row-major.

    Attributes:
        file: name of the `FileEntry` it lies in.
        offset: where in the file its span begins: in version 2 the whole container that stock
            readers load, in version 1 the raw bytes alone.
        num_bytes: length of the span.
        sha256: digest of the span.
        data_offset: where in the span the raw little-endian bytes begin, uncompressed.
    """

    at: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    offset: int
    num_bytes: int
    sha256: Digest
    data_offset: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEntry:
    """One tensor, by its global shape; its chunks tile it without gap or overlap."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def raw_bytes(self, chunk: Chunk) -> int:
        """Return the number of raw bytes of one of its chunks."""
        return math.prod(chunk.shape) * DTYPE_BYTES[self.dtype]


def file_to_json(file: FileEntry, version: int) -> JsonObject:
    """Return the entry as JSON."""
    sha256 = None if file.sha256 is None else str(file.sha256)
    document: JsonObject = {"name": file.name, "num_bytes": file.num_bytes, "sha256": sha256}
    if version > 1:
        document["lender"] = None if file.lender is None else str(file.lender)
    return document


def chunk_to_json(chunk: Chunk, version: int) -> JsonObject:
    """Return the entry as JSON."""
    document: JsonObject = {
        "at": list(chunk.at),
        "shape": list(chunk.shape),
        "file": chunk.file,
        "offset": chunk.offset,
        "num_bytes": chunk.num_bytes,
        "sha256": str(chunk.sha256),
    }
    return document if version == 1 else {**document, "data_offset": chunk.data_offset}


def file_from_json(document: dict[str, Any], version: int) -> FileEntry:
    """Read what `file_to_json` wrote; errors as of `tensor_from_json`."""
    sha256 = document["sha256"]
    lender = None if version == 1 else document["lender"]
    return FileEntry(
        name=text(document["name"]),
        num_bytes=count(document["num_bytes"]),
        sha256=None if sha256 is None else Digest.parse(text(sha256)),
        lender=None if lender is None else CheckpointId(Digest.parse(text(lender))),
    )


def chunk_from_json(document: dict[str, Any], version: int) -> Chunk:
    """Read what `chunk_to_json` wrote; errors as of `tensor_from_json`."""
    return Chunk(
        at=tuple(count(index) for index in document["at"]),
        shape=tuple(count(size) for size in document["shape"]),
        file=text(document["file"]),
        offset=count(document["offset"]),
        num_bytes=count(document["num_bytes"]),
        sha256=Digest.parse(text(document["sha256"])),
        data_offset=0 if version == 1 else count(document["data_offset"]),
    )


def tensor_to_json(tensor: TensorEntry, version: int) -> JsonObject:
    """Return the entry as JSON."""
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "chunks": [chunk_to_json(chunk, version) for chunk in tensor.chunks],
    }


def tensor_from_json(
    document: dict[str, Any], version: int, file_sizes: Mapping[str, int]
) -> TensorEntry:
    """Read what `tensor_to_json` wrote; `file_sizes` are those of the manifest's files.

    Raises:
        KeyError, TypeError, ValueError, InputError: a field is missing or impossible.
    """
    tensor = TensorEntry(
        name=text(document["name"]),
        dtype=text(document["dtype"]),
        shape=tuple(count(size) for size in document["shape"]),
        chunks=tuple(chunk_from_json(chunk, version) for chunk in document["chunks"]),
    )
    for chunk in tensor.chunks:
        _check_chunk(tensor, chunk, version, file_sizes[chunk.file])
    return tensor


def _check_chunk(tensor: TensorEntry, chunk: Chunk, version: int, file_bytes: int) -> None:
    if not len(chunk.at) == len(chunk.shape) == len(tensor.shape):
        raise ValueError(f"{tensor.name}: a chunk has other dimensions than the tensor")
    frame_bytes = chunk.num_bytes - tensor.raw_bytes(chunk)
    frame_max_bytes = 0 if version == 1 else FRAME_MAX_BYTES
    if not 0 <= chunk.data_offset <= frame_bytes <= frame_max_bytes:
        raise ValueError(f"{tensor.name}: a chunk's num_bytes do not fit its shape")
    if chunk.offset + chunk.num_bytes > file_bytes:
        raise ValueError(f"{tensor.name}: a chunk ends after the end of {chunk.file}")


def text(value: object) -> str:
    """Return `value` if it is text, else raise TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    return value


def count(value: object) -> int:
    """Return `value` if it is an integer of 0 or more, else raise TypeError."""
    if type(value) is not int or value < 0:
        raise TypeError(f"expected an integer of 0 or more, got {value!r}")
    return value
