"""New objects in S3: what is sent of them, and what is asked for them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from strongroom.errors import StorageDeniedError, StorageError
from strongroom.names import Digest
from strongroom.storage.base import PARTS_MAX, Part
from strongroom.storage.s3 import S3Settings, S3Storage
from strongroom.storage.s3_writers import part_bytes_after
from tests.support.buckets import client_of, new_bucket
from tests.support.ceph import CephGateway

PART = 5 << 20
DATA = bytes(range(256)) * (2 * PART // 256) + b"the end"
CARRIED = ("CompleteMultipartUpload", "CreateMultipartUpload", "PutObject", "UploadPart")


@pytest.fixture
def settings(s3_url: str) -> S3Settings:
    return S3Settings.from_url(s3_url)


@contextmanager
def seen_by(storage: S3Storage) -> Iterator[list[tuple[str, dict[str, str], bytes]]]:
    """Note operation, headers and small body of every request that writes."""
    seen: list[tuple[str, dict[str, str], bytes]] = []
    events = storage._bucket.client.meta.events

    def note(request: AWSPreparedRequest, event_name: str, **_: object) -> None:
        headers = {
            name.lower(): value.decode() if isinstance(value, bytes) else value
            for name, value in request.headers.items()
        }
        body = request.body if isinstance(request.body, bytes) else b""
        seen.append((event_name.rpartition(".")[2], headers, body))

    handler = cast("Callable[..., None]", note)
    for operation in (*CARRIED, "PutObjectRetention"):
        events.register_first(f"before-send.s3.{operation}", handler)
    yield seen
    for operation in (*CARRIED, "PutObjectRetention"):
        events.unregister(f"before-send.s3.{operation}", handler)


def put_parts(storage: S3Storage, key: str, data: bytes) -> None:
    with storage.create_parts(key, num_bytes=len(data)) as writer:
        for number, offset in enumerate(range(0, len(data), PART), 1):
            buffer = memoryview(data)[offset : offset + PART]
            writer.put(Part(number=number, offset=offset, buffers=(buffer,)))


def put_stream(storage: S3Storage, key: str, data: bytes) -> None:
    with storage.create_stream(key) as writer:
        writer.write(data)


def operations(seen: list[tuple[str, dict[str, str], bytes]]) -> list[str]:
    return [operation for operation, _, _ in seen]


def head(storage: S3Storage, key: str, **wishes: str) -> dict[str, Any]:
    found = storage._bucket.head(key, **wishes)
    assert found is not None
    return dict(found)


# --- requests and parts ------------------------------------------------------------------


@pytest.mark.parametrize("put", [put_parts, put_stream])
def test_an_object_smaller_than_a_part_is_one_conditional_put(
    settings: S3Settings, put: Callable[[S3Storage, str, bytes], None]
) -> None:
    storage = S3Storage(settings)
    with seen_by(storage) as seen:
        put(storage, "shard", b"small")
    ((operation, headers, _),) = seen
    assert operation == "PutObject"
    assert headers["if-none-match"] == "*"


@pytest.mark.parametrize("put", [put_parts, put_stream])
def test_a_larger_one_is_completed_on_condition(
    settings: S3Settings, put: Callable[[S3Storage, str, bytes], None]
) -> None:
    storage = S3Storage(settings)
    with seen_by(storage) as seen:
        put(storage, "shard", DATA)
    assert operations(seen) == [
        "CreateMultipartUpload",
        *["UploadPart"] * 3,
        "CompleteMultipartUpload",
    ]
    assert seen[-1][1]["if-none-match"] == "*"
    assert storage.read("shard") == DATA


def test_ten_thousand_parts_of_a_stream_are_enough_for_any_object() -> None:
    for first_bytes in (5 << 20, 16 << 20):
        sent_bytes, sizes = 0, []
        for _ in range(PARTS_MAX):
            sizes.append(part_bytes_after(sent_bytes, first_bytes=first_bytes))
            sent_bytes += sizes[-1]
        assert sizes[:1000] == [first_bytes] * 1000
        assert sizes == sorted(sizes)
        assert sizes[-1] <= 5 << 30  # S3's largest part
        assert sent_bytes >= 5 << 40  # S3's largest object


def test_parts_of_a_stream_grow_with_what_was_sent(
    settings: S3Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "strongroom.storage.s3_writers.part_bytes_after",
        lambda sent_bytes, first_bytes: first_bytes + sent_bytes // 5,
    )
    storage = S3Storage(settings)
    with seen_by(storage) as seen:
        put_stream(storage, "shard", DATA + DATA)
    sizes = [int(headers["content-length"]) for name, headers, _ in seen if name == "UploadPart"]
    assert sizes == [
        PART,
        PART + PART // 5,
        PART + 11 * PART // 25,
        2 * len(DATA) - 91 * PART // 25,
    ]
    assert storage.read("shard") == DATA + DATA


@pytest.mark.parametrize(("number", "offset"), [(0, 0), (PARTS_MAX + 1, 0), (1, 1), (2, PART + 8)])
def test_a_part_out_of_bounds_is_refused_unsent(
    settings: S3Settings, number: int, offset: int
) -> None:
    storage = S3Storage(settings)
    part = Part(number=number, offset=offset, buffers=(memoryview(DATA)[:PART],))
    with (
        seen_by(storage) as seen,
        pytest.raises(StorageError, match="nothing will be stored"),
        storage.create_parts("shard", num_bytes=PART) as writer,
    ):
        writer.put(part)
    assert "UploadPart" not in operations(seen)
    assert list(storage._bucket.uploads()) == []


@pytest.mark.parametrize("missing", [1, 2])
def test_a_part_that_is_missing_between_others_is_named(settings: S3Settings, missing: int) -> None:
    storage = S3Storage(settings)
    writer = storage.create_parts("shard", num_bytes=len(DATA))
    writer.__enter__()
    for number in {1, 2, 3} - {missing}:
        offset = PART * (number - 1)
        buffer = memoryview(DATA)[offset : offset + PART]
        writer.put(Part(number=number, offset=offset, buffers=(buffer,)))
    with pytest.raises(StorageError, match=f"part {missing} of 2"):
        writer.__exit__(None, None, None)
    assert list(storage.walk("")) == []


@pytest.mark.ceph
@pytest.mark.parametrize("num_bytes", [1000, len(DATA)])
def test_a_server_refuses_bytes_that_are_not_those_that_were_hashed(
    ceph_url: str, num_bytes: int
) -> None:
    storage = S3Storage(S3Settings.from_url(ceph_url))
    data = memoryview(DATA)[:num_bytes]
    changed = Part(number=1, offset=0, buffers=(data,), sha256=Digest.of(b"as it was hashed"))
    with (
        pytest.raises(StorageError, match="not those that were hashed"),
        storage.create_parts("shard", num_bytes=num_bytes) as writer,
    ):
        writer.put(changed)
    assert list(storage.walk("")) == []
    assert list(storage._bucket.uploads()) == []


# --- checksums ---------------------------------------------------------------------------


def crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


@pytest.mark.parametrize("put", [put_parts, put_stream])
def test_a_checksum_is_sent_with_every_part_and_kept(
    settings: S3Settings, put: Callable[[S3Storage, str, bytes], None]
) -> None:
    storage = S3Storage(replace(settings, checksums="when_supported"))
    with seen_by(storage) as seen:
        put(storage, "shard", DATA)
        put(storage, "small", b"small")
        storage.create("run.json", b"{}")
    parts = [DATA[:PART], DATA[PART : 2 * PART], DATA[2 * PART :]]
    sent = [headers for name, headers, _ in seen if name in {"UploadPart", "PutObject"}]
    expected = [*map(crc32, parts), crc32(b"small"), crc32(b"{}")]
    assert [headers["x-amz-checksum-crc32"] for headers in sent] == expected
    assert not [name for headers in sent for name in headers if "trailer" in name]
    assert seen[0][1]["x-amz-checksum-algorithm"] == "CRC32"
    completed = next(body for name, _, body in seen if name == "CompleteMultipartUpload")
    assert all(
        f"<ChecksumCRC32>{crc32(part)}</ChecksumCRC32>".encode() in completed for part in parts
    )
    assert head(storage, "small", ChecksumMode="ENABLED")["ChecksumCRC32"] == crc32(b"small")
    assert storage.read("shard") == DATA
    assert storage.read("small") == b"small"


# --- what the URL asks of new objects ----------------------------------------------------


def test_a_storage_class_is_asked_for_what_is_large_by_its_kind(settings: S3Settings) -> None:
    storage = S3Storage(replace(settings, storage_class="STANDARD_IA"))
    storage.create("manifest.json", b"{}")
    storage.replace("head", b"{}")
    put_stream(storage, "stream", DATA)
    put_stream(storage, "small-stream", b"x")
    put_parts(storage, "parts", DATA)
    put_parts(storage, "small-parts", b"x")
    classes = {
        info.key: head(storage, info.key).get("StorageClass", "STANDARD")
        for info in storage.walk("")
    }
    assert classes == {
        "head": "STANDARD",
        "manifest.json": "STANDARD",
        "parts": "STANDARD_IA",
        "small-parts": "STANDARD_IA",
        "small-stream": "STANDARD_IA",
        "stream": "STANDARD_IA",
    }


def test_encryption_is_asked_for_every_object(settings: S3Settings) -> None:
    storage = S3Storage(replace(settings, encryption="aws:kms", kms_key_id="alias/models"))
    with seen_by(storage) as seen:
        storage.create("manifest.json", b"{}")
        storage.replace("head", b"{}")
        put_stream(storage, "stream", DATA)
        put_parts(storage, "parts", DATA)
        put_parts(storage, "small", b"x")
    begun = [headers for name, headers, _ in seen if name in {"CreateMultipartUpload", "PutObject"}]
    assert len(begun) == 5
    for headers in begun:
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/models"
    assert head(storage, "parts")["ServerSideEncryption"] == "aws:kms"


@pytest.mark.ceph
def test_what_is_large_is_locked_on_a_real_gateway(ceph: CephGateway, ceph_url: str) -> None:
    """Ceph 16 ignores the lock that is asked for when an upload begins."""
    client = client_of(ceph)
    with new_bucket(client, locked=True) as bucket:
        settings = replace(
            S3Settings.from_url(ceph_url), bucket=bucket, lock_mode="GOVERNANCE", lock_days=3
        )
        storage = S3Storage(settings)
        put_parts(storage, "parts", DATA)
        put_parts(storage, "small", b"x")
        put_stream(storage, "stream", DATA)
        storage.create("manifest.json", b"{}")
        in_days = datetime.now(UTC) + timedelta(days=3)
        for key in ("parts", "small", "stream"):
            place = storage._bucket.place(key)
            kept = client.get_object_retention(**place)["Retention"]
            assert kept["Mode"] == "GOVERNANCE"
            assert abs(kept["RetainUntilDate"] - in_days) < timedelta(minutes=5)
            version = client.head_object(**place)["VersionId"]
            with pytest.raises(StorageDeniedError):
                storage._bucket.delete(key, version=version)
        with pytest.raises(client.exceptions.ClientError, match="ObjectLockConfigurationNotFound"):
            client.get_object_retention(**storage._bucket.place("manifest.json"))


def test_an_object_that_cannot_be_locked_does_not_stay(settings: S3Settings) -> None:
    storage = S3Storage(replace(settings, lock_mode="COMPLIANCE", lock_days=30))

    def deny(**_: object) -> AWSResponse:
        body = b"<Error><Code>AccessDenied</Code></Error>"
        raw: Any = type("Raw", (), {"headers": {}, "stream": lambda _: iter([body])})()
        return AWSResponse("http://127.0.0.1/", 403, raw.headers, raw)

    with seen_by(storage) as seen:
        storage._bucket.client.meta.events.register(
            "before-send.s3.PutObjectRetention", cast("Callable[..., None]", deny)
        )
        for put, data in ((put_parts, DATA), (put_stream, b"small")):
            with pytest.raises(StorageDeniedError, match="s3:PutObjectRetention"):
                put(storage, "shard", data)
            assert list(storage.walk("")) == []
    headers = next(headers for name, headers, _ in seen if name == "PutObjectRetention")
    assert len(headers["content-md5"]) == 24
    assert not [name for name in headers if "checksum" in name]
