"""Storage in an S3 bucket, Amazon's or any other that speaks S3.

Invariants:
1. An object is created by a conditional request (`If-None-Match: *`), so of many writers exactly
   one wins. Ceph 16 ignores the header when a multipart upload is completed; therefore existence is
   looked up just before, too. `create_store` refuses endpoints that ignore it altogether.
2. A stream that fails aborts its upload; what a killed process leaves, `discard_unfinished` aborts.
   Neither was ever visible.
3. The signature of every request covers the SHA-256 of its body, over TLS too: the server refuses
   bytes that are not those that were hashed.
4. What S3 calls ETag or checksum is never taken for the SHA-256 of an object: for a multipart
   upload it is a digest of digests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

from strongroom.canonical import JsonObject
from strongroom.errors import (
    IntegrityError,
    ObjectMissingError,
    StorageDeniedError,
    StorageError,
)
from strongroom.storage.base import ObjectInfo, ObjectWriter, PartWriter, check_key
from strongroom.storage.s3_body import Body
from strongroom.storage.s3_bucket import DELETE_MAX, Bucket
from strongroom.storage.s3_errors import knows_not
from strongroom.storage.s3_probe import probe
from strongroom.storage.s3_settings import MIN_PART_BYTES, S3Settings
from strongroom.storage.s3_upload import abort_upload
from strongroom.storage.s3_writers import PartsWriter, StreamWriter

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
        self._deletes_many = True

    @property
    def url(self) -> str:
        """`s3://bucket/prefix?...`, without secrets."""
        return self.settings.to_url()

    def create(self, key: str, data: bytes) -> None:
        """Store `data` at a new key by one conditional PUT; see `Storage.create`."""
        self._bucket.put_new(check_key(key), Body([memoryview(data)]))

    def create_stream(self, key: str) -> ObjectWriter:
        """Open a writer that uploads part by part; see `Storage.create_stream`."""
        return StreamWriter(self._bucket, check_key(key))

    @property
    def part_min_bytes(self) -> int:
        """5 MiB: S3's own least size of a part that others follow."""
        return MIN_PART_BYTES

    def create_parts(self, key: str, *, num_bytes: int) -> PartWriter:
        """Open a writer that uploads parts as they lie in memory; see `Storage.create_parts`."""
        return PartsWriter(self._bucket, check_key(key), num_bytes=num_bytes)

    def replace(self, key: str, data: bytes) -> None:
        """Store `data` at `key` whether or not it exists; see `Storage.replace`."""
        self._bucket.put(check_key(key), Body([memoryview(data)]))

    def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
        """Return bytes of an object; see `Storage.read`."""
        data = self._bucket.get(check_key(key), offset, num_bytes) if num_bytes != 0 else None
        if data is None or (num_bytes is not None and len(data) < num_bytes):
            self._check_span(key, offset, num_bytes, got=len(data or b""))
        return data or b""

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill `buffers` from the connection, uncopied; see `Storage.read_into`."""
        wanted = sum(buffer.nbytes for buffer in buffers)
        got = self._bucket.fill(check_key(key), offset, buffers) if wanted else 0
        if got < wanted or wanted == 0:
            self._check_span(key, offset, wanted, got=got)

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

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand a request where the store can; see `Storage.delete_many`."""
        left = iter(keys)
        faults: list[StorageError] = []
        while batch := [check_key(key) for key in islice(left, DELETE_MAX)]:
            faults += self._delete_batch(batch)
        if faults:
            denied = all(isinstance(fault, StorageDeniedError) for fault in faults)
            kind = StorageDeniedError if denied else StorageError
            raise kind("; ".join(str(fault) for fault in faults))

    def discard_unfinished(self, *, older_than_s: float) -> list[str]:
        """Abort the multipart uploads that killed writers left; return their keys.

        Args:
            older_than_s: spare an upload begun within this time: its writer may live.
        """
        newest = datetime.now(UTC) - timedelta(seconds=older_than_s)
        discarded = []
        for upload in list(self._bucket.uploads()):
            if upload["Initiated"] <= newest:
                key = self._bucket.relative(upload["Key"])
                abort_upload(self._bucket, key, upload["UploadId"])
                discarded.append(key)
        if discarded:
            logger.info("unfinished uploads aborted url=%s num=%d", self.url, len(discarded))
        return discarded

    def capabilities(self) -> JsonObject:
        """Try out what this store can do, and leave nothing behind; see `s3_probe`."""
        return probe(self._bucket)

    def _delete_batch(self, keys: list[str]) -> list[StorageError]:
        """Delete what can be deleted; return why the rest could not."""
        if self._deletes_many:
            try:
                stayed = self._bucket.delete_many(keys)
            except StorageError as error:
                if not knows_not(error):
                    raise
                self._deletes_many = False
                logger.info("bulk delete is not to be had url=%s cause=%s", self.url, error)
            else:
                # What was merely busy is asked for again, alone.
                busy = [key for key, fault in stayed.items() if fault.retryable]
                faults = [fault for fault in stayed.values() if not fault.retryable]
                return faults + self._delete_each(busy)
        return self._delete_each(keys)

    def _delete_each(self, keys: list[str]) -> list[StorageError]:
        faults = []
        for key in keys:
            try:
                self._bucket.delete(key)
            except StorageError as error:
                faults.append(error)
        return faults

    def _check_span(self, key: str, offset: int, num_bytes: int | None, *, got: int) -> None:
        """Refuse a span that does not stand in the object; it may be empty at the end."""
        size = self._bucket.size(key)
        if size is None:
            raise ObjectMissingError(f"{self._bucket.where(key)}: the storage holds no such object")
        if offset > size or got < (num_bytes or 0):
            raise IntegrityError(
                "object is too short",
                file=self._bucket.where(key),
                offset=offset,
                expected="more bytes" if num_bytes is None else f"{num_bytes} bytes",
                got=f"{got} of an object of {size} bytes",
            )
