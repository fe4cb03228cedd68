"""What S3 answers, in our words: which answers deserve another try, and which error each one is.

Pure: nothing here sends a request. Sources: Amazon's list of S3 error codes; the behaviour of
Ceph 16, moto 5 and rclone 1.75 as measured.
"""

from __future__ import annotations

from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError

from strongroom.errors import (
    ConflictError,
    IntegrityError,
    ObjectMissingError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
    StoreMissingError,
    StoreUnreachableError,
)

UNREACHABLE_TRIES = 2
"""With 5 s to connect, an endpoint that is not there is reported within about 11 s."""

BUSY_TRIES = 8
"""At 30 % of requests refused, 1 in 15,000 is refused 8 times."""

_BUSY_STATUS = {429, 500, 502, 503, 504}
_BUSY_CODES = {"ConditionalRequestConflict", "OperationAborted", "RequestTimeout"}

_Answer = tuple[type[StorageError | ConflictError], str]

_TAKEN: _Answer = (ConflictError, "expected no object of this key; one exists, left as it was")
_FULL: _Answer = (StorageFullError, "no space is left; free space or raise the quota, then retry")
_INVALID: _Answer = (StorageDeniedError, "these credentials are not valid; renew or correct them")
_DENIED: _Answer = (StorageDeniedError, "expected the right {right}; grant it to these credentials")

_BY_CODE: dict[str, _Answer] = {
    "ConditionalRequestConflict": (ConflictError, "others are creating the same key just now"),
    "ExpiredToken": _INVALID,
    "InsufficientStorage": _FULL,
    "InvalidAccessKeyId": _INVALID,
    "InvalidToken": _INVALID,
    "NoSuchBucket": (StoreMissingError, "there is no such bucket; check the URL, or make it"),
    "NoSuchKey": (ObjectMissingError, "the storage holds no such object"),
    "PreconditionFailed": _TAKEN,
    "QuotaExceeded": _FULL,
    "RequestTimeTooSkewed": (StorageDeniedError, "the clocks differ; set the one of this machine"),
    "SignatureDoesNotMatch": _INVALID,
    "XMinioStorageFull": _FULL,
}
_BY_STATUS: dict[int, _Answer] = {401: _DENIED, 403: _DENIED, 412: _TAKEN, 507: _FULL}
_BUSY: _Answer = (StoreUnreachableError, "the endpoint is there but does not serve; retry later")
_OTHER: _Answer = (StorageError, "see the documentation of this store")

_RIGHTS = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "DeleteObject": "s3:DeleteObject",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject (and s3:ListBucket, to be told that an object is absent)",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
}
_WRITES = {"CompleteMultipartUpload", "CreateMultipartUpload", "PutObject", "UploadPart"}
_TRAILER_STATUS = {400, 401, 403, 411, 501}
_CREDENTIAL_ERRORS = (
    boto.CredentialRetrievalError,
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.SSOError,
    boto.TokenRetrievalError,
)


def code_of(error: ClientError) -> str:
    """Return S3's error code; HEAD has no body, so there it is the status in digits."""
    return error.response.get("Error", {}).get("Code", "")


def status_of(error: ClientError) -> int:
    """Return the HTTP status."""
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def tries_for(error: BotoCoreError | ClientError) -> int:
    """Return how often a request that met `error` may be sent in all."""
    if isinstance(error, ClientError):
        return BUSY_TRIES if _is_busy(error) else 1
    if isinstance(error, boto.ConnectionError | boto.ReadTimeoutError):
        return UNREACHABLE_TRIES
    # The connection broke half way: reset, or fewer bytes than announced.
    return BUSY_TRIES if isinstance(error, boto.HTTPClientError | boto.IncompleteReadError) else 1


def storage_error(
    error: BotoCoreError | ClientError, *, operation: str, where: str, tries: int, trailers: bool
) -> StorageError | ConflictError | IntegrityError:
    """Return the error that a failed request means.

    Args:
        error: what botocore raised at the last try.
        operation: S3's name of the request, e.g. `PutObject`.
        where: URL of the object, or of the folder listed.
        tries: how often the request was sent.
        trailers: whether uploads carry checksum trailers, which some stores refuse.
    """
    if isinstance(error, ClientError):
        return _refused(error, operation=operation, where=where, tries=tries, trailers=trailers)
    if isinstance(error, _CREDENTIAL_ERRORS):
        return StorageDeniedError(
            f"{where}: {operation} was not sent: {error}; expected credentials in the environment "
            "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) or in ~/.aws"
        )
    if isinstance(error, boto.FlexibleChecksumError):
        return IntegrityError(
            "object differs from the checksum that S3 keeps of it",
            file=where,
            expected="that checksum",
            got=str(error),
        )
    if tries_for(error) > 1:
        return StoreUnreachableError(
            f"{where}: {operation} got no answer, tried {tries} times: {error}; check that the "
            "endpoint runs, that endpoint_url in the URL names it, and the network between"
        )
    return StorageError(f"{where}: {operation} could not be sent: {error}; check the URL")


def _refused(
    error: ClientError, *, operation: str, where: str, tries: int, trailers: bool
) -> StorageError | ConflictError:
    status, code = status_of(error), code_of(error)
    default = _BUSY if _is_busy(error) else _OTHER
    kind, advice = _BY_CODE.get(code) or _BY_STATUS.get(status) or default
    said = error.response.get("Error", {}).get("Message") or "no reason given"
    if trailers and operation in _WRITES and status in _TRAILER_STATUS:
        advice += "; or, if this store knows no checksum trailers, put checksums=when_required "
        advice += "in its URL"
    return kind(
        f"{where}: {operation}, tried {tries} times, was refused with {code} (HTTP {status}, "
        f"{said!r}): {advice.format(right=_RIGHTS.get(operation, 's3:PutObject'))}"
    )


def _is_busy(error: ClientError) -> bool:
    """Whether the refusal may pass by itself."""
    status, code = status_of(error), code_of(error)
    return code in _BUSY_CODES or (status in _BUSY_STATUS and code not in _BY_CODE)
