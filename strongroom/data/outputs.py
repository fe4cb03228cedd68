"""Files that this room makes: whole under their names, or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from strongroom.errors import os_error


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file, then move it to `target`; what stood there before is replaced.

    Several processes may make the same file: each makes its own, and the last one stands.

    Raises:
        StorageError: the disk is full, or the folder cannot be written to.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".tmp-") as folder:
            made = Path(folder) / target.name
            write(made)
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.replace(target)
    except OSError as error:
        raise os_error(error, f"cannot write {target}") from error
