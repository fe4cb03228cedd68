"""S3 storage on a real Ceph gateway that does what it does."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from strongroom.errors import ConflictError, StorageError
from strongroom.storage.s3 import S3Settings, S3Storage
from strongroom.storage.s3_settings import Checksums
from tests.support.buckets import uploads_in
from tests.support.ceph import CephGateway
from tests.support.objects import PART, SIX_PARTS, keys, parts_of, put_parts, put_stream

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.ceph


@pytest.fixture
def storage(ceph_url: str) -> S3Storage:
    return S3Storage(S3Settings.from_url(ceph_url))


# --- TLS -------------------------------------------------------------------------------------


@pytest.mark.parametrize("checksums", ["when_required", "when_supported"])
def test_over_tls(
    storage: S3Storage, ceph: CephGateway, monkeypatch: pytest.MonkeyPatch, checksums: Checksums
) -> None:
    """Report boto/botocore#3352: over TLS, Ceph refuses what boto3 sends by default."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(ceph.ca_file))
    secure = S3Storage(replace(storage.settings, endpoint_url=ceph.tls_url, checksums=checksums))
    secure.create("small", b"data")
    put_parts(secure, "parts")
    put_stream(secure, "stream")
    assert secure.read("parts") == secure.read("stream") == SIX_PARTS
    target = bytearray(1000)
    secure.read_into("parts", PART - 500, [memoryview(target)])
    assert target == SIX_PARTS[PART - 500 : PART + 500]
    assert keys(secure) == ["parts", "small", "stream"]
    secure.delete_many(["parts", "small", "stream"])
    assert keys(storage) == []


# --- versions --------------------------------------------------------------------------------


def test_a_delete_in_a_bucket_with_versions_hides_and_frees_nothing(
    ceph_client: S3Client, storage: S3Storage
) -> None:
    """Report onhate/cdk-gc#4. Purging versions is the bucket's lifecycle's, or its owner's."""
    bucket = storage.settings.bucket
    ceph_client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    storage.create("step-20/shard", b"12345")
    put_parts(storage, "step-30/shard")
    storage.delete("step-20/shard")
    storage.delete_many(["step-30/shard"])
    assert keys(storage) == []
    assert storage.stat("step-20/shard") is None
    versions = ceph_client.list_object_versions(Bucket=bucket, Prefix="team/store/step-")
    assert {(each["Key"], each["Size"]) for each in versions["Versions"]} >= {
        ("team/store/step-20/shard", 5),
        ("team/store/step-30/shard", len(SIX_PARTS)),
    }
    assert [each["Key"] for each in versions["DeleteMarkers"]] == [
        "team/store/step-20/shard",
        "team/store/step-30/shard",
    ]


# --- many writers of one key -----------------------------------------------------------------


def race(acts: list[Callable[[], object]]) -> list[BaseException | None]:
    """Do all at once; return how each ended."""
    barrier = threading.Barrier(len(acts))

    def run(act: Callable[[], object]) -> BaseException | None:
        barrier.wait()
        try:
            act()
        except ConflictError as conflict:
            return conflict
        return None

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def test_of_many_who_create_one_key_at_once_one_succeeds(storage: S3Storage) -> None:
    for number in range(20):
        key = f"step-{number}/manifest.json"
        ended = race([partial(storage.create, key, bytes([who])) for who in range(6)])
        (winner,) = [who for who, conflict in enumerate(ended) if conflict is None]
        assert storage.read(key) == bytes([winner])


def test_of_two_who_upload_one_key_the_first_stays(
    storage: S3Storage, ceph_client: S3Client
) -> None:
    """Ceph 16 ignores the condition of a completed upload, so it is looked for before."""
    parts = parts_of(SIX_PARTS)
    second = storage.create_parts("step-20/shard", num_bytes=len(SIX_PARTS))
    second.__enter__()
    for part in parts:
        second.put(part)
    put_parts(storage, "step-20/shard", b"1" + SIX_PARTS)
    with pytest.raises(ConflictError, match="step-20/shard"):
        second.__exit__(None, None, None)
    with pytest.raises(ConflictError, match="step-20/shard"):
        put_parts(storage, "step-20/shard")
    assert storage.read("step-20/shard") == b"1" + SIX_PARTS
    assert uploads_in(ceph_client, storage.settings.bucket) == []


# --- what a server says of an object's bytes -------------------------------------------------


def test_nothing_a_server_says_of_a_multipart_object_is_its_digest(
    storage: S3Storage, ceph_client: S3Client
) -> None:
    """Reports multiformats/multicodec#342 and floci-io/floci#3083."""
    data = b"A" * PART + b"B" * PART + b"C" * 1000
    whole = "bf6a4497c5762ec0343e75f95fd1f3783321321f3113b201b74a6a645b8c9730"
    put_parts(storage, "shard", data)
    head = ceph_client.head_object(
        Bucket=storage.settings.bucket, Key="team/store/shard", ChecksumMode="ENABLED"
    )
    assert head["ETag"].endswith('-3"')
    assert "ChecksumSHA256" not in head
    assert whole not in str(head)
    assert hashlib.sha256(storage.read("shard")).hexdigest() == whole


def test_bytes_that_differ_from_their_digest_are_refused_by_the_server(
    storage: S3Storage, ceph_client: S3Client
) -> None:
    first, second, *_ = parts_of(SIX_PARTS)
    writer = storage.create_parts("step-20/shard", num_bytes=2 * PART)
    writer.__enter__()
    writer.put(first)
    with pytest.raises(StorageError, match="not those that were hashed"):
        writer.put(replace(second, sha256=first.sha256))
    with pytest.raises(StorageError, match="step-20/shard: expected parts of"):
        writer.__exit__(None, None, None)
    assert uploads_in(ceph_client, storage.settings.bucket) == keys(storage) == []
