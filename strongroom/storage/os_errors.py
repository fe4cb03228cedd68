"""What the operating system says, as the storage error it means."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strongroom.errors import StorageDeniedError, StorageError, StorageFullError


@contextmanager
def os_errors_named(operation: str, path: Path) -> Iterator[None]:
    """Raise an OSError of the block as a StorageError that names the operation and the path.

    Raises:
        StorageFullError: no space or no quota is left.
        StorageDeniedError: this user may not, or the file system is read-only.
        StorageError: anything else.
    """
    try:
        yield
    except OSError as error:
        what = f"{path}: cannot {operation}: {error.strerror}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageFullError(f"{what}; free space or raise the quota, then retry") from error
        if error.errno in {errno.EACCES, errno.EROFS}:
            raise StorageDeniedError(
                f"{what}; grant this user the right to {operation} there, or use another folder"
            ) from error
        if error.errno in {errno.EPERM, errno.ENOTSUP, errno.EXDEV}:
            raise StorageError(
                f"{what}; expected one file system with hard links; use another folder or S3"
            ) from error
        raise StorageError(f"{what} (errno {error.errno}); check the disk and the path") from error
