"""Single requests to one prefix of one bucket, in our words and with our errors.

Every request is sent a bounded number of times, with growing pauses and jitter between, signed anew
each time; credentials that the server calls expired are read anew, once. Every object carries a
token of its writer: an answer can get lost and its request be sent again, and a refusal that meets
our own token is then success.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4

from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError

from strongroom.errors import ConflictError, StorageError, StoreUnreachableError
from strongroom.storage.s3_body import Body
from strongroom.storage.s3_client import make_client
from strongroom.storage.s3_errors import (
    BUSY_TRIES,
    code_of,
    has_expired,
    status_of,
    storage_error,
    tries_for,
)
from strongroom.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TOKEN = "strongroom-writer"  # noqa: S105 -- the name of a metadata field, not a secret
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 3.0
DELETE_MAX = 1000
"""Most keys of one bulk delete: S3's own limit."""


class Bucket:
    """One prefix of one bucket; keys are relative to the prefix. Threads may share it."""

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        self._renewal = Lock()
        try:
            self.client, self.connections = make_client(settings)
        except BotoCoreError as error:
            raise self._error(error, "connecting", "", tries=1) from error

    def where(self, key: str) -> str:
        """Return the URL of `key`, for messages."""
        return f"s3://{self.settings.bucket}/{self._full(key)}"

    def put_new(self, key: str, body: Body, **wishes: str) -> str:
        """Store an object unless one exists, in which case raise ConflictError.

        Args:
            key: where.
            body: all of it.
            wishes: more of what boto3's `put_object` takes, such as `StorageClass`.

        Returns:
            Its version id, '' in a bucket without versions.
        """
        token = uuid4().hex
        place = {**self.place(key), **self.new_object(token), **self.sums(body), **wishes}
        with self.unless_ours(key, token):
            answer = self.send(
                "PutObject",
                key,
                lambda client: client.put_object(**place, Body=body.rewound(), IfNoneMatch="*"),
            )
            return answer.get("VersionId", "")
        return ""

    def put(self, key: str, body: Body) -> None:
        """Store an object whether or not one exists."""
        place = {**self.place(key), **self.new_object(uuid4().hex), **self.sums(body)}
        self.send("PutObject", key, lambda client: client.put_object(**place, Body=body.rewound()))

    def get(self, key: str, offset: int, num_bytes: int | None) -> bytes | None:
        """Return what there is of the span asked for; None where nothing stands at `offset`."""

        def request(client: S3Client) -> bytes | None:
            answer = self._span(client, key, offset, num_bytes)
            return None if answer is None else cast("bytes", answer["Body"].read())

        return self.send("GetObject", key, request)

    def fill(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        """Fill `buffers` from `offset`, if there are bytes enough; return how many there are."""
        wanted = sum(buffer.nbytes for buffer in buffers)

        def request(client: S3Client) -> int:
            answer = self._span(client, key, offset, wanted)
            if answer is None:
                return 0
            num_bytes = int(answer.get("ContentLength", wanted))
            with closing(answer["Body"]) as body:
                if num_bytes == wanted:
                    for buffer in buffers:
                        _read_into(body, buffer)
            return num_bytes

        return self.send("GetObject", key, request)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None where there is none."""
        head = self.head(key)
        return None if head is None else int(head["ContentLength"])

    def head(self, key: str, **wishes: str) -> Mapping[str, Any] | None:
        """Return what S3 says of an object, or None where there is none."""

        def request(client: S3Client) -> Mapping[str, Any] | None:
            try:
                return client.head_object(**self.place(key), **wishes)  # type: ignore[arg-type]
            except ClientError as error:
                if status_of(error) == 404:  # noqa: PLR2004 -- HTTP's own number
                    return None
                raise

        return self.send("HeadObject", key, request)

    def pages(self, folder: str, **options: str) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list of all under exactly `folder/`, keys in full."""
        parameters: dict[str, Any] = {
            "Bucket": self.settings.bucket,
            "Prefix": self._full(f"{folder}/" if folder else ""),
            **options,
        }
        more: bool | None = True
        while more:
            page = cast(
                "dict[str, Any]",
                self.send(
                    "ListObjectsV2", folder, lambda client: client.list_objects_v2(**parameters)
                ),
            )
            more = page.get("IsTruncated")
            parameters["ContinuationToken"] = page.get("NextContinuationToken")
            if more is None or (more and not parameters["ContinuationToken"]):
                raise self._cut_short(folder)
            yield page

    def relative(self, full_key: str) -> str:
        """Return a full key of a list relative to the prefix."""
        return full_key[len(self._full("")) :]

    def delete(self, key: str, *, version: str = "") -> None:
        """Delete one object, or one version of it, if it is there."""
        place = {**self.place(key), **({"VersionId": version} if version else {})}
        self.send("DeleteObject", key, lambda client: client.delete_object(**place))

    def delete_many(self, keys: Sequence[str]) -> dict[str, StorageError]:
        """Delete up to `DELETE_MAX` objects at once; return those that stayed, with the reason.

        Raises:
            StorageError: the request was refused; see `knows_not`.
        """
        objects = [{"Key": self._full(key)} for key in keys]
        answer = self.send(
            "DeleteObjects",
            "",
            lambda client: client.delete_objects(
                Bucket=self.settings.bucket,
                Delete={"Objects": objects, "Quiet": True},  # type: ignore[typeddict-item]
            ),
        )
        stayed: dict[str, StorageError] = {}
        for error in answer.get("Errors", []):
            key = self.relative(error.get("Key", ""))
            refusal = ClientError({"Error": error, "ResponseMetadata": {}}, "DeleteObjects")  # type: ignore[typeddict-item]
            stayed[key] = cast("StorageError", self._error(refusal, "DeleteObjects", key, tries=1))
        return stayed

    def uploads(self) -> Iterator[dict[str, Any]]:
        """Yield every multipart upload under the prefix that is neither complete nor aborted."""
        parameters: dict[str, Any] = {"Bucket": self.settings.bucket, "Prefix": self._full("")}
        more: bool | None = True
        while more:
            page = cast(
                "dict[str, Any]",
                self.send(
                    "ListMultipartUploads",
                    "",
                    lambda client: client.list_multipart_uploads(**parameters),
                ),
            )
            more = page.get("IsTruncated")
            if more is None or (more and not page.get("NextKeyMarker")):
                raise self._cut_short("")
            yield from page.get("Uploads", [])
            parameters["KeyMarker"] = page.get("NextKeyMarker")
            parameters["UploadIdMarker"] = page.get("NextUploadIdMarker")

    def lock(self, key: str, version: str, until: datetime) -> None:
        """Keep an object from being deleted until then, in the mode of the settings."""
        place = {**self.place(key), **({"VersionId": version} if version else {})}
        retention = {"Mode": self.settings.lock_mode, "RetainUntilDate": until}
        self.send(
            "PutObjectRetention",
            key,
            lambda client: client.put_object_retention(**place, Retention=retention),  # type: ignore[arg-type]
        )

    def send(
        self,
        operation: str,
        key: str,
        request: Callable[[S3Client], T],
        *,
        tries_max: int = BUSY_TRIES,
    ) -> T:
        """Send a request, again after a passing failure, and raise our own errors.

        Args:
            operation: S3's name of it.
            key: of the object it is about, for messages.
            request: sends it by the client given.
            tries_max: most tries; fewer where an error says so.
        """
        tries, renewed = 0, False
        while True:
            tries += 1
            client = self.client
            try:
                return request(client)
            except (BotoCoreError, ClientError) as error:
                if has_expired(error) and not renewed:
                    renewed = True
                    self._renew(client)
                    continue
                useful = tries_for(error, read_timeout_s=self.settings.read_timeout_s)
                if tries >= min(useful, tries_max):
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
    def unless_ours(self, key: str, token: str) -> Iterator[None]:
        """Let a refusal pass as success if the object that stands there is the one we wrote."""
        try:
            yield
        except (ConflictError, StorageError) as error:
            if isinstance(error, StoreUnreachableError):
                raise
            head = self.head(key)
            if head is None or head["Metadata"].get(_TOKEN) != token:
                raise

    @property
    def sends_checksums(self) -> bool:
        """Whether every body goes with a CRC-32 for the server to check and keep."""
        return self.settings.checksums == "when_supported"

    def wishes(self) -> dict[str, str]:
        """Return what is asked for large objects beyond what is asked for all."""
        storage_class = self.settings.storage_class
        return {} if storage_class is None else {"StorageClass": storage_class}

    def sums(self, body: Body) -> dict[str, str]:
        """Return the checksums to be sent with a body."""
        return crc32_of(body) if self.sends_checksums else {}

    def new_object(self, token: str) -> dict[str, Any]:
        """Return what is said of every new object: its writer, and how it is encrypted."""
        said = {
            "ServerSideEncryption": self.settings.encryption,
            "SSEKMSKeyId": self.settings.kms_key_id,
        }
        return {
            "Metadata": {_TOKEN: token},
            **{name: value for name, value in said.items() if value is not None},
        }

    def place(self, key: str) -> dict[str, Any]:
        """Return how boto3 is told of `key`."""
        return {"Bucket": self.settings.bucket, "Key": self._full(key)}

    def _renew(self, expired: S3Client) -> None:
        """Read credentials anew, unless another thread has done so since `expired` was made."""
        with self._renewal:
            if self.client is expired:
                self.client, self.connections = make_client(self.settings)
                logger.info("storage credentials read anew url=%s", self.where(""))

    def _span(
        self, client: S3Client, key: str, offset: int, num_bytes: int | None
    ) -> Mapping[str, Any] | None:
        """Ask for a span; None where nothing stands at `offset`."""
        place = self.place(key)
        if offset or num_bytes is not None:
            last = "" if num_bytes is None else offset + num_bytes - 1
            place["Range"] = f"bytes={offset}-{last}"
        try:
            answer = client.get_object(**place)
        except ClientError as error:
            if code_of(error) == "InvalidRange":
                return None
            raise
        if "Range" in place and not _is_range(answer.get("ContentRange", ""), offset, num_bytes):
            answer["Body"].close()
            raise StorageError(
                f"{self.where(key)}: expected {place['Range']}, got HTTP "
                f"{answer['ResponseMetadata']['HTTPStatusCode']} with the range "
                f"{answer.get('ContentRange')!r}; this endpoint ignores Range, use another"
            )
        return answer

    def _cut_short(self, folder: str) -> StorageError:
        return StorageError(
            f"{self.where(folder)}: expected a list that is whole or says how to go on, got "
            "neither; this endpoint cuts lists short, use another"
        )

    def _error(
        self, error: BotoCoreError | ClientError, operation: str, key: str, *, tries: int
    ) -> Exception:
        return storage_error(
            error,
            operation=operation,
            where=self.where(key),
            tries=tries,
            hint=self._hint,
        )

    @property
    def _hint(self) -> str:
        """Say what the URL asks of new objects, which some stores do not know."""
        asked = [
            f"{name}={value}"
            for name in ("storage_class", "encryption", "kms_key_id")
            if (value := getattr(self.settings, name)) is not None
        ]
        if self.sends_checksums:
            asked.append("checksums=when_supported")
        return f"leave out of its URL what it does not know: {', '.join(asked)}" if asked else ""

    def _full(self, key: str) -> str:
        return f"{self.settings.prefix}/{key}" if self.settings.prefix else key


def crc32_of(body: Body) -> dict[str, str]:
    """Return how boto3 is told of a body's CRC-32."""
    return {"ChecksumAlgorithm": "CRC32", "ChecksumCRC32": body.crc32()}


def _read_into(body: StreamingBody, buffer: memoryview) -> None:
    view, done = buffer.cast("B") if buffer.nbytes else buffer, 0
    while done < buffer.nbytes:
        num_bytes = body.readinto(view[done:])  # type: ignore[arg-type]  # any buffer does
        if num_bytes == 0:
            raise IncompleteReadError(actual_bytes=done, expected_bytes=buffer.nbytes)
        done += num_bytes


def _is_range(content_range: str, offset: int, num_bytes: int | None) -> bool:
    """Whether an answer's range begins where it was asked to and ends no later."""
    found = re.match(r"bytes (\d+)-(\d+)/", content_range)
    if found is None or int(found[1]) != offset:
        return False
    return num_bytes is None or int(found[2]) < offset + num_bytes
