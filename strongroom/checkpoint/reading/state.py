"""What a checkpoint means, whatever its sharding: the state digest.

Law: two checkpoints have the same state digest exactly if every tensor has the same name, dtype,
global shape and row-major bytes, and the non-tensor state is the same JSON. World size, chunk
layout, save id, time and what is borrowed do not enter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from torch import Tensor

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.checkpoint.container import raw_bytes
from strongroom.checkpoint.entries import TensorEntry
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.parallel import run_parallel
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.spans import RANGE_BYTES
from strongroom.names import Digest, StateDigest

Look = Callable[[TensorEntry, Tensor], None]
"""Is shown parts of tensors; those of one tensor by one thread, one after another."""


def state_digest(reader: CheckpointReader, *, look: Look | None = None) -> StateDigest:
    """Read the whole checkpoint and return its state digest.

    Several tensors at a time, each a few MiB at a time where its sharding allows it.

    Args:
        reader: checks every chunk it reads.
        look: called with every part that was read, so that one pass serves two questions.

    Raises:
        IntegrityError: a chunk's bytes are not those in the manifest, or chunks do not tile.
        FormatError: this release cannot read a checkpoint that lends files to this one.
    """
    digests: dict[str, Digest] = {}
    found = run_parallel(
        (partial(_digests, reader, bundle, look) for bundle in _bundles(reader.manifest.tensors)),
        threads=reader.threads,
    )
    for of_bundle in found:
        digests |= of_bundle
    tensors = [_described(entry, digests[entry.name]) for entry in reader.manifest.tensors]
    return _digest_of(reader.manifest, tensors)


def _bundles(entries: Iterable[TensorEntry]) -> list[list[TensorEntry]]:
    """Put tensors together that are small enough to be read at once; the largest come first."""
    bundles: list[list[TensorEntry]] = []
    room = 0
    for entry in entries:
        if not bundles or entry.num_bytes > room:
            bundles.append([])
            room = RANGE_BYTES
        bundles[-1].append(entry)
        room -= entry.num_bytes
    return sorted(
        bundles, key=lambda bundle: sum(entry.num_bytes for entry in bundle), reverse=True
    )


def _digests(
    reader: CheckpointReader, bundle: list[TensorEntry], look: Look | None
) -> dict[str, Digest]:
    if sum(entry.num_bytes for entry in bundle) > RANGE_BYTES:
        (entry,) = bundle
        return {entry.name: _digest(entry, reader.row_major(entry.name), look)}
    tensors = reader.read_all(bundle, threads=1)
    return {entry.name: _digest(entry, iter([tensors[entry.name]]), look) for entry in bundle}


def _digest(entry: TensorEntry, parts: Iterator[Tensor], look: Look | None) -> Digest:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(raw_bytes(part))
        if look is not None:
            look(entry, part)
    return Digest(digest.hexdigest())


def _described(entry: TensorEntry, sha256: Digest) -> JsonObject:
    return {
        "name": entry.name,
        "dtype": entry.dtype,
        "shape": list(entry.shape),
        "sha256": str(sha256),
    }


def _digest_of(manifest: Manifest, tensors: list[JsonObject]) -> StateDigest:
    return StateDigest(canonical.digest({"tensors": tensors, "state": manifest.state}))
