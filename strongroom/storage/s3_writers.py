"""New objects in S3 too large for one request: as a stream, or in parts from many threads.

Order: nothing stands at the key; parts are sent; nothing stands there still; the upload is
completed on condition that nothing does; the object is locked, where it is to be. What fails aborts
the upload, and deletes an object that cannot be locked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from strongroom.errors import ConflictError, StorageError, StoreUnreachableError
from strongroom.storage.base import PARTS_MAX, Part
from strongroom.storage.s3_body import Body
from strongroom.storage.s3_bucket import Bucket
from strongroom.storage.s3_errors import BUSY_TRIES
from strongroom.storage.s3_settings import MAX_PART_BYTES, MIN_PART_BYTES
from strongroom.storage.s3_upload import Upload


def part_bytes_after(sent_bytes: int, *, first_bytes: int) -> int:
    """Return the size of a stream's next part: 10,000 hold 5 TiB, S3's largest object, and more.

    Args:
        sent_bytes: what the parts before hold.
        first_bytes: size of the first; from a thousand of these on, parts grow with what was sent.
    """
    return min(max(first_bytes, sent_bytes // 1000), MAX_PART_BYTES)


class _NewObject(ABC):
    """What the writers share: the beginning and the end."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._upload: Upload | None = None

    def __enter__(self) -> Self:
        self._check_absent()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._lock(self._commit())
        except BaseException as failure:
            self._abort(failure)
            raise
        if error is not None:
            self._abort(error)

    @abstractmethod
    def _commit(self) -> str:
        """Make all that was written the object; return its version id."""

    def _complete(self, upload: Upload) -> str:
        self._check_absent()
        return upload.complete()

    def _lock(self, version: str) -> None:
        """Lock the object by a request of its own: Ceph 16 ignores what a new upload says of it."""
        days = self._bucket.settings.lock_days
        if days is None:
            return
        try:
            self._bucket.lock(self._key, version, datetime.now(UTC) + timedelta(days=days))
        except StorageError:
            self._bucket.delete(self._key, version=version)
            raise

    def _check_absent(self) -> None:
        if self._bucket.size(self._key) is not None:
            raise ConflictError(
                f"{self._where}: expected no object of this key; one exists and was left as it was"
            )

    def _abort(self, failure: BaseException) -> None:
        if self._upload is not None:
            # Who has waited long enough for a server that is gone does not wait as long again.
            is_gone = isinstance(failure, StoreUnreachableError)
            self._upload.abort(tries_max=1 if is_gone else BUSY_TRIES)

    @property
    def _where(self) -> str:
        return self._bucket.where(self._key)


class StreamWriter(_NewObject):
    """One PUT while all fits in one part, else a multipart upload; see `Storage.create_stream`."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        super().__init__(bucket, key)
        self._part = bytearray()
        self._part_bytes = bucket.settings.part_bytes
        self._sent_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`; see `ObjectWriter.write`."""
        view = memoryview(data)
        if view.nbytes == 0:
            return
        view = view.cast("B")
        while view:
            # A full part waits for what follows, so that the last one is never empty.
            if len(self._part) == self._part_bytes:
                self._send_part()
            room = self._part_bytes - len(self._part)
            self._part += view[:room]
            view = view[room:]

    def _commit(self) -> str:
        if self._upload is None:
            return self._bucket.put_new(
                self._key, Body([memoryview(self._part)]), **self._bucket.wishes()
            )
        return self._complete(self._send_part())

    def _send_part(self) -> Upload:
        if self._upload is None:
            self._upload = Upload(self._bucket, self._key)
        part, self._part = self._part, bytearray()
        self._upload.send(self._upload.num_parts + 1, Body([memoryview(part)]))
        self._sent_bytes += len(part)
        first_bytes = self._bucket.settings.part_bytes
        self._part_bytes = part_bytes_after(self._sent_bytes, first_bytes=first_bytes)
        return self._upload


class PartsWriter(_NewObject):
    """Parts as they lie in memory, in any order; see `Storage.create_parts`.

    An object smaller than a part that others follow is copied, and stored by one PUT at the end.
    """

    def __init__(self, bucket: Bucket, key: str, *, num_bytes: int) -> None:
        super().__init__(bucket, key)
        self._num_bytes = num_bytes
        self._spans: dict[int, tuple[int, int]] = {}  # number -> begin and end of its part
        self._whole = Body([])

    def __enter__(self) -> Self:
        super().__enter__()
        if self._num_bytes >= MIN_PART_BYTES:
            self._upload = Upload(self._bucket, self._key)
        return self

    def put(self, part: Part) -> None:
        """Send one part from where it lies; see `PartWriter.put`."""
        end = part.offset + part.num_bytes
        if not 1 <= part.number <= PARTS_MAX or end > self._num_bytes:
            raise StorageError(
                f"{self._where}: part {part.number}, bytes {part.offset} to {end}: expected 1 to "
                f"{PARTS_MAX} parts of {self._num_bytes} bytes in all; nothing will be stored"
            )
        if self._upload is None:
            self._whole = Body([memoryview(b"".join(part.buffers))], part.sha256)
        else:
            self._upload.send(part.number, Body(part.buffers, part.sha256))
        self._spans[part.number] = part.offset, end

    def _commit(self) -> str:
        self._check_spans()
        if self._upload is None:
            return self._bucket.put_new(self._key, self._whole, **self._bucket.wishes())
        return self._complete(self._upload)

    def _check_spans(self) -> None:
        """Refuse an object with a gap, an overlap, or another size than was said."""
        begins = 0
        for number in range(1, len(self._spans) + 1):
            begin, end = self._spans.get(number, (-1, -1))
            is_last = number == len(self._spans)
            if begin != begins or (end - begin < MIN_PART_BYTES and not is_last):
                raise StorageError(
                    f"{self._where}: part {number} of {len(self._spans)}: expected it from byte "
                    f"{begins}, of {MIN_PART_BYTES} bytes or more; got it from {begin} to {end}"
                )
            begins = end
        if begins != self._num_bytes:
            raise StorageError(
                f"{self._where}: expected parts of {self._num_bytes} bytes in all, got {begins}; "
                "nothing was stored"
            )
