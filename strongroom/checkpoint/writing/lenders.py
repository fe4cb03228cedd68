"""Whether what a delta borrows still stands, asked of the storage before anything relies on it.

A few small requests a lender, whatever its size: its bytes are for verification.
"""

from __future__ import annotations

from strongroom.checkpoint.layout import checkpoint_folder
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE, Manifest, seal_bytes
from strongroom.errors import ObjectMissingError, SaveError
from strongroom.names import CheckpointId, CheckpointName
from strongroom.storage.base import Storage


def is_committed(storage: Storage, name: CheckpointName, checkpoint_id: CheckpointId) -> bool:
    """Return whether a checkpoint of that name is committed, and is the one of this id."""
    folder = checkpoint_folder(name)
    try:
        seal = storage.read(f"{folder}/{SEAL_FILE}")
    except ObjectMissingError:
        return False
    is_sealed = seal == seal_bytes(checkpoint_id)
    return is_sealed and storage.stat(f"{folder}/{MANIFEST_FILE}") is not None


def check_lenders(storage: Storage, manifest: Manifest) -> None:
    """Return if every checkpoint that lends to this one is committed, with the files it lends.

    Raises:
        SaveError: somebody took one away since the save began; names it.
    """
    faults = [
        f"{name} is no longer committed"
        for name, checkpoint_id in manifest.lenders.items()
        if not is_committed(storage, name, checkpoint_id)
    ]
    for file in manifest.files:
        if file.lender is not None:
            info = storage.stat(manifest.key_of(file.name))
            if info is None or info.num_bytes != file.num_bytes:
                got = "no such object" if info is None else f"{info.num_bytes} bytes"
                faults.append(f"{file.name}: expected {file.num_bytes} bytes, got {got}")
    if faults:
        raise SaveError(
            f"save of {manifest.name}: what it borrows was taken away meanwhile: "
            f"{'; '.join(faults)}; nothing was committed; save in full"
        )
