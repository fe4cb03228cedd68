"""S3 storage against a real server that is made to misbehave, one answer at a time."""

from __future__ import annotations

import hashlib
import io
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, cast

import pytest
import urllib3
from botocore.awsrequest import AWSPreparedRequest, AWSRequest, AWSResponse
from botocore.httpsession import URLLib3Session

from strongroom.errors import (
    ConflictError,
    IntegrityError,
    ObjectMissingError,
    StorageDeniedError,
    StorageError,
    StoreMissingError,
    StoreUnreachableError,
)
from strongroom.storage.s3 import S3Settings, S3Storage
from strongroom.storage.s3_client import CARRIERS
from strongroom.storage.s3_errors import BUSY_TRIES
from strongroom.storage.s3_upload import Upload
from strongroom.storage.store import STORE_FILE, create_store, make_store, open_store

PART = 5 << 20
FIVE_PARTS = b"".join(bytes([65 + number]) * PART for number in range(4)) + b"the end"

Handler = Callable[..., AWSResponse | None]


@pytest.fixture
def storage(s3_url: str) -> S3Storage:
    return S3Storage(S3Settings.from_url(s3_url))


def keys(storage: S3Storage, folder: str = "") -> list[str]:
    return [info.key for info in storage.walk(folder)]


def stream(storage: S3Storage, key: str, data: bytes) -> None:
    with storage.create_stream(key) as writer:
        writer.write(data)


def register(storage: S3Storage, event: str, handler: Callable[..., object]) -> None:
    storage._bucket.client.meta.events.register(event, cast("Callable[..., None]", handler))


def on(storage: S3Storage, operation: str, handler: Handler) -> None:
    """Let `handler` answer requests of this kind; None passes one on to the server."""
    event, send = f"before-send.s3.{operation}", storage._bucket.connections.send
    if operation not in CARRIERS:
        register(storage, event, handler)
        return
    # botocore asks every handler: ours must not send what is answered already.
    storage._bucket.client.meta.events.unregister(event, cast("Callable[..., None]", send))
    register(storage, event, lambda **request: handler(**request) or send(**request))


def reply(status: int, body: bytes, **headers: str) -> AWSResponse:
    """An answer that no server gave; underscores in the names of headers mean hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    raw = urllib3.HTTPResponse(body=io.BytesIO(body), headers=named, preload_content=False)
    return AWSResponse("http://127.0.0.1/", status, named, raw)  # type: ignore[arg-type]  # any mapping does


def answer(status: int, code: str) -> AWSResponse:
    body = f"<Error><Code>{code}</Code><Message>said {code}</Message></Error>"
    return reply(status, body.encode())


def always(status: int, code: str) -> Handler:
    return lambda **_: answer(status, code)


def on_calls(numbers: set[int], status: int, code: str) -> Handler:
    calls = count(1)
    return lambda **_: answer(status, code) if next(calls) in numbers else None


def lost_once() -> Handler:
    """The server does what it was asked to, and its answer is lost on the way."""
    calls = count(1)

    def lose(request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
        if next(calls) > 1:
            return None
        done = URLLib3Session().send(request)
        assert done.status_code == 200
        assert done.content is not None  # read to its end
        return answer(500, "InternalError")

    return lose


# --- checksums (reports boto/botocore#3352, multiformats/multicodec#342) -----------------


def refuse_checksums(request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
    """A store that knows nothing of checksum headers and trailers."""
    names = {name.lower() for name in request.headers}
    if any(
        name.startswith(("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer")) for name in names
    ):
        return answer(411, "MissingContentLength")
    return None


def test_uploads_carry_no_checksum_unless_asked_for(storage: S3Storage) -> None:
    for operation in ("PutObject", "UploadPart", "CompleteMultipartUpload"):
        on(storage, operation, refuse_checksums)
    storage.create("small", b"data")
    stream(storage, "large", FIVE_PARTS)
    storage.delete("small")
    assert keys(storage) == ["large"]


def test_a_store_that_refuses_checksums_is_told_apart(storage: S3Storage) -> None:
    checked = S3Storage(replace(storage.settings, checksums="when_supported"))
    on(checked, "PutObject", refuse_checksums)
    with pytest.raises(
        StorageError, match="leave out of its URL what it does not know: checksums=when_supported"
    ):
        checked.create("small", b"data")


def test_either_way_the_signature_covers_the_body(storage: S3Storage) -> None:
    seen = []

    def look(request: AWSPreparedRequest, **_: object) -> None:
        seen.append(request.headers["X-Amz-Content-SHA256"])

    on(storage, "PutObject", look)
    storage.create("small", b"data")
    assert seen == [hashlib.sha256(b"data").hexdigest().encode()]


def test_the_tag_of_a_multipart_object_is_no_digest_of_it(storage: S3Storage) -> None:
    stream(storage, "large", FIVE_PARTS)
    place = storage._bucket.place("large")
    head = storage._bucket.client.head_object(**place, ChecksumMode="ENABLED")
    whole = hashlib.sha256(FIVE_PARTS).hexdigest()
    assert head["ETag"].endswith('-5"')
    assert whole not in str(head)
    # What is offered is the size and the bytes, nothing that could be mistaken for their digest.
    info = storage.stat("large")
    assert info is not None
    assert info.num_bytes == len(FIVE_PARTS)
    assert hashlib.sha256(storage.read("large")).hexdigest() == whole


# --- throttling (report ray-project/ray#36690) -------------------------------------------


def test_a_busy_server_is_asked_again(storage: S3Storage) -> None:
    """Three of ten requests are refused, under several writers at once."""
    calls = count()

    def throttle(**_: object) -> AWSResponse | None:
        return answer(503, "SlowDown") if next(calls) % 10 in {1, 4, 7} else None

    for operation in ("UploadPart", "PutObject", "CompleteMultipartUpload", "HeadObject"):
        on(storage, operation, throttle)
    names = [f"step/__{number}_0.distcp" for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: stream(storage, name, name.encode() + FIVE_PARTS), names))
    assert keys(storage) == names
    for name in names:
        assert storage.read(name) == name.encode() + FIVE_PARTS
    assert storage.discard_unfinished(older_than_s=0) == []


def test_a_server_that_only_refuses_is_given_up_and_nothing_is_left(storage: S3Storage) -> None:
    seen = count(1)
    last = 0

    def refuse(**_: object) -> AWSResponse:
        nonlocal last
        last = next(seen)
        return answer(503, "SlowDown")

    on(storage, "UploadPart", refuse)
    with pytest.raises(StoreUnreachableError, match=f"tried {BUSY_TRIES} times") as caught:
        stream(storage, "step/shard", FIVE_PARTS)
    assert last == BUSY_TRIES
    assert f"{storage.settings.bucket}/team/store/step/shard" in str(caught.value)
    assert keys(storage) == []
    assert storage.discard_unfinished(older_than_s=0) == []


def test_a_connection_that_breaks_while_reading_is_made_again(storage: S3Storage) -> None:
    storage.create("a", b"0123456789")
    calls = count(1)

    def cut(**_: object) -> AWSResponse | None:
        if next(calls) > 2:
            return None
        return reply(200, b"0123", content_length="10")

    on(storage, "GetObject", cut)
    assert storage.read("a") == b"0123456789"


# --- multipart uploads (report TileDB-Inc/TileDB#1068) -----------------------------------


def test_a_part_that_fails_aborts_the_upload(storage: S3Storage) -> None:
    on(storage, "UploadPart", on_calls({3}, 403, "AccessDenied"))
    with pytest.raises(StorageDeniedError, match="expected the right s3:PutObject"):
        stream(storage, "shard", FIVE_PARTS)
    assert keys(storage) == []
    assert list(storage._bucket.uploads()) == []


def test_when_the_abort_fails_too_the_first_error_is_told_and_the_parts_are_swept_later(
    storage: S3Storage, caplog: pytest.LogCaptureFixture
) -> None:
    on(storage, "UploadPart", on_calls({3}, 507, "InsufficientStorage"))
    on(storage, "AbortMultipartUpload", on_calls({1}, 403, "AccessDenied"))
    with pytest.raises(StorageError, match="no space is left"):
        stream(storage, "step/shard", FIVE_PARTS)
    assert "unfinished upload left behind" in caplog.text
    assert keys(storage) == []
    assert storage.discard_unfinished(older_than_s=0) == ["step/shard"]
    assert list(storage._bucket.uploads()) == []


def test_only_uploads_that_are_old_and_below_the_prefix_are_swept(storage: S3Storage) -> None:
    client, bucket = storage._bucket.client, storage.settings.bucket
    client.create_multipart_upload(Bucket=bucket, Key="team/store-2/shard")
    client.create_multipart_upload(Bucket=bucket, Key="team/store/shard")
    begun = datetime.now(UTC) - timedelta(hours=3)

    def date(parsed: dict[str, Any], **_: object) -> None:
        for upload in parsed["Uploads"]:
            upload["Initiated"] = begun  # moto says 2010 of all

    register(storage, "after-call.s3.ListMultipartUploads", date)
    assert storage.discard_unfinished(older_than_s=4 * 3600) == []
    assert storage.discard_unfinished(older_than_s=2 * 3600) == ["shard"]
    left = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [upload["Key"] for upload in left] == ["team/store-2/shard"]


def test_an_upload_that_another_sweep_aborted_first_is_no_error(storage: S3Storage) -> None:
    Upload(storage._bucket, "shard")
    on(storage, "AbortMultipartUpload", always(404, "NoSuchUpload"))
    assert storage.discard_unfinished(older_than_s=0) == ["shard"]


# --- answers that get lost ---------------------------------------------------------------


def test_a_create_whose_answer_was_lost_has_succeeded(storage: S3Storage) -> None:
    on(storage, "PutObject", lost_once())
    storage.create("a", b"mine")
    assert storage.read("a") == b"mine"


def test_a_stream_whose_answer_was_lost_has_succeeded(storage: S3Storage) -> None:
    on(storage, "CompleteMultipartUpload", lost_once())
    stream(storage, "shard", FIVE_PARTS)
    assert storage.read("shard") == FIVE_PARTS


def test_equal_bytes_of_another_writer_are_still_a_conflict(storage: S3Storage) -> None:
    storage.create("a", b"same")
    on(storage, "PutObject", on_calls({1}, 500, "InternalError"))
    with pytest.raises(ConflictError):
        storage.create("a", b"same")


def test_two_who_create_at_once_are_told_to_try_again(storage: S3Storage) -> None:
    on(storage, "PutObject", on_calls({1, 2}, 409, "ConditionalRequestConflict"))
    storage.create("a", b"mine")
    assert storage.read("a") == b"mine"


# --- servers that know less --------------------------------------------------------------


def ignore_conditions(storage: S3Storage, operation: str) -> None:
    def strip(request: AWSRequest, **_: object) -> None:
        del request.headers["If-None-Match"]

    register(storage, f"before-sign.s3.{operation}", strip)


def test_a_server_that_overwrites_cannot_hold_a_store(storage: S3Storage) -> None:
    ignore_conditions(storage, "PutObject")
    with pytest.raises(StorageError, match="ignores 'If-None-Match"):
        make_store(storage)
    assert keys(storage) == []


def test_where_completing_ignores_conditions_an_object_is_looked_for_first(
    storage: S3Storage,
) -> None:
    ignore_conditions(storage, "CompleteMultipartUpload")
    writer = storage.create_stream("shard")
    writer.__enter__()
    writer.write(FIVE_PARTS)
    storage.create("shard", b"first")
    with pytest.raises(ConflictError):
        writer.__exit__(None, None, None)
    assert storage.read("shard") == b"first"
    assert list(storage._bucket.uploads()) == []


def test_a_server_that_ignores_ranges_is_found_out(storage: S3Storage) -> None:
    storage.create("a", b"0123456789")

    def strip(request: AWSRequest, **_: object) -> None:
        del request.headers["Range"]

    register(storage, "before-sign.s3.GetObject", strip)
    with pytest.raises(StorageError, match="ignores Range"):
        storage.read("a", offset=2, num_bytes=3)


def test_lists_are_read_to_their_last_page(storage: S3Storage) -> None:
    """Report minio/minio#16880: only the first page is seen."""

    def short(params: dict[str, Any], **_: object) -> None:
        params["MaxKeys"] = 3

    register(storage, "before-parameter-build.s3.ListObjectsV2", short)
    names = [f"step-1/shard-{number:02d}" for number in range(10)]
    for name in [*names, "step-10/shard", "step-1.bak/shard"]:
        storage.create(name, b"")
    assert keys(storage, "step-1") == names
    assert len(keys(storage)) == 12
    assert storage.folders("") == ["step-1", "step-1.bak", "step-10"]


def test_a_list_cut_short_without_a_way_to_go_on_is_an_error(storage: S3Storage) -> None:
    storage.create("a", b"")

    def cut(parsed: dict[str, Any], **_: object) -> None:
        parsed["IsTruncated"] = True

    register(storage, "after-call.s3.ListObjectsV2", cut)
    with pytest.raises(StorageError, match="cuts lists short"):
        keys(storage)


# --- deleting many (reports boto/boto3#4392, amd/gaia PR 3029) -----------------------------


def count_requests(storage: S3Storage, operation: str) -> list[dict[str, str]]:
    """Return a list that grows by the headers of each such request."""
    seen: list[dict[str, str]] = []

    def note(request: AWSPreparedRequest, **_: object) -> None:
        seen.append(
            {
                name.lower(): value.decode() if isinstance(value, bytes) else value
                for name, value in request.headers.items()
            }
        )

    on(storage, operation, note)
    return seen


def test_a_thousand_keys_go_in_one_request_with_the_checksum_that_all_know(
    storage: S3Storage,
) -> None:
    seen = count_requests(storage, "DeleteObjects")
    single = count_requests(storage, "DeleteObject")
    storage.create("step/0002", b"x")
    storage.delete_many(f"step/{number:04d}" for number in range(2500))
    assert keys(storage) == []
    assert len(seen) == 3
    assert single == []
    for headers in seen:
        assert len(headers["content-md5"]) == 24
        assert not [name for name in headers if "checksum" in name]


def test_keys_that_stay_are_named_with_the_reason_of_each(storage: S3Storage) -> None:
    names = ["step/a", "step/b", "step/c"]
    for name in names:
        storage.create(name, b"x")
    full = [f"team/store/{name}" for name in names]

    def some_stay(**_: object) -> AWSResponse:
        errors = "".join(
            f"<Error><Key>{key}</Key><Code>{code}</Code><Message>said {code}</Message></Error>"
            for key, code in zip(full, ["AccessDenied", "InternalError", "Odd"], strict=True)
        )
        return reply(200, f"<DeleteResult>{errors}</DeleteResult>".encode())

    on(storage, "DeleteObjects", some_stay)
    with pytest.raises(StorageError) as caught:
        storage.delete_many(names)
    assert type(caught.value) is StorageError
    denied, odd = str(caught.value).split("; s3://")
    assert "step/a" in denied
    assert "AccessDenied" in denied
    assert "expected the right s3:DeleteObject" in denied
    assert "step/c" in odd
    assert "said Odd" in odd
    # What was merely busy was asked for again, alone.
    assert keys(storage) == ["step/a", "step/c"]


def test_keys_that_may_not_be_deleted_are_a_matter_of_rights(storage: S3Storage) -> None:
    body = b"<DeleteResult><Error><Key>k</Key><Code>AccessDenied</Code></Error></DeleteResult>"
    on(storage, "DeleteObjects", lambda **_: reply(200, body))
    with pytest.raises(StorageDeniedError, match="s3:DeleteObject"):
        storage.delete_many(["k"])


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (501, "NotImplemented"),
        (400, "InvalidRequest"),
        (411, "MissingContentLength"),
        (405, "MethodNotAllowed"),
    ],
)
def test_a_store_that_cannot_delete_many_is_asked_for_each(
    storage: S3Storage, status: int, code: str
) -> None:
    on(storage, "DeleteObjects", always(status, code))
    seen = count_requests(storage, "DeleteObjects")
    for name in ("a", "b", "c"):
        storage.create(name, b"x")
    storage.delete_many(["a", "b"])
    storage.delete_many(["c"])
    assert keys(storage) == []
    assert len(seen) == 1  # what it cannot is not asked for twice


def test_a_refusal_to_delete_anything_is_told(storage: S3Storage) -> None:
    on(storage, "DeleteObjects", always(403, "AccessDenied"))
    with pytest.raises(StorageDeniedError, match="s3:DeleteObject"):
        storage.delete_many(["a"])


@pytest.mark.ceph
def test_all_pages_of_unfinished_uploads_are_swept(ceph_url: str) -> None:
    storage = S3Storage(S3Settings.from_url(ceph_url))
    pages = count(1)

    def short(params: dict[str, Any], **_: object) -> None:
        params["MaxUploads"] = 3
        next(pages)

    register(storage, "before-parameter-build.s3.ListMultipartUploads", short)
    names = [f"step/shard-{number}" for number in range(10)]
    for name in names:
        Upload(storage._bucket, name)
    Upload(storage._bucket, names[0])  # two of one key
    assert sorted(storage.discard_unfinished(older_than_s=0)) == sorted([*names, names[0]])
    assert next(pages) > 4
    assert list(storage._bucket.uploads()) == []


# --- what cannot be reached, found or done -----------------------------------------------


def test_an_endpoint_that_does_not_answer_is_named(storage: S3Storage) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        endpoint_url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        far = S3Storage(replace(storage.settings, endpoint_url=endpoint_url))
        for operation in (
            lambda: far.create("run.json", b""),
            lambda: far.read("run.json"),
            lambda: keys(far),
            lambda: stream(far, "run.json", b""),
        ):
            with pytest.raises(StoreUnreachableError, match="check that the endpoint") as caught:
                operation()
            assert endpoint_url in str(caught.value)
            assert caught.value.retryable


def test_waiting_for_a_connection_is_bounded(storage: S3Storage) -> None:
    config = storage._bucket.client.meta.config
    assert config.connect_timeout == 5  # type: ignore[attr-defined]
    assert config.retries == {"total_max_attempts": 1, "mode": "standard"}  # type: ignore[attr-defined]


def test_a_bucket_that_is_not_there_is_named(storage: S3Storage) -> None:
    url = replace(storage.settings, bucket="nobodys-bucket").to_url()
    lost = S3Storage(S3Settings.from_url(url))
    for operation in (
        lambda: create_store(url),
        lambda: open_store(url),
        lambda: keys(lost),
        lambda: stream(lost, "shard", FIVE_PARTS),
    ):
        with pytest.raises(StoreMissingError, match="nobodys-bucket"):
            operation()


@pytest.mark.parametrize(
    ("operation", "act", "right"),
    [
        ("PutObject", lambda storage: storage.create("a", b""), "s3:PutObject"),
        ("GetObject", lambda storage: storage.read("a"), "s3:GetObject"),
        ("HeadObject", lambda storage: storage.stat("a"), "s3:GetObject"),
        ("ListObjectsV2", lambda storage: list(storage.walk("a")), "s3:ListBucket"),
        ("DeleteObject", lambda storage: storage.delete("a"), "s3:DeleteObject"),
    ],
)
def test_a_missing_right_is_named(
    storage: S3Storage, operation: str, act: Callable[[S3Storage], object], right: str
) -> None:
    on(storage, operation, always(403, "AccessDenied"))
    with pytest.raises(StorageDeniedError, match=f"{operation}.*expected the right {right}"):
        act(storage)


def test_missing_credentials_are_named(storage: S3Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StorageDeniedError, match="AWS_ACCESS_KEY_ID"):
        S3Storage(storage.settings).create("a", b"")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageDeniedError, match="nobody"):
        S3Storage(storage.settings)


def test_bytes_that_differ_from_the_servers_checksum_are_an_integrity_error(
    storage: S3Storage,
) -> None:
    checked = S3Storage(replace(storage.settings, checksums="when_supported"))
    checked.create("a", b"0123456789")

    def corrupt(**_: object) -> AWSResponse:
        return reply(200, b"0123456789", content_length="10", x_amz_checksum_crc32="AAAAAA==")

    on(checked, "GetObject", corrupt)
    with pytest.raises(IntegrityError, match="checksum that S3 keeps"):
        checked.read("a")


def test_an_object_deleted_while_a_span_is_asked_for_is_missing(storage: S3Storage) -> None:
    on(storage, "GetObject", always(416, "InvalidRange"))
    with pytest.raises(ObjectMissingError):
        storage.read("a", offset=1)


def test_a_store_lives_in_a_bucket(s3_url: str) -> None:
    store = create_store(s3_url)
    assert open_store(store.url).store_id == store.store_id
    assert keys(S3Storage(S3Settings.from_url(s3_url))) == [STORE_FILE]
