"""What S3 answers, in our words: which answers deserve another try, and which error each one is.

Pure: nothing here sends a request. Sources: Amazon's list of S3 error codes; the behaviour of
Ceph 16, moto 5 and rclone 1.75 as measured.
"""

from __future__ import annotations

import re
from typing import cast

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

BUSY_TRIES = 12
"""At 30 % of requests refused, 1 in 1.9 million is refused 12 times; it takes about 15 s."""

STALLED_S = 40.0
"""How long a request may stand still in all: 4 tries at 10 s each, more where each waits less."""

_BUSY_STATUS = {429, 500, 502, 503, 504}
_BUSY_CODES = {
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
}

_Answer = tuple[type[StorageError | ConflictError], str]

_TAKEN: _Answer = (ConflictError, "expected no object of this key; one exists, left as it was")
_FULL: _Answer = (StorageFullError, "no space is left; free space or raise the quota, then retry")
_INVALID: _Answer = (StorageDeniedError, "these credentials are not valid; renew or correct them")
_EXPIRED: _Answer = (
    StorageDeniedError,
    "these credentials have expired, and reading them anew gave none that hold; renew them",
)
_KMS: _Answer = (
    StorageDeniedError,
    "the KMS key cannot be used; enable it, and grant kms:GenerateDataKey and kms:Decrypt on it",
)
_ALTERED: _Answer = (
    StorageError,
    "the bytes that arrived are not those that were hashed; leave buffers alone until they are "
    "stored, and check memory and network",
)
_DENIED: _Answer = (StorageDeniedError, "expected the right {right}; grant it to these credentials")

_BY_CODE: dict[str, _Answer] = {
    "AccessDenied": _DENIED,
    "BadDigest": _ALTERED,
    "ConditionalRequestConflict": (ConflictError, "others are creating the same key just now"),
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "InsufficientStorage": _FULL,
    "InvalidAccessKeyId": _INVALID,
    "InvalidObjectState": (StorageError, "the object is archived; restore it first"),
    "InvalidStorageClass": (
        StorageError,
        "this store has no such storage class; correct storage_class in its URL",
    ),
    "InvalidToken": _INVALID,
    "KMS.DisabledException": _KMS,
    "KMS.KMSInvalidStateException": _KMS,
    "KMS.NotFoundException": _KMS,
    "NoSuchBucket": (StoreMissingError, "there is no such bucket; check the URL, or make it"),
    "NoSuchKey": (ObjectMissingError, "the storage holds no such object"),
    "NoSuchUpload": (
        StorageError,
        "the upload was discarded meanwhile; write the object again, and discard only what is old",
    ),
    "PreconditionFailed": _TAKEN,
    "QuotaExceeded": _FULL,
    "RequestTimeTooSkewed": (
        StorageDeniedError,
        "the clocks differ: the server's says {server_time}, ours {our_time}; set that of this "
        "machine",
    ),
    "SignatureDoesNotMatch": _INVALID,
    "XAmzContentSHA256Mismatch": _ALTERED,
    "XMinioStorageFull": _FULL,
}
_BY_STATUS: dict[int, _Answer] = {401: _DENIED, 403: _DENIED, 412: _TAKEN, 507: _FULL}
_BUSY: _Answer = (StoreUnreachableError, "the endpoint is there but does not serve; retry later")
_OTHER: _Answer = (StorageError, "see the documentation of this store")

_KMS_RIGHTS = "and, where a KMS key encrypts, kms:GenerateDataKey and kms:Decrypt on that key"
_RIGHTS = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "GetBucketVersioning": "s3:GetBucketVersioning",
    "GetObject": "s3:GetObject (and, where a KMS key encrypts, kms:Decrypt on that key)",
    "GetObjectLockConfiguration": "s3:GetBucketObjectLockConfiguration",
    "HeadObject": "s3:GetObject (and s3:ListBucket, to be told that an object is absent)",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
    "PutObjectRetention": "s3:PutObjectRetention",
    "RestoreObject": "s3:RestoreObject",
}
_WRITES = {"CompleteMultipartUpload", "CreateMultipartUpload", "PutObject", "UploadPart"}
_UNKNOWING_STATUS = {400, 401, 403, 411, 501}
_CREDENTIAL_ERRORS = (
    boto.CredentialRetrievalError,
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.SSOError,
    boto.TokenRetrievalError,
)
_NO_ANSWER = (boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError)


def code_of(error: ClientError) -> str:
    """Return S3's error code; HEAD has no body, so there it is the status in digits."""
    return error.response.get("Error", {}).get("Code", "")


def status_of(error: ClientError) -> int:
    """Return the HTTP status."""
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def has_expired(error: BotoCoreError | ClientError) -> bool:
    """Whether the server took the credentials for too old: newer ones may be had."""
    return isinstance(error, ClientError) and _BY_CODE.get(code_of(error)) is _EXPIRED


def knows_not(error: StorageError) -> bool:
    """Whether the server refused a kind of request as one that it does not know."""
    refusal = error.__cause__
    return (
        isinstance(refusal, ClientError)
        and code_of(refusal) not in _BY_CODE
        and status_of(refusal) in {400, 405, 411, 501}
    )


def tries_for(error: BotoCoreError | ClientError, *, read_timeout_s: float) -> int:
    """Return how often a request that met `error` may be sent in all."""
    if isinstance(error, ClientError):
        altered = _BY_CODE.get(code_of(error)) is _ALTERED  # once may be the network's fault
        return BUSY_TRIES if _is_busy(error) else 1 + altered
    if isinstance(error, boto.ReadTimeoutError):
        return max(2, min(BUSY_TRIES, int(STALLED_S / read_timeout_s)))
    if isinstance(error, boto.ConnectionError):
        return UNREACHABLE_TRIES
    # What else has no answer broke half way: reset, or fewer bytes than announced.
    return BUSY_TRIES if isinstance(error, _NO_ANSWER) else 1


def storage_error(
    error: BotoCoreError | ClientError, *, operation: str, where: str, tries: int, hint: str = ""
) -> StorageError | ConflictError | IntegrityError:
    """Return the error that a failed request means.

    Args:
        error: what botocore raised at the last try.
        operation: S3's name of the request, e.g. `PutObject`.
        where: URL of the object, or of the folder listed.
        tries: how often the request was sent.
        hint: what else to do where a request to write was not understood.
    """
    if isinstance(error, ClientError):
        return _refused(error, operation=operation, where=where, tries=tries, hint=hint)
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
    if isinstance(error, _NO_ANSWER):
        return StoreUnreachableError(
            f"{where}: {operation} got no answer, tried {tries} times: {error}; check that the "
            "endpoint runs, that endpoint_url in the URL names it, and the network between"
        )
    return StorageError(f"{where}: {operation} could not be sent: {error}; check the URL")


def _refused(
    error: ClientError, *, operation: str, where: str, tries: int, hint: str = ""
) -> StorageError | ConflictError:
    status, code = status_of(error), code_of(error)
    default = _BUSY if _is_busy(error) else _OTHER
    kind, advice = _BY_CODE.get(code) or _BY_STATUS.get(status) or default
    told = cast("dict[str, str]", error.response.get("Error", {}))
    said = told.get("Message") or "no reason given"
    if operation in _WRITES and "Content-MD5" in said:
        advice += "; put checksums=when_supported in its URL: it wants one of locked objects"
    elif hint and operation in _WRITES and status in _UNKNOWING_STATUS:
        advice += f"; or {hint}"
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    advice = advice.format(
        right=_right(operation, said),
        server_time=told.get("ServerTime") or headers.get("date") or "another time",
        our_time=told.get("RequestTime") or "one of its own",
    )
    return kind(
        f"{where}: {operation}, tried {tries} times, was refused with {code} (HTTP {status}, "
        f"{said!r}): {advice}"
    )


def _right(operation: str, said: str) -> str:
    """Name the right that is missing: Amazon's own word for it, or what the operation needs."""
    named = re.search(r"not authorized to perform: (\w+:\w+)", said)
    if named:
        return named[1]
    default = f"s3:PutObject ({_KMS_RIGHTS})" if operation in _WRITES else "of this operation"
    return _RIGHTS.get(operation, default)


def _is_busy(error: ClientError) -> bool:
    """Whether the refusal may pass by itself."""
    status, code = status_of(error), code_of(error)
    return code in _BUSY_CODES or (status in _BUSY_STATUS and code not in _BY_CODE)
