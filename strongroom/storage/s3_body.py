"""The body of a request: an object's bytes where they lie in memory, signed by one SHA-256.

boto3 asks of a body that it can be read like a file, and signs it with a digest of its own reading.
A `Body` answers both without moving a byte: its buffers go to the socket as they are, and whoever
has hashed them already says so. The server refuses bytes that differ from what was hashed.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zlib
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, cast

from botocore import auth

from strongroom.names import Digest
from strongroom.storage.base import views

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest

SIGNATURE = "s3v4-strongroom"
"""Name of the signature among botocore's: version 4, with the digest that a `Body` brings."""


class Body(io.RawIOBase):
    """Buffers as one readable file, which they are only to those who must copy (a proxy's client).

    Args:
        buffers: the bytes, in order; they must not change while the body is in use.
        sha256: digest of all of them, computed at first use where it is not given.
    """

    def __init__(self, buffers: Sequence[memoryview], sha256: Digest | None = None) -> None:
        self.buffers = tuple(buffer.cast("B") for buffer in buffers if buffer.nbytes)
        self.num_bytes = sum(buffer.nbytes for buffer in self.buffers)
        self._sha256 = sha256
        self._position = 0

    @property
    def sha256(self) -> Digest:
        """Digest of all bytes."""
        if self._sha256 is None:
            hashed = hashlib.sha256()
            for buffer in self.buffers:
                hashed.update(buffer)
            self._sha256 = Digest(hashed.hexdigest())
        return self._sha256

    def crc32(self) -> str:
        """Return the CRC-32 of all bytes as S3 writes it: big-endian, in base64."""
        value = 0
        for buffer in self.buffers:
            value = zlib.crc32(buffer, value)
        return base64.b64encode(value.to_bytes(4, "big")).decode()

    def rewound(self) -> IO[bytes]:
        """Return this, to be read from its beginning: another try may have read some of it."""
        self.seek(0)
        return cast("IO[bytes]", self)

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes: a request sent again begins anew."""
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]  # any buffer does
        """Copy what comes next into `target`; return how many bytes that was."""
        left = views(self.buffers, start=self._position)
        if not left:
            return 0
        num_bytes = min(len(target), left[0].nbytes)
        target[:num_bytes] = left[0][:num_bytes]
        self._position += num_bytes
        return num_bytes

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, counted from the beginning, from here, or from the end."""
        self._position = (0, self._position, self.num_bytes)[whence] + offset
        return self._position

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._position


class _BodyAuth(auth.S3SigV4Auth):
    """botocore's signer; the digest of a `Body` comes from the body, and is never left out."""

    def payload(self, request: AWSRequest) -> str:
        body = request.data
        return body.sha256.hex if isinstance(body, Body) else super().payload(request)


auth.AUTH_TYPE_MAPS[SIGNATURE] = _BodyAuth
