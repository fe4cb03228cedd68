"""The manifest: what a committed checkpoint consists of, format `strongroom.manifest/1`.

Invariant: `manifest.json` holds the canonical JSON of exactly one `Manifest`, and the checkpoint id
is the SHA-256 of those bytes, so `sha256sum manifest.json` prints it. Beside it stands
`manifest.sha256` in the format of `sha256sum`, written just before: it proves a manifest whose
ledger entry was lost to a crash. Every chunk of a manifest that was read lies inside a file it
names; whether the chunks tile their tensors is for `tiling` to say. The format is specified in
`docs/checkpoint-format.md`. This module never imports torch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.errors import FormatError, InputError
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, RunKey, Step

FORMAT = "strongroom.manifest/1"
MANIFEST_FILE = "manifest.json"
SEAL_FILE = "manifest.sha256"
FILE_NAME = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]+")

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
    """One file of the checkpoint's directory."""

    name: str
    num_bytes: int
    sha256: Digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A box of one tensor: `shape` elements from index `at`, row-major.

    Its raw little-endian bytes stand at `offset` of `file`, uncompressed.
    """

    at: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    offset: int
    num_bytes: int
    sha256: Digest


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Digests of everything the run was made from."""

    base_model: Digest
    dataset: Digest
    tokenizer: Digest
    config: Digest

    def to_json(self) -> JsonObject:
        """Return the digests by name."""
        return {
            "base_model": str(self.base_model),
            "dataset": str(self.dataset),
            "tokenizer": str(self.tokenizer),
            "config": str(self.config),
        }

    @classmethod
    def from_json(cls, document: JsonObject) -> Inputs:
        """Read what `to_json` wrote.

        Raises:
            InputError: a value is not a digest.
            TypeError: a name is missing, or unknown.
        """
        return cls(**{name: Digest.parse(_text(text)) for name, text in document.items()})


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What one committed checkpoint consists of.

    Attributes:
        save_id: 32 hex digits, new for every save; every shard of the save carries it.
        parent: the checkpoint this attempt resumed from, None for a fresh start.
        state: the non-tensor state as plain JSON: `cursor`, `scheduler`, `counters`, `optimizer`.
        metrics: numbers known at the save: `train_loss`, `probe_loss`, `pause_s`.
        exact_resume: whether resuming from here repeats an uninterrupted run bit for bit.
    """

    name: CheckpointName
    save_id: str
    created: str
    world_size: int
    parent: CheckpointId | None
    inputs: Inputs
    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...]
    state: JsonObject
    metrics: dict[str, float]
    exact_resume: bool

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: what `manifest.json` holds."""
        return canonical.dumps(_to_json(self))

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Manifest:
        """Read `manifest.json`; `where` names the checkpoint in errors.

        Raises:
            FormatError: not canonical, of an unknown format version, or of the wrong shape.
        """
        document = canonical.loads(data, what=f"{where}/{MANIFEST_FILE}")
        if document.get("format") != FORMAT:
            raise FormatError(
                f"{where}/{MANIFEST_FILE}: expected format {FORMAT!r}, got "
                f"{document.get('format')!r}; use a release of strongroom that knows it"
            )
        try:
            manifest = _from_json(document)
        except (AttributeError, KeyError, TypeError, ValueError, InputError) as error:
            raise FormatError(
                f"{where}/{MANIFEST_FILE}: a field is missing or malformed: {error!r}"
            ) from error
        if manifest.to_bytes() != data:
            raise FormatError(f"{where}/{MANIFEST_FILE}: holds fields that {FORMAT} does not have")
        return manifest

    @property
    def checkpoint_id(self) -> CheckpointId:
        """Digest of the canonical manifest."""
        return CheckpointId(Digest.of(self.to_bytes()))

    @property
    def num_bytes(self) -> int:
        """Bytes of all files the manifest names."""
        return sum(file.num_bytes for file in self.files)

    def tensor(self, name: str) -> TensorEntry:
        """Return the entry of one tensor.

        Raises:
            InputError: there is no tensor of that name.
        """
        for entry in self.tensors:
            if entry.name == name:
                return entry
        raise InputError(f"{self.name.short} has no tensor {name!r}")


def seal_bytes(checkpoint_id: CheckpointId) -> bytes:
    """Return the content of `manifest.sha256`, readable by `sha256sum --check`."""
    return f"{checkpoint_id.hex}  {MANIFEST_FILE}\n".encode()


def _to_json(manifest: Manifest) -> JsonObject:
    return {
        "format": FORMAT,
        "run": str(manifest.name.run),
        "attempt": manifest.name.attempt.number,
        "step": manifest.name.step.number,
        "save_id": manifest.save_id,
        "created": manifest.created,
        "world_size": manifest.world_size,
        "parent": None if manifest.parent is None else str(manifest.parent),
        "inputs": manifest.inputs.to_json(),
        "files": [
            {"name": file.name, "num_bytes": file.num_bytes, "sha256": str(file.sha256)}
            for file in manifest.files
        ],
        "tensors": [
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "chunks": [
                    {
                        "at": list(chunk.at),
                        "shape": list(chunk.shape),
                        "file": chunk.file,
                        "offset": chunk.offset,
                        "num_bytes": chunk.num_bytes,
                        "sha256": str(chunk.sha256),
                    }
                    for chunk in tensor.chunks
                ],
            }
            for tensor in manifest.tensors
        ],
        "state": manifest.state,
        "metrics": dict(manifest.metrics),
        "exact_resume": manifest.exact_resume,
    }


def _from_json(document: dict[str, Any]) -> Manifest:
    parent = document["parent"]
    manifest = Manifest(
        name=CheckpointName(
            RunKey(_text(document["run"])),
            Attempt(_count(document["attempt"])),
            Step(_count(document["step"])),
        ),
        save_id=_text(document["save_id"]),
        created=_text(document["created"]),
        world_size=_count(document["world_size"]),
        parent=None if parent is None else CheckpointId(Digest.parse(_text(parent))),
        inputs=Inputs.from_json(document["inputs"]),
        files=tuple(
            FileEntry(
                name=_text(file["name"]),
                num_bytes=_count(file["num_bytes"]),
                sha256=Digest.parse(_text(file["sha256"])),
            )
            for file in document["files"]
        ),
        tensors=tuple(
            TensorEntry(
                name=_text(tensor["name"]),
                dtype=_text(tensor["dtype"]),
                shape=tuple(_count(size) for size in tensor["shape"]),
                chunks=tuple(
                    Chunk(
                        at=tuple(_count(index) for index in chunk["at"]),
                        shape=tuple(_count(size) for size in chunk["shape"]),
                        file=_text(chunk["file"]),
                        offset=_count(chunk["offset"]),
                        num_bytes=_count(chunk["num_bytes"]),
                        sha256=Digest.parse(_text(chunk["sha256"])),
                    )
                    for chunk in tensor["chunks"]
                ),
            )
            for tensor in document["tensors"]
        ),
        state=_object(document["state"]),
        metrics=_object(document["metrics"]),
        exact_resume=document["exact_resume"],
    )
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    """Raise ValueError unless facts are possible, names safe, and chunks inside their files."""
    if not re.fullmatch(r"[0-9a-f]{32}", manifest.save_id):
        raise ValueError(f"save_id: expected 32 lowercase hex digits, got {manifest.save_id!r}")
    if manifest.world_size < 1 or not isinstance(manifest.exact_resume, bool):
        raise ValueError("world_size: expected at least 1; exact_resume: expected true or false")
    if not all(type(value) in {int, float} for value in manifest.metrics.values()):
        raise ValueError(f"metrics: expected numbers, got {manifest.metrics!r}")
    for file in manifest.files:
        if not FILE_NAME.fullmatch(file.name) or file.name in {MANIFEST_FILE, SEAL_FILE}:
            raise ValueError(f"files: {file.name!r} is not a name a checkpoint's file may have")
    _check_order("files", [file.name for file in manifest.files])
    _check_order("tensors", [tensor.name for tensor in manifest.tensors])
    sizes = {file.name: file.num_bytes for file in manifest.files}
    for tensor in manifest.tensors:
        for chunk in tensor.chunks:
            _check_chunk(tensor, chunk, sizes[chunk.file])


def _check_order(what: str, names: list[str]) -> None:
    if names != sorted(set(names)):
        raise ValueError(f"{what}: expected unique names in order, got {names!r}")


def _check_chunk(tensor: TensorEntry, chunk: Chunk, file_bytes: int) -> None:
    if not len(chunk.at) == len(chunk.shape) == len(tensor.shape):
        raise ValueError(f"{tensor.name}: a chunk has other dimensions than the tensor")
    if chunk.num_bytes != math.prod(chunk.shape) * DTYPE_BYTES[tensor.dtype]:
        raise ValueError(f"{tensor.name}: a chunk's num_bytes do not fit its shape")
    if chunk.offset + chunk.num_bytes > file_bytes:
        raise ValueError(f"{tensor.name}: a chunk ends after the end of {chunk.file}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"expected an integer of 0 or more, got {value!r}")
    return value


def _object(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {value!r}")
    return value
