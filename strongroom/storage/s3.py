"""Storage in an S3 bucket, Amazon's or any other that speaks S3.

Invariants:
1. An object is created by a conditional request (`If-None-Match: *`), so of many writers exactly
   one wins. Ceph 16 ignores the header when a multipart upload is completed; therefore existence is
   looked up just before, too. `create_store` refuses endpoints that ignore it altogether.
2. A stream that fails aborts its upload; what a killed process leaves, `discard_unfinished` aborts.
   Neither was ever visible.
3. What S3 calls ETag or checksum is never taken for the SHA-256 of an object: for a multipart
   upload it is a digest of digests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self
from uuid import uuid4

from strongroom.errors import ConflictError, IntegrityError, ObjectMissingError, StorageError
from strongroom.storage.base import ObjectInfo, ObjectWriter, check_key
from strongroom.storage.s3_bucket import Bucket
from strongroom.storage.s3_settings import S3Settings

__all__ = ["S3Settings", "S3Storage"]

logger = logging.getLogger(__name__)


class S3Storage:
    """Objects under one prefix of one bucket; threads may share it, forked processes may not.

    Raises:
        StorageDeniedError: the profile chosen in the environment does not exist.
    """

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        self._bucket = Bucket(settings)

    @property
    def url(self) -> str:
        """`s3://bucket/prefix?...`, without secrets."""
        return self.settings.to_url()

    def create(self, key: str, data: bytes) -> None:
        """Store `data` at a new key by one conditional PUT; see `Storage.create`."""
        self._bucket.put_new(check_key(key), data)

    def create_stream(self, key: str) -> ObjectWriter:
        """Open a writer that uploads part by part; see `Storage.create_stream`."""
        return _Writer(self._bucket, check_key(key))

    def replace(self, key: str, data: bytes) -> None:
        """Store `data` at `key` whether or not it exists; see `Storage.replace`."""
        self._bucket.put(check_key(key), data)

    def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
        """Return bytes of an object; see `Storage.read`."""
        data = self._bucket.get(check_key(key), offset, num_bytes) if num_bytes != 0 else None
        if data is None or (num_bytes is not None and len(data) < num_bytes):
            size = self._bucket.size(key)
            if size is None:
                raise ObjectMissingError(
                    f"{self._bucket.where(key)}: the storage holds no such object"
                )
            if offset > size or len(data or b"") < (num_bytes or 0):
                raise IntegrityError(
                    "object is too short",
                    file=self._bucket.where(key),
                    offset=offset,
                    expected="more bytes" if num_bytes is None else f"{num_bytes} bytes",
                    got=f"{len(data or b'')} of an object of {size} bytes",
                )
        return data or b""

    def stat(self, key: str) -> ObjectInfo | None:
        """Return key and size, or None; see `Storage.stat`."""
        size = self._bucket.size(check_key(key))
        return None if size is None else ObjectInfo(key=key, num_bytes=size)

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield every object under exactly `folder/`, page by page; see `Storage.walk`."""
        pages = self._bucket.pages(check_key(folder) if folder else "")
        return (
            ObjectInfo(key=self._bucket.relative(found["Key"]), num_bytes=found["Size"])
            for page in pages
            for found in page.get("Contents", [])
        )

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly under `folder/`; see `Storage.folders`."""
        pages = self._bucket.pages(check_key(folder) if folder else "", Delimiter="/")
        return sorted(
            found["Prefix"].split("/")[-2]
            for page in pages
            for found in page.get("CommonPrefixes", [])
        )

    def delete(self, key: str) -> None:
        """Delete one object, by itself: not every store can delete many; see `Storage.delete`."""
        self._bucket.delete(check_key(key))

    def discard_unfinished(self, *, older_than_s: float) -> list[str]:
        """Abort the multipart uploads that killed writers left; return their keys.

        Args:
            older_than_s: spare an upload begun within this time: its writer may live.
        """
        newest = datetime.now(UTC) - timedelta(seconds=older_than_s)
        discarded = []
        for upload in self._bucket.uploads():
            if upload["Initiated"] <= newest:
                key = self._bucket.relative(upload["Key"])
                self._bucket.abort_upload(key, upload["UploadId"])
                discarded.append(key)
        if discarded:
            logger.info("unfinished uploads aborted url=%s num=%d", self.url, len(discarded))
        return discarded


class _Writer:
    """One new object: one PUT while it fits in one part, else a multipart upload."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._token = uuid4().hex
        self._part = bytearray()
        self._upload_id: str | None = None
        self._etags: list[str] = []

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        if view.nbytes == 0:
            return
        view = view.cast("B")
        part_bytes = self._bucket.settings.part_bytes
        while view:
            # A full part waits for what follows, so that the last one is never empty.
            if len(self._part) == part_bytes:
                self._send_part()
            room = part_bytes - len(self._part)
            self._part += view[:room]
            view = view[room:]

    def __enter__(self) -> Self:
        self._check_absent()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._abort()
            return
        try:
            self._commit()
        except BaseException:
            self._abort()
            raise

    def _commit(self) -> None:
        if self._upload_id is None:
            self._bucket.put_new(self._key, bytes(self._part))
            return
        upload_id = self._send_part()
        self._check_absent()
        self._bucket.complete_upload(self._key, upload_id, self._etags, self._token)

    def _send_part(self) -> str:
        if self._upload_id is None:
            self._upload_id = self._bucket.begin_upload(self._key, self._token)
        number = len(self._etags) + 1
        etag = self._bucket.send_part(self._key, self._upload_id, number, bytes(self._part))
        self._etags.append(etag)
        self._part.clear()
        return self._upload_id

    def _check_absent(self) -> None:
        if self._bucket.size(self._key) is not None:
            raise ConflictError(
                f"{self._bucket.where(self._key)}: expected no object of this key; one exists and "
                "was left as it was"
            )

    def _abort(self) -> None:
        if self._upload_id is None:
            return
        try:
            self._bucket.abort_upload(self._key, self._upload_id)
        except StorageError as error:
            # What led here is on its way up; this only leaves parts that nobody sees.
            logger.warning(
                "unfinished upload left behind; discard_unfinished aborts it where=%s "
                "upload_id=%s cause=%s",
                self._bucket.where(self._key),
                self._upload_id,
                error,
            )
