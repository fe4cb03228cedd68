"""What a checkpoint means, whatever its sharding: the state digest.

Law: two checkpoints have the same state digest exactly if every tensor has the same name, dtype,
global shape and row-major bytes, and the non-tensor state is the same JSON. World size, chunk
layout, save id and time do not enter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from torch import Tensor

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.checkpoint.container import raw_bytes
from strongroom.checkpoint.manifest import Manifest, TensorEntry
from strongroom.checkpoint.reader import CheckpointReader
from strongroom.names import Digest, StateDigest


def state_digest(
    reader: CheckpointReader, *, look: Callable[[TensorEntry, Tensor], None] | None = None
) -> StateDigest:
    """Read the whole checkpoint, a chunk at a time, and return its state digest.

    Args:
        reader: checks every chunk before it is hashed here.
        look: called with every part that was read, so that one pass serves two questions.

    Raises:
        IntegrityError: a chunk's bytes are not those in the manifest, or chunks do not tile.
    """
    tensors = []
    for entry in reader.manifest.tensors:
        parts = reader.row_major(entry.name)
        tensors.append(_described(entry, _digest(entry, parts, look)))
    return _digest_of(reader.manifest, tensors)


def _digest(
    entry: TensorEntry,
    parts: Iterable[Tensor],
    look: Callable[[TensorEntry, Tensor], None] | None,
) -> Digest:
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
