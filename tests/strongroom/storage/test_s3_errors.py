from __future__ import annotations

import pytest
from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError

from strongroom.errors import (
    ConflictError,
    ObjectMissingError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
    StoreMissingError,
    StoreUnreachableError,
)
from strongroom.storage.s3_errors import (
    BUSY_TRIES,
    UNREACHABLE_TRIES,
    knows_not,
    storage_error,
    tries_for,
)

WHERE = "s3://bucket/store/run.json"


def refusal(status: int, code: str) -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code, "Message": f"said {code}"},
            "ResponseMetadata": {"HTTPStatusCode": status},  # type: ignore[typeddict-item]
        },
        "PutObject",
    )


@pytest.mark.parametrize(
    ("status", "code", "kind", "tries", "next_step"),
    [
        (403, "AccessDenied", StorageDeniedError, 1, "grant it"),
        (401, "Unauthorized", StorageDeniedError, 1, "grant it"),
        (403, "InvalidAccessKeyId", StorageDeniedError, 1, "renew or correct"),
        (403, "SignatureDoesNotMatch", StorageDeniedError, 1, "renew or correct"),
        (400, "ExpiredToken", StorageDeniedError, 1, "have expired"),
        (
            400,
            "KMS.DisabledException",
            StorageDeniedError,
            1,
            "kms:GenerateDataKey and kms:Decrypt",
        ),
        (403, "RequestTimeTooSkewed", StorageDeniedError, 1, "clock"),
        (404, "NoSuchBucket", StoreMissingError, 1, "check the URL"),
        (404, "NoSuchKey", ObjectMissingError, 1, "no such object"),
        (404, "NoSuchUpload", StorageError, 1, "discarded meanwhile"),
        (403, "InvalidObjectState", StorageError, 1, "restore it first"),
        (400, "InvalidStorageClass", StorageError, 1, "correct storage_class"),
        (400, "XAmzContentSHA256Mismatch", StorageError, 2, "not those that were hashed"),
        (400, "BadDigest", StorageError, 2, "not those that were hashed"),
        (412, "PreconditionFailed", ConflictError, 1, "left as it was"),
        (412, "412", ConflictError, 1, "left as it was"),
        (409, "ConditionalRequestConflict", ConflictError, BUSY_TRIES, "others"),
        (403, "QuotaExceeded", StorageFullError, 1, "free space"),
        (507, "XMinioStorageFull", StorageFullError, 1, "free space"),
        (500, "XMinioStorageFull", StorageFullError, 1, "free space"),
        (507, "507", StorageFullError, 1, "free space"),
        (503, "SlowDown", StoreUnreachableError, BUSY_TRIES, "retry later"),
        (500, "InternalError", StoreUnreachableError, BUSY_TRIES, "retry later"),
        (400, "RequestTimeout", StoreUnreachableError, BUSY_TRIES, "retry later"),
        (400, "InvalidArgument", StorageError, 1, "documentation"),
        (501, "NotImplemented", StorageError, 1, "documentation"),
    ],
)
def test_each_refusal_is_the_error_it_means(
    status: int, code: str, kind: type[Exception], tries: int, next_step: str
) -> None:
    error = refusal(status, code)
    assert tries_for(error, read_timeout_s=10) == tries
    ours = storage_error(error, operation="PutObject", where=WHERE, tries=tries)
    assert type(ours) is kind
    for part in (WHERE, "PutObject", code, f"HTTP {status}", f"said {code}", next_step):
        assert part in str(ours)


@pytest.mark.parametrize(
    ("error", "kind", "tries"),
    [
        (boto.EndpointConnectionError(endpoint_url="http://h"), StoreUnreachableError, 2),
        (boto.ConnectTimeoutError(endpoint_url="http://h"), StoreUnreachableError, 2),
        (boto.ReadTimeoutError(endpoint_url="http://h"), StoreUnreachableError, 4),
        (boto.SSLError(endpoint_url="http://h", error=OSError("x")), StoreUnreachableError, 2),
        (boto.ConnectionClosedError(endpoint_url="http://h"), StoreUnreachableError, BUSY_TRIES),
        (boto.ResponseStreamingError(error="x"), StoreUnreachableError, BUSY_TRIES),
        (
            boto.IncompleteReadError(actual_bytes=1, expected_bytes=2),
            StoreUnreachableError,
            BUSY_TRIES,
        ),
        (boto.NoCredentialsError(), StorageDeniedError, 1),
        (boto.ProfileNotFound(profile="p"), StorageDeniedError, 1),
        (boto.ParamValidationError(report="x"), StorageError, 1),
    ],
)
def test_each_failure_without_an_answer_is_the_error_it_means(
    error: BotoCoreError, kind: type[Exception], tries: int
) -> None:
    assert tries_for(error, read_timeout_s=10) == tries
    ours = storage_error(error, operation="GetObject", where=WHERE, tries=tries)
    assert type(ours) is kind
    assert WHERE in str(ours)
    assert "GetObject" in str(ours)


def test_an_endpoint_that_is_not_there_is_asked_twice_only() -> None:
    assert UNREACHABLE_TRIES == 2


@pytest.mark.parametrize(
    ("read_timeout_s", "tries"), [(0.1, BUSY_TRIES), (5, 8), (10, 4), (15, 2), (3600, 2)]
)
def test_standing_still_is_bounded_in_time(read_timeout_s: float, tries: int) -> None:
    error = boto.ReadTimeoutError(endpoint_url="http://h")
    assert tries_for(error, read_timeout_s=read_timeout_s) == tries


def test_the_hint_is_given_only_where_it_can_help() -> None:
    hint = "leave out of its URL what it does not know: checksums=when_supported"

    def message(status: int, operation: str, hint: str) -> str:
        error = refusal(status, "Unauthorized")
        return str(storage_error(error, operation=operation, where=WHERE, tries=1, hint=hint))

    assert hint in message(401, "PutObject", hint)
    assert "leave out" not in message(401, "PutObject", "")
    assert hint not in message(401, "GetObject", hint)
    assert hint not in message(409, "PutObject", hint)


def told(code: str, status: int, operation: str, **facts: str) -> str:
    error = ClientError(
        {
            "Error": {"Code": code, **facts},  # type: ignore[typeddict-item]
            "ResponseMetadata": {
                "HTTPStatusCode": status,
                "HTTPHeaders": {"date": "Tue, 01 Dec 2026 12:00:00 GMT"},
            },  # type: ignore[typeddict-item]
        },
        operation,
    )
    return str(storage_error(error, operation=operation, where=WHERE, tries=1))


def test_clocks_that_differ_are_told() -> None:
    both = {"RequestTime": "20261201T110000Z", "ServerTime": "2026-12-01T12:00:00Z"}
    said = told("RequestTimeTooSkewed", 403, "UploadPart", **both)
    assert "the server's says 2026-12-01T12:00:00Z, ours 20261201T110000Z" in said
    said = told("RequestTimeTooSkewed", 403, "UploadPart")
    assert "the server's says Tue, 01 Dec 2026 12:00:00 GMT" in said


@pytest.mark.parametrize(
    ("operation", "said", "right"),
    [
        ("UploadPart", "no", "s3:PutObject (and, where a KMS key encrypts, kms:GenerateDataKey"),
        ("GetObject", "no", "s3:GetObject (and, where a KMS key encrypts, kms:Decrypt"),
        ("DeleteObjects", "no", "s3:DeleteObject; grant it"),
        ("PutObjectRetention", "no", "s3:PutObjectRetention; grant it"),
        (
            "CompleteMultipartUpload",
            "User: arn:aws:iam::1:user/a is not authorized to perform: kms:Decrypt on resource: x",
            "kms:Decrypt; grant it",
        ),
    ],
)
def test_the_right_that_is_missing_is_named(operation: str, said: str, right: str) -> None:
    assert f"expected the right {right}" in told("AccessDenied", 403, operation, Message=said)


def test_a_store_of_locked_objects_that_wants_checksums_is_told_apart() -> None:
    said = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests"
    assert "put checksums=when_supported" in told("InvalidRequest", 400, "PutObject", Message=said)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (501, "NotImplemented", True),
        (411, "MissingContentLength", True),
        (400, "InvalidRequest", True),
        (405, "MethodNotAllowed", True),
        (403, "AccessDenied", False),
        (400, "ExpiredToken", False),
        (503, "SlowDown", False),
    ],
)
def test_what_a_store_does_not_know_is_told_from_what_it_forbids(
    status: int, code: str, *, expected: bool
) -> None:
    error = StorageError("as it was raised")
    error.__cause__ = refusal(status, code)
    assert knows_not(error) is expected
