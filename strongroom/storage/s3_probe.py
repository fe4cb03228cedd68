"""What an S3 store can do, tried out when a store is made in it, with a few objects deleted after.

What was seen is true or false, and None where these credentials may not ask. What a store must be
able to do, and these credentials must be allowed to, raises its error here, before any checkpoint
depends on it: an upload in two parts above all, which a key policy can refuse where it lets small
objects pass (report aws/aws-cdk#8947).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from botocore.exceptions import ClientError

from strongroom.canonical import JsonObject
from strongroom.errors import (
    ConflictError,
    StorageDeniedError,
    StorageError,
    StoreUnreachableError,
)
from strongroom.storage.s3_body import Body
from strongroom.storage.s3_bucket import Bucket, crc32_of
from strongroom.storage.s3_errors import code_of
from strongroom.storage.s3_settings import MIN_PART_BYTES
from strongroom.storage.s3_upload import Upload

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

STORAGE_CLASSES = ("STANDARD_IA", "GLACIER_IR", "GLACIER", "DEEP_ARCHIVE")
"""Those that tiers may use."""


def probe(bucket: Bucket) -> JsonObject:
    """Return the capabilities of a store at this bucket and prefix.

    Keys: `conditional_complete`, `checksums_kept`, `versioning`, `object_lock`, `restore`: whether
    it does that; `storage_classes`: those that it takes and reports back.

    Raises:
        StorageDeniedError: a right to write is missing; the message names it.
        StorageError: it overwrites where it is told to create, cannot store an object in two parts,
            or not in the storage class or with the lock that its URL asks for.
    """
    trial = _Trial(bucket)
    try:
        trial.check_creates()
        conditional_complete = trial.stores_parts()
        object_lock = trial.has_object_lock()
        if bucket.settings.lock_mode and object_lock is False:
            raise StorageError(
                f"{bucket.where('')}: lock_mode={bucket.settings.lock_mode}: expected a bucket "
                "made with object lock, got one without; make another, or leave lock_mode out"
            )
        return {
            "conditional_complete": conditional_complete,
            "checksums_kept": trial.keeps_checksums(),
            "versioning": trial.has_versions(),
            "object_lock": object_lock,
            "restore": trial.restores(),
            "storage_classes": [name for name in STORAGE_CLASSES if trial.takes_class(name)],
        }
    finally:
        trial.tidy_up()


class _Trial:
    """The objects of one probe, in a folder of their own."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._folder = f".probe-{uuid4().hex}"
        self._made: list[tuple[str, str]] = []  # key and version

    def check_creates(self) -> None:
        """Refuse an endpoint that lets a second create of one key pass: it loses checkpoints."""
        key = f"{self._folder}/create"
        self._made.append((key, self._bucket.put_new(key, _byte())))
        try:
            self._made.append((key, self._bucket.put_new(key, _byte())))
        except ConflictError:
            return
        raise StorageError(
            f"{self._bucket.where(key)}: expected a second create of one key to be refused, but it "
            "overwrote the object: this endpoint ignores 'If-None-Match: *', as Ceph 16 does in a "
            "bucket with versions, and cannot hold a store; use another bucket or endpoint"
        )

    def stores_parts(self) -> bool:
        """Upload in two parts; return whether a second upload to that key is refused."""
        key = f"{self._folder}/parts"
        self._store_parts(key, bytes(MIN_PART_BYTES), b"\0")
        if self._bucket.size(key) != MIN_PART_BYTES + 1:
            raise StorageError(
                f"{self._bucket.where(key)}: expected an object of {MIN_PART_BYTES + 1} bytes, "
                f"uploaded in two parts, got one of {self._bucket.size(key)}; use another endpoint"
            )
        try:
            self._store_parts(key, b"\0")
        except ConflictError:
            return True
        return False

    def has_object_lock(self) -> bool | None:
        """Whether objects of this bucket can be locked."""
        name = self._bucket.settings.bucket
        answer = self._ask(
            "GetObjectLockConfiguration",
            lambda client: client.get_object_lock_configuration(Bucket=name)[
                "ObjectLockConfiguration"
            ].get("ObjectLockEnabled"),
        )
        return None if answer is None else answer == "Enabled"

    def has_versions(self) -> bool | None:
        """Whether this bucket keeps versions: deleting frees nothing then."""
        name = self._bucket.settings.bucket
        answer = self._ask(
            "GetBucketVersioning",
            lambda client: client.get_bucket_versioning(Bucket=name).get("Status", "Disabled"),
        )
        return None if answer is None else answer == "Enabled"

    def keeps_checksums(self) -> bool:
        """Whether a CRC-32 that comes with an object is kept beside it."""
        key = f"{self._folder}/checksum"
        if not self._put(key, **crc32_of(_byte())):
            return False
        head = self._bucket.head(key, ChecksumMode="ENABLED")
        return head is not None and head.get("ChecksumCRC32") == _byte().crc32()

    def restores(self) -> bool | None:
        """Whether objects can be brought back from an archive."""
        key = f"{self._folder}/restore"
        self._put(key)

        def request(client: S3Client) -> str:
            try:
                client.restore_object(**self._bucket.place(key), RestoreRequest={"Days": 1})
            except ClientError as error:
                if code_of(error) != "InvalidObjectState":  # it would, were this one archived
                    raise
            return "Enabled"

        answer = self._ask("RestoreObject", request)
        return None if answer is None else answer == "Enabled"

    def takes_class(self, name: str) -> bool:
        """Whether an object can be stored in this class."""
        key = f"{self._folder}/{name}"
        if not self._put(key, StorageClass=name):
            return False
        head = self._bucket.head(key)
        return head is not None and head.get("StorageClass") == name

    def tidy_up(self) -> None:
        """Delete what the probe stored; who may not delete is told, and nothing worse."""
        for key, version in self._made:
            try:
                self._delete(key, version)
            except StorageError as error:
                logger.warning(
                    "object of the probe left behind where=%s cause=%s",
                    self._bucket.where(key),
                    error,
                )

    def _delete(self, key: str, version: str) -> None:
        try:
            self._bucket.delete(key, version=version)
        except StorageDeniedError:  # versions are kept from these credentials, or locked
            self._bucket.delete(key)

    def _store_parts(self, key: str, *parts: bytes) -> None:
        upload = Upload(self._bucket, key)
        try:
            for number, part in enumerate(parts, 1):
                upload.send(number, Body([memoryview(part)]))
            self._made.append((key, upload.complete()))
        except BaseException:
            upload.abort()
            raise

    def _put(self, key: str, **wishes: str) -> bool:
        """Store one byte; return whether the store took it, wishes and all."""
        try:
            self._made.append((key, self._bucket.put_new(key, _byte(), **wishes)))
        except StoreUnreachableError:
            raise
        except StorageError as error:
            logger.info("probe refused where=%s wishes=%s cause=%s", key, wishes, error)
            return False
        return True

    def _ask(self, operation: str, request: Callable[[S3Client], str | None]) -> str | None:
        """Return an answer; '' where the store has none, None where one may not ask."""
        try:
            return self._bucket.send(operation, "", request) or ""
        except StorageDeniedError:
            return None
        except StoreUnreachableError:
            raise
        except StorageError:
            return ""


def _byte() -> Body:
    return Body([memoryview(b"\0")])
