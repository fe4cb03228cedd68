"""One multipart upload: begun, sent part by part from any thread, then completed or aborted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import uuid4

from botocore.exceptions import ClientError

from strongroom.errors import StorageError
from strongroom.storage.s3_body import Body
from strongroom.storage.s3_bucket import Bucket
from strongroom.storage.s3_errors import BUSY_TRIES, code_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

logger = logging.getLogger(__name__)


class Upload:
    """An upload that is under way; what it sends is not seen before `complete`.

    Args:
        bucket: where to.
        key: of the object it is to become.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._token = uuid4().hex
        self._parts: dict[int, CompletedPartTypeDef] = {}
        place = {**bucket.place(key), **bucket.new_object(self._token), **bucket.wishes()}
        if bucket.sends_checksums:
            place["ChecksumAlgorithm"] = "CRC32"
        answer = bucket.send(
            "CreateMultipartUpload", key, lambda client: client.create_multipart_upload(**place)
        )
        self.upload_id = answer["UploadId"]

    @property
    def num_parts(self) -> int:
        """How many parts were sent."""
        return len(self._parts)

    def send(self, number: int, body: Body) -> None:
        """Send part `number`, from 1; one sent before is replaced."""
        sums = self._bucket.sums(body)
        place = {
            **self._bucket.place(self._key),
            "UploadId": self.upload_id,
            "PartNumber": number,
            **sums,
        }
        answer = self._bucket.send(
            "UploadPart", self._key, lambda client: client.upload_part(**place, Body=body.rewound())
        )
        part: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"]}
        if "ChecksumCRC32" in sums:
            part["ChecksumCRC32"] = sums["ChecksumCRC32"]
        self._parts[number] = part

    def complete(self) -> str:
        """Make the parts the object, unless one exists: then raise ConflictError.

        Returns:
            Its version id, '' in a bucket without versions.
        """
        parts = [self._parts[number] for number in sorted(self._parts)]
        with self._bucket.unless_ours(self._key, self._token):
            answer = self._bucket.send(
                "CompleteMultipartUpload",
                self._key,
                lambda client: client.complete_multipart_upload(
                    **self._bucket.place(self._key),
                    UploadId=self.upload_id,
                    IfNoneMatch="*",
                    MultipartUpload={"Parts": parts},
                ),
            )
            return answer.get("VersionId", "")
        return ""

    def abort(self, *, tries_max: int = BUSY_TRIES) -> None:
        """Discard the upload; where even that fails, `discard_unfinished` does it later."""
        try:
            abort_upload(self._bucket, self._key, self.upload_id, tries_max=tries_max)
        except StorageError as error:
            # What led here is on its way up; this only leaves parts that nobody sees.
            logger.warning(
                "unfinished upload left behind; discard_unfinished aborts it where=%s "
                "upload_id=%s cause=%s",
                self._bucket.where(self._key),
                self.upload_id,
                error,
            )


def abort_upload(bucket: Bucket, key: str, upload_id: str, *, tries_max: int = BUSY_TRIES) -> None:
    """Discard an upload and its parts; one that is gone is not an error."""

    def request(client: S3Client) -> None:
        try:
            client.abort_multipart_upload(**bucket.place(key), UploadId=upload_id)
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                raise

    bucket.send("AbortMultipartUpload", key, request, tries_max=tries_max)
