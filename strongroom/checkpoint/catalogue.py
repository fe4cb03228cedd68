"""Which checkpoints a store holds: read from the storage itself, never from an index.

A checkpoint exists exactly if its folder holds `manifest.json`. Names are parsed exactly; what is
unknown, unfinished or damaged is reported and left alone. This module never imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from strongroom.checkpoint.layout import RUNS, attempt_folder, checkpoint_folder, run_folder
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE, Manifest, seal_bytes
from strongroom.errors import (
    FormatError,
    InputError,
    IntegrityError,
    ObjectMissingError,
    UnknownNameError,
)
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, RunKey, Step
from strongroom.storage.base import Storage

Name = TypeVar("Name", RunKey, Attempt, Step)

UNFINISHED: Final = "unfinished: its save never committed a manifest"


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A committed checkpoint: its name, its id and its manifest."""

    name: CheckpointName
    checkpoint_id: CheckpointId
    manifest: Manifest

    @property
    def folder(self) -> str:
        """The folder its files stand in."""
        return checkpoint_folder(self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignored:
    """A folder that is no usable checkpoint, and why.

    Attributes:
        damaged: a manifest stands there, so there was a checkpoint; it cannot be read.
    """

    folder: str
    reason: str
    damaged: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """The checkpoints found, ordered by run, attempt and step, and what was ignored."""

    checkpoints: tuple[Committed, ...]
    ignored: tuple[Ignored, ...]

    def __iter__(self) -> Iterator[Committed]:
        return iter(self.checkpoints)

    def __len__(self) -> int:
        return len(self.checkpoints)


def list_checkpoints(storage: Storage, run: RunKey | None = None) -> Catalogue:
    """Return every committed checkpoint of one run, or of all."""
    found: list[Committed] = []
    ignored: list[Ignored] = []
    runs_found = [run] if run is not None else _known(storage, RUNS, RunKey, ignored)
    for key in runs_found:
        names, unknown = _names(storage, key)
        ignored += unknown
        for name in names:
            try:
                found.append(read_checkpoint(storage, name))
            except UnknownNameError:
                ignored.append(Ignored(folder=checkpoint_folder(name), reason=UNFINISHED))
            except (IntegrityError, FormatError) as error:
                ignored.append(
                    Ignored(folder=checkpoint_folder(name), reason=str(error), damaged=True)
                )
    return Catalogue(checkpoints=tuple(found), ignored=tuple(ignored))


def checkpoint_names(storage: Storage, run: RunKey) -> list[CheckpointName]:
    """Return the names of a run's committed checkpoints, oldest first, reading none of them.

    Newest means the newest attempt first, then the newest step: an attempt that was asked to start
    afresh supersedes what came before it.
    """
    names, _ = _names(storage, run)
    return [name for name in names if storage.stat(_key(name, MANIFEST_FILE)) is not None]


def read_checkpoint(storage: Storage, name: CheckpointName) -> Committed:
    """Read a checkpoint's manifest and check it against its seal.

    Raises:
        UnknownNameError: there is no such checkpoint, or its save never committed.
        IntegrityError: manifest and seal contradict each other, or the seal is missing.
        FormatError: the manifest matches its seal, yet this release cannot read it.
    """
    manifest_key, seal_key = _key(name, MANIFEST_FILE), _key(name, SEAL_FILE)
    try:
        data = storage.read(manifest_key)
    except ObjectMissingError as error:
        raise UnknownNameError(
            f"checkpoint {name.short} ({name.attempt}): expected {manifest_key}, got no such "
            "object; `strongroom ls` lists the checkpoints there are"
        ) from error
    try:
        seal = storage.read(seal_key)
    except ObjectMissingError as error:
        raise IntegrityError(
            "the seal is missing",
            file=seal_key,
            expected=f"the digest of {MANIFEST_FILE}",
            got="no such object",
        ) from error
    checkpoint_id = CheckpointId(Digest.of(data))
    _check_seal(seal, checkpoint_id, manifest_key=manifest_key, seal_key=seal_key)
    manifest = Manifest.from_bytes(data, where=checkpoint_folder(name))
    if manifest.name != name:
        raise IntegrityError(
            "the manifest of another checkpoint stands",
            file=manifest_key,
            expected=str(name),
            got=str(manifest.name),
        )
    return Committed(name=name, checkpoint_id=checkpoint_id, manifest=manifest)


def read_lender(storage: Storage, name: CheckpointName, expected_id: CheckpointId) -> Manifest:
    """Read the manifest of a checkpoint that lends files to another of its run.

    Args:
        storage: what holds both.
        name: the lender.
        expected_id: its id, as the borrower recorded it.

    Raises:
        IntegrityError: the lender is gone, damaged, or another checkpoint than it was.
        FormatError: as `read_checkpoint`.
    """
    try:
        lender = read_checkpoint(storage, name)
    except UnknownNameError as error:
        raise IntegrityError(
            "a checkpoint that lends files is gone",
            file=_key(name, MANIFEST_FILE),
            expected=str(expected_id),
            got="no such object",
        ) from error
    if lender.checkpoint_id != expected_id:
        raise IntegrityError(
            "another checkpoint stands in the place of one that lends files",
            file=_key(name, MANIFEST_FILE),
            expected=str(expected_id),
            got=str(lender.checkpoint_id),
        )
    return lender.manifest


def runs(storage: Storage) -> list[RunKey]:
    """Return the keys of all runs, sorted."""
    return _known(storage, RUNS, RunKey, [])


def first_difference(got: bytes, expected: bytes) -> int:
    """Return the offset of the first byte that differs, or at which one of the two ends."""
    pairs = enumerate(zip(got, expected, strict=False))
    return next(
        (offset for offset, (one, other) in pairs if one != other), min(len(got), len(expected))
    )


def _check_seal(
    seal: bytes, checkpoint_id: CheckpointId, *, manifest_key: str, seal_key: str
) -> None:
    expected = seal_bytes(checkpoint_id)
    if seal == expected:
        return
    hex_digits = len(checkpoint_id.hex)
    if len(seal) == len(expected) and seal[hex_digits:] == expected[hex_digits:]:
        # A digest either way: only a third witness, the ledger, can tell which one changed.
        raise IntegrityError(
            f"manifest and seal ({SEAL_FILE}) contradict each other",
            file=manifest_key,
            expected=f"sha256:{seal[:hex_digits].decode('ascii', 'backslashreplace')}",
            got=str(checkpoint_id),
        )
    place = first_difference(seal, expected)
    raise IntegrityError(
        "the seal is not of the form it was written in",
        file=seal_key,
        offset=place,
        expected=repr(expected[place : place + 16]),
        got=repr(seal[place : place + 16]),
    )


def _names(storage: Storage, run: RunKey) -> tuple[list[CheckpointName], list[Ignored]]:
    ignored: list[Ignored] = []
    names = [
        CheckpointName(run, attempt, step)
        for attempt in _known(storage, run_folder(run), Attempt, ignored)
        for step in _known(storage, attempt_folder(run, attempt), Step, ignored)
    ]
    return names, ignored


def _known(storage: Storage, folder: str, kind: type[Name], ignored: list[Ignored]) -> list[Name]:
    """Return the folders under `folder` that are names of `kind`, sorted; others are reported."""
    known: list[Name] = []
    for text in storage.folders(folder):
        try:
            known.append(kind.parse(text))
        except InputError as error:
            ignored.append(Ignored(folder=f"{folder}/{text}", reason=f"unknown name: {error}"))
    return sorted(known)


def _key(name: CheckpointName, file: str) -> str:
    return f"{checkpoint_folder(name)}/{file}"
