"""Single requests to one prefix of one bucket, in our words and with our errors.

Every request is sent a bounded number of times, with growing pauses and jitter between. Every
object carries a token of its writer: an answer can get lost and its request be sent again, and a
refusal that meets our own token is then success.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from strongroom.errors import ConflictError, StorageError, StoreUnreachableError
from strongroom.storage.s3_errors import code_of, status_of, storage_error, tries_for
from strongroom.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TOKEN = "strongroom-writer"  # noqa: S105 -- the name of a metadata field, not a secret
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 3.0


class Bucket:
    """One prefix of one bucket; keys are relative to the prefix. Threads may share it."""

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        config = Config(
            connect_timeout=settings.connect_timeout_s,
            read_timeout=settings.read_timeout_s,
            retries={"total_max_attempts": 1, "mode": "standard"},  # `_send` tries again
            request_checksum_calculation=settings.checksums,
            response_checksum_validation=settings.checksums,
            s3={"addressing_style": "path" if settings.path_style else "auto"},
        )
        try:
            session = boto3.session.Session(region_name=settings.region)
            self.client = cast(
                "S3Client",
                session.client("s3", endpoint_url=settings.endpoint_url, config=config),
            )
        except BotoCoreError as error:
            raise self._error(error, "connecting", "", tries=1) from error

    def where(self, key: str) -> str:
        """Return the URL of `key`, for messages."""
        return f"s3://{self.settings.bucket}/{self._full(key)}"

    def put_new(self, key: str, data: bytes) -> None:
        """Store an object unless one exists, in which case raise ConflictError."""
        token = uuid4().hex
        request = partial(
            self.client.put_object,
            **self._place(key),
            Body=data,
            IfNoneMatch="*",
            Metadata={_TOKEN: token},
        )
        with self._unless_ours(key, token):
            self._send("PutObject", key, request)

    def put(self, key: str, data: bytes) -> None:
        """Store an object whether or not one exists."""
        self._send("PutObject", key, partial(self.client.put_object, **self._place(key), Body=data))

    def get(self, key: str, offset: int, num_bytes: int | None) -> bytes | None:
        """Return what there is of the span asked for; None where nothing stands at `offset`."""
        last = "" if num_bytes is None else offset + num_bytes - 1
        place = self._place(key)
        ranged = bool(offset) or num_bytes is not None
        if ranged:
            place["Range"] = f"bytes={offset}-{last}"

        def request() -> bytes | None:
            try:
                answer = self.client.get_object(**place)
            except ClientError as error:
                if code_of(error) == "InvalidRange":
                    return None
                raise
            if ranged and not answer.get("ContentRange", "").startswith(f"bytes {offset}-"):
                raise StorageError(
                    f"{self.where(key)}: expected the bytes from {offset}, got the range "
                    f"{answer.get('ContentRange')!r}; this endpoint ignores Range, use another"
                )
            return answer["Body"].read()

        return self._send("GetObject", key, request)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None where there is none."""
        head = self._head(key)
        return None if head is None else int(head["ContentLength"])

    def pages(self, folder: str, **options: str) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list of all under exactly `folder/`, keys in full."""
        parameters: dict[str, Any] = {
            "Bucket": self.settings.bucket,
            "Prefix": self._full(f"{folder}/" if folder else ""),
            **options,
        }
        more = True
        while more:
            request = partial(self.client.list_objects_v2, **parameters)
            page = cast("dict[str, Any]", self._send("ListObjectsV2", folder, request))
            yield page
            more = page.get("IsTruncated", False)
            parameters["ContinuationToken"] = page.get("NextContinuationToken")
            if more and not parameters["ContinuationToken"]:
                raise StorageError(
                    f"{self.where(folder)}: expected a list with a token for its next page, got "
                    "none; this endpoint cuts lists short, use another"
                )

    def relative(self, full_key: str) -> str:
        """Return a full key of a list relative to the prefix."""
        return full_key[len(self._full("")) :]

    def delete(self, key: str) -> None:
        """Delete one object, if it is there."""
        self._send("DeleteObject", key, partial(self.client.delete_object, **self._place(key)))

    def begin_upload(self, key: str, token: str) -> str:
        """Begin a multipart upload by the writer that `token` names; return the upload's id."""
        request = partial(
            self.client.create_multipart_upload, **self._place(key), Metadata={_TOKEN: token}
        )
        return self._send("CreateMultipartUpload", key, request)["UploadId"]

    def send_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        """Send part `number`, from 1, of an upload; return its ETag."""
        request = partial(
            self.client.upload_part,
            **self._place(key),
            UploadId=upload_id,
            PartNumber=number,
            Body=data,
        )
        return self._send("UploadPart", key, request)["ETag"]

    def complete_upload(self, key: str, upload_id: str, etags: list[str], token: str) -> None:
        """Make an upload the object at `key`, unless one exists: then raise ConflictError."""
        request = partial(
            self.client.complete_multipart_upload,
            **self._place(key),
            UploadId=upload_id,
            IfNoneMatch="*",
            MultipartUpload={
                "Parts": [
                    {"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)
                ]
            },
        )
        with self._unless_ours(key, token):
            self._send("CompleteMultipartUpload", key, request)

    def uploads(self) -> list[dict[str, Any]]:
        """Return every multipart upload under the prefix that is neither complete nor aborted."""
        parameters: dict[str, Any] = {"Bucket": self.settings.bucket, "Prefix": self._full("")}
        uploads: list[dict[str, Any]] = []
        while True:
            request = partial(self.client.list_multipart_uploads, **parameters)
            page = cast("dict[str, Any]", self._send("ListMultipartUploads", "", request))
            uploads += page.get("Uploads", [])
            if not page.get("IsTruncated"):
                return uploads
            parameters["KeyMarker"] = page["NextKeyMarker"]
            parameters["UploadIdMarker"] = page["NextUploadIdMarker"]

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Discard an upload and its parts; one that is gone is not an error."""

        def request() -> None:
            try:
                self.client.abort_multipart_upload(**self._place(key), UploadId=upload_id)
            except ClientError as error:
                if code_of(error) != "NoSuchUpload":
                    raise

        self._send("AbortMultipartUpload", key, request)

    def _head(self, key: str) -> Any:  # noqa: ANN401 -- boto's own answer, or None
        def request() -> object:
            try:
                return self.client.head_object(**self._place(key))
            except ClientError as error:
                if status_of(error) == 404:  # noqa: PLR2004 -- HTTP's own number
                    return None
                raise

        return self._send("HeadObject", key, request)

    def _send(self, operation: str, key: str, request: Callable[[], T]) -> T:
        """Send a request, again after a passing failure, and raise our own errors."""
        tries = 0
        while True:
            tries += 1
            try:
                return request()
            except (BotoCoreError, ClientError) as error:
                if tries >= tries_for(error):
                    raise self._error(error, operation, key, tries=tries) from error
                logger.info(
                    "storage request to be sent again operation=%s key=%s tries=%d cause=%s",
                    operation,
                    self.where(key),
                    tries,
                    error,
                )
            longest_s = min(_FIRST_PAUSE_S * 2**tries, _LONGEST_PAUSE_S)
            time.sleep(random.uniform(0, longest_s))  # noqa: S311 -- jitter, not a secret

    @contextmanager
    def _unless_ours(self, key: str, token: str) -> Iterator[None]:
        """Let a refusal pass as success if the object that stands there is the one we wrote."""
        try:
            yield
        except (ConflictError, StorageError) as error:
            if isinstance(error, StoreUnreachableError):
                raise
            head = self._head(key)
            if head is None or head["Metadata"].get(_TOKEN) != token:
                raise

    def _error(
        self, error: BotoCoreError | ClientError, operation: str, key: str, *, tries: int
    ) -> Exception:
        return storage_error(
            error,
            operation=operation,
            where=self.where(key),
            tries=tries,
            trailers=self.settings.checksums == "when_supported",
        )

    def _full(self, key: str) -> str:
        return f"{self.settings.prefix}/{key}" if self.settings.prefix else key

    def _place(self, key: str) -> dict[str, Any]:
        return {"Bucket": self.settings.bucket, "Key": self._full(key)}
