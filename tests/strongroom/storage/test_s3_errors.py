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
from strongroom.storage.s3_errors import BUSY_TRIES, UNREACHABLE_TRIES, storage_error, tries_for

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
        (400, "ExpiredToken", StorageDeniedError, 1, "renew or correct"),
        (403, "RequestTimeTooSkewed", StorageDeniedError, 1, "clock"),
        (404, "NoSuchBucket", StoreMissingError, 1, "check the URL"),
        (404, "NoSuchKey", ObjectMissingError, 1, "no such object"),
        (404, "NoSuchUpload", StorageError, 1, "documentation"),
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
    assert tries_for(error) == tries
    ours = storage_error(error, operation="PutObject", where=WHERE, tries=tries, trailers=False)
    assert type(ours) is kind
    for part in (WHERE, "PutObject", code, f"HTTP {status}", f"said {code}", next_step):
        assert part in str(ours)


@pytest.mark.parametrize(
    ("error", "kind", "tries"),
    [
        (boto.EndpointConnectionError(endpoint_url="http://h"), StoreUnreachableError, 2),
        (boto.ConnectTimeoutError(endpoint_url="http://h"), StoreUnreachableError, 2),
        (boto.ReadTimeoutError(endpoint_url="http://h"), StoreUnreachableError, 2),
        (boto.SSLError(endpoint_url="http://h", error=OSError("x")), StoreUnreachableError, 2),
        (boto.ConnectionClosedError(endpoint_url="http://h"), StoreUnreachableError, BUSY_TRIES),
        (boto.ResponseStreamingError(error="x"), StoreUnreachableError, BUSY_TRIES),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), StoreUnreachableError, 8),
        (boto.NoCredentialsError(), StorageDeniedError, 1),
        (boto.ProfileNotFound(profile="p"), StorageDeniedError, 1),
        (boto.ParamValidationError(report="x"), StorageError, 1),
    ],
)
def test_each_failure_without_an_answer_is_the_error_it_means(
    error: BotoCoreError, kind: type[Exception], tries: int
) -> None:
    assert tries_for(error) == tries
    ours = storage_error(error, operation="GetObject", where=WHERE, tries=tries, trailers=False)
    assert type(ours) is kind
    assert WHERE in str(ours)
    assert "GetObject" in str(ours)


def test_an_endpoint_that_is_not_there_is_asked_twice_only() -> None:
    assert UNREACHABLE_TRIES == 2


def test_the_hint_at_trailers_is_given_only_where_it_can_help() -> None:
    hint = "checksums=when_required"

    def message(status: int, operation: str, *, trailers: bool) -> str:
        error = refusal(status, "Unauthorized")
        return str(
            storage_error(error, operation=operation, where=WHERE, tries=1, trailers=trailers)
        )

    assert hint in message(401, "PutObject", trailers=True)
    assert hint not in message(401, "PutObject", trailers=False)
    assert hint not in message(401, "GetObject", trailers=True)
    assert hint not in message(409, "PutObject", trailers=True)
