"""The manifest: what a committed checkpoint consists of, formats `strongroom.manifest/1` and `/2`.

Invariant: `manifest.json` holds the canonical JSON of exactly one `Manifest`, and the checkpoint id
is the SHA-256 of those bytes, so `sha256sum manifest.json` prints it. Beside it stands
`manifest.sha256` in the format of `sha256sum`, written just before: it proves a manifest whose
ledger entry was lost to a crash. Every chunk of a manifest that was read lies inside a file it
names; whether the chunks tile their tensors is for `tiling` to say. Version 2 is written, both are
read. The formats are specified in `docs/checkpoint-format.md`. This module never imports torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.checkpoint.entries import (
    FileEntry,
    TensorEntry,
    count,
    file_from_json,
    file_to_json,
    tensor_from_json,
    tensor_to_json,
    text,
)
from strongroom.checkpoint.layout import checkpoint_folder, run_folder
from strongroom.checkpoint.shard import SHARD_NAME
from strongroom.errors import FormatError, InputError
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, RunKey, Step

FORMATS = {1: "strongroom.manifest/1", 2: "strongroom.manifest/2"}
MANIFEST_FILE = "manifest.json"
SEAL_FILE = "manifest.sha256"
FILE_NAME = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]+")
BORROWED_NAME = re.compile(rf"attempt-[0-9]{{4}}/step-[0-9]{{8}}/{SHARD_NAME.pattern}")


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
        return cls(**{name: Digest.parse(text(value)) for name, value in document.items()})


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What one committed checkpoint consists of.

    Attributes:
        save_id: 32 hex digits, new for every save; every shard of the save carries it.
        parent: the checkpoint this attempt resumed from, None for a fresh start.
        state: the non-tensor state as plain JSON: `cursor`, `scheduler`, `counters`, `optimizer`.
        metrics: numbers known at the save: `train_loss`, `probe_loss`, `pause_s`.
        exact_resume: whether resuming from here repeats an uninterrupted run bit for bit.
        chain: 0 for a full checkpoint, which needs its own files alone; for a delta, one more than
            that of the checkpoint it was compared with.
        version: of the format.
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
    chain: int = 0
    version: int = 2

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
        canonical.version_of(document, tuple(FORMATS.values()), what=f"{where}/{MANIFEST_FILE}")
        try:
            manifest = _from_json(document)
        except (AttributeError, KeyError, TypeError, ValueError, InputError) as error:
            raise FormatError(
                f"{where}/{MANIFEST_FILE}: a field is missing or malformed: {error!r}"
            ) from error
        if manifest.to_bytes() != data:
            raise FormatError(
                f"{where}/{MANIFEST_FILE}: holds fields that {FORMATS[manifest.version]} does not "
                "have"
            )
        return manifest

    @property
    def checkpoint_id(self) -> CheckpointId:
        """Digest of the canonical manifest."""
        return CheckpointId(Digest.of(self.to_bytes()))

    @property
    def num_bytes(self) -> int:
        """Bytes of the checkpoint's own files."""
        return sum(file.num_bytes for file in self.own_files)

    @property
    def own_files(self) -> tuple[FileEntry, ...]:
        """The files in the checkpoint's own directory."""
        return tuple(file for file in self.files if file.lender is None)

    @property
    def lenders(self) -> dict[CheckpointName, CheckpointId]:
        """The checkpoints whose files this one borrows: they must be kept as long as it is."""
        found = {}
        for file in self.files:
            if file.lender is not None:
                attempt, step, _ = file.name.split("/")
                name = CheckpointName(self.name.run, Attempt.parse(attempt), Step.parse(step))
                found[name] = file.lender
        return found

    @property
    def borrowed_share(self) -> float:
        """Share of the chunks' bytes that stand in borrowed files, 0 to 1."""
        borrowed = {file.name for file in self.files if file.lender is not None}
        sizes = [(chunk.file, chunk.num_bytes) for entry in self.tensors for chunk in entry.chunks]
        whole = sum(num_bytes for _, num_bytes in sizes)
        return sum(num_bytes for file, num_bytes in sizes if file in borrowed) / max(whole, 1)

    def key_of(self, file: str) -> str:
        """Return the storage key of a file by its name in the manifest."""
        above = run_folder(self.name.run) if "/" in file else checkpoint_folder(self.name)
        return f"{above}/{file}"

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
    document: JsonObject = {
        "format": FORMATS[manifest.version],
        "run": str(manifest.name.run),
        "attempt": manifest.name.attempt.number,
        "step": manifest.name.step.number,
        "save_id": manifest.save_id,
        "created": manifest.created,
        "world_size": manifest.world_size,
        "parent": None if manifest.parent is None else str(manifest.parent),
        "inputs": manifest.inputs.to_json(),
        "files": [file_to_json(file, manifest.version) for file in manifest.files],
        "tensors": [tensor_to_json(tensor, manifest.version) for tensor in manifest.tensors],
        "state": manifest.state,
        "metrics": dict(manifest.metrics),
        "exact_resume": manifest.exact_resume,
    }
    return document if manifest.version == 1 else {**document, "chain": manifest.chain}


def _from_json(document: dict[str, Any]) -> Manifest:
    version = next(number for number, name in FORMATS.items() if name == document["format"])
    parent = document["parent"]
    files = tuple(file_from_json(file, version) for file in document["files"])
    file_sizes = {file.name: file.num_bytes for file in files}
    manifest = Manifest(
        name=CheckpointName(
            RunKey(text(document["run"])),
            Attempt(count(document["attempt"])),
            Step(count(document["step"])),
        ),
        save_id=text(document["save_id"]),
        created=text(document["created"]),
        world_size=count(document["world_size"]),
        parent=None if parent is None else CheckpointId(Digest.parse(text(parent))),
        inputs=Inputs.from_json(document["inputs"]),
        files=files,
        tensors=tuple(
            tensor_from_json(tensor, version, file_sizes) for tensor in document["tensors"]
        ),
        state=_object(document["state"]),
        metrics=_object(document["metrics"]),
        exact_resume=document["exact_resume"],
        chain=0 if version == 1 else count(document["chain"]),
        version=version,
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
    _check_order("files", [file.name for file in manifest.files])
    _check_order("tensors", [tensor.name for tensor in manifest.tensors])
    for file in manifest.files:
        _check_file(manifest, file)
    _check_chunks(manifest)
    _check_lenders(manifest)


def _check_file(manifest: Manifest, file: FileEntry) -> None:
    pattern = FILE_NAME if file.lender is None else BORROWED_NAME
    if not pattern.fullmatch(file.name) or file.name in {MANIFEST_FILE, SEAL_FILE}:
        raise ValueError(f"files: {file.name!r} is not a name a checkpoint's file may have")
    # Since version 2 the digests of its chunks cover a shard, so that no byte is hashed twice.
    by_chunks = manifest.version > 1 and _is_shard(file.name)
    if by_chunks != (file.sha256 is None):
        raise ValueError(f"files: {file.name!r} has {'a' if by_chunks else 'no'} digest")


def _check_chunks(manifest: Manifest) -> None:
    used = {chunk.file for tensor in manifest.tensors for chunk in tensor.chunks}
    if manifest.version > 1 and (others := sorted(name for name in used if not _is_shard(name))):
        raise ValueError(f"tensors: expected chunks in shards, got one in {others[0]!r}")


def _is_shard(file: str) -> bool:
    return SHARD_NAME.fullmatch(file.rpartition("/")[-1]) is not None


def _check_lenders(manifest: Manifest) -> None:
    lenders = manifest.lenders
    if manifest.name in lenders:
        raise ValueError("files: some are borrowed from the checkpoint itself")
    if (manifest.chain > 0) != bool(lenders):
        raise ValueError(f"chain: got {manifest.chain}, with {len(lenders)} lenders")
    borrowed = [file for file in manifest.files if file.lender is not None]
    if len({(file.name.rpartition("/")[0], file.lender) for file in borrowed}) != len(lenders):
        raise ValueError("files: a lender is given two ids")


def _check_order(what: str, names: list[str]) -> None:
    if names != sorted(set(names)):
        raise ValueError(f"{what}: expected unique names in order, got {names!r}")


def _object(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {value!r}")
    return value
