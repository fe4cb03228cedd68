"""What making a store in S3 finds out, refuses, and leaves behind: nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import boto3
import pytest
from botocore.awsrequest import AWSRequest, AWSResponse

from strongroom.errors import StorageDeniedError, StorageError, StoreUnreachableError
from strongroom.storage.s3 import S3Settings, S3Storage
from strongroom.storage.s3_client import CARRIERS
from strongroom.storage.store import STORE_FILE, create_store, make_store, open_store, read_store
from tests.support.buckets import client_of, new_bucket
from tests.support.ceph import CephGateway


@pytest.fixture
def storage(s3_url: str) -> S3Storage:
    return S3Storage(S3Settings.from_url(s3_url))


def register(storage: S3Storage, event: str, handler: Callable[..., object]) -> None:
    storage._bucket.client.meta.events.register(event, cast("Callable[..., None]", handler))


def refuse(storage: S3Storage, operation: str, status: int, code: str, said: str = "no") -> None:
    """Let the server answer requests of this kind so, from now on."""
    events, event = storage._bucket.client.meta.events, f"before-send.s3.{operation}"
    if operation in CARRIERS:
        send = cast("Callable[..., None]", storage._bucket.connections.send)
        events.unregister(event, send)
    body = f"<Error><Code>{code}</Code><Message>{said}</Message></Error>".encode()
    raw: Any = type("Raw", (), {"headers": {}, "stream": lambda _: iter([body])})()
    register(storage, event, lambda **_: AWSResponse("http://h/", status, raw.headers, raw))


def check_nothing_is_left(storage: S3Storage) -> None:
    assert list(storage.walk("")) == []
    assert list(storage._bucket.uploads()) == []


def test_what_moto_can_do_is_recorded(s3_url: str) -> None:
    store = create_store(s3_url)
    assert store.capabilities == {
        "checksums_kept": True,
        "conditional_complete": True,
        "conditional_create": True,
        "object_lock": False,
        "restore": True,
        "storage_classes": ["STANDARD_IA", "GLACIER_IR", "GLACIER", "DEEP_ARCHIVE"],
        "versioning": False,
    }
    assert open_store(s3_url).capabilities == store.capabilities
    assert [info.key for info in store.storage.walk("")] == [STORE_FILE]


@pytest.mark.ceph
def test_what_a_real_gateway_can_do_is_recorded(ceph_url: str) -> None:
    store = create_store(ceph_url)
    assert store.capabilities["conditional_create"] is True
    assert store.capabilities["conditional_complete"] is False
    assert store.capabilities["checksums_kept"] is False
    assert store.capabilities["versioning"] is False
    assert store.capabilities["object_lock"] is False
    assert store.capabilities["restore"] is False
    assert "DEEP_ARCHIVE" not in store.capabilities["storage_classes"]
    assert [info.key for info in store.storage.walk("")] == [STORE_FILE]


@pytest.mark.ceph
def test_a_bucket_with_versions_is_refused_where_they_undo_conditions(
    ceph: CephGateway, ceph_url: str
) -> None:
    """Ceph 16 lets a second create pass there: it makes a second version."""
    client = client_of(ceph)
    with new_bucket(client, locked=True) as bucket:
        settings = replace(S3Settings.from_url(ceph_url), bucket=bucket)
        with pytest.raises(StorageError, match="as Ceph 16 does in a bucket with versions"):
            create_store(settings.to_url())
        check_nothing_is_left(S3Storage(settings))
        assert "Versions" not in client.list_object_versions(Bucket=bucket)


def test_versions_and_locks_are_seen_and_versions_of_the_probe_removed(
    storage: S3Storage,
) -> None:
    client = boto3.client("s3", endpoint_url=storage.settings.endpoint_url)
    client.create_bucket(Bucket="locked-models", ObjectLockEnabledForBucket=True)
    settings = replace(
        storage.settings, bucket="locked-models", lock_mode="GOVERNANCE", lock_days=1
    )
    store = create_store(settings.to_url())
    assert store.capabilities["versioning"] is True
    assert store.capabilities["object_lock"] is True
    versions = client.list_object_versions(Bucket="locked-models")
    assert [found["Key"] for found in versions["Versions"]] == [f"team/store/{STORE_FILE}"]
    assert "DeleteMarkers" not in versions


def test_a_lock_that_the_bucket_does_not_know_is_refused(storage: S3Storage) -> None:
    settings = replace(storage.settings, lock_mode="COMPLIANCE", lock_days=1)
    with pytest.raises(StorageError, match="expected a bucket made with object lock"):
        create_store(settings.to_url())
    check_nothing_is_left(storage)


def test_an_endpoint_that_overwrites_is_refused(storage: S3Storage) -> None:
    def strip(request: AWSRequest, **_: object) -> None:
        del request.headers["If-None-Match"]

    register(storage, "before-sign.s3.PutObject", strip)
    with pytest.raises(StorageError, match="ignores 'If-None-Match"):
        make_store(storage)
    check_nothing_is_left(storage)


def test_completing_without_conditions_is_recorded(storage: S3Storage) -> None:
    def strip(request: AWSRequest, **_: object) -> None:
        del request.headers["If-None-Match"]

    register(storage, "before-sign.s3.CompleteMultipartUpload", strip)
    assert make_store(storage).capabilities["conditional_complete"] is False
    assert [info.key for info in storage.walk("")] == [STORE_FILE]


@pytest.mark.parametrize(
    ("operation", "said", "right"),
    [
        ("CreateMultipartUpload", "no", "kms:GenerateDataKey and kms:Decrypt on that key"),
        ("UploadPart", "not authorized to perform: kms:Decrypt on resource", "kms:Decrypt;"),
        ("CompleteMultipartUpload", "no", "s3:PutObject .*kms:Decrypt"),
    ],
)
def test_a_key_policy_that_refuses_parts_is_named_with_the_right(
    storage: S3Storage, operation: str, said: str, right: str
) -> None:
    """Report aws/aws-cdk#8947: small objects pass, a large one fails, weeks later."""
    refuse(storage, operation, 403, "AccessDenied", said)
    with pytest.raises(StorageDeniedError, match=f"{operation}.*expected the right .*{right}"):
        make_store(storage)
    check_nothing_is_left(storage)


def test_parts_that_do_not_add_up_are_refused(storage: S3Storage) -> None:
    def shorten(parsed: dict[str, Any], **_: object) -> None:
        if parsed.get("ContentLength") == (5 << 20) + 1:
            parsed["ContentLength"] -= 1

    register(storage, "after-call.s3.HeadObject", shorten)
    with pytest.raises(StorageError, match=r"expected an object of 5242881 bytes.*got one of"):
        storage.capabilities()
    check_nothing_is_left(storage)


def test_what_may_not_be_asked_is_not_known(storage: S3Storage) -> None:
    for operation in ("GetBucketVersioning", "GetObjectLockConfiguration", "RestoreObject"):
        refuse(storage, operation, 403, "AccessDenied")
    store = make_store(storage)
    assert store.capabilities["versioning"] is None
    assert store.capabilities["object_lock"] is None
    assert store.capabilities["restore"] is None
    assert read_store(storage).capabilities == store.capabilities


def test_what_a_store_does_not_know_it_cannot_do(storage: S3Storage) -> None:
    for operation in ("GetBucketVersioning", "GetObjectLockConfiguration", "RestoreObject"):
        refuse(storage, operation, 501, "NotImplemented")

    def unknown_class(params: dict[str, Any], **_: object) -> None:
        params["headers"].pop("x-amz-storage-class", None)  # taken in silence, as rclone's does

    register(storage, "before-call.s3.PutObject", unknown_class)
    capabilities = storage.capabilities()
    assert capabilities["versioning"] is False
    assert capabilities["object_lock"] is False
    assert capabilities["restore"] is False
    assert capabilities["storage_classes"] == []


def test_a_server_that_fails_meanwhile_is_not_taken_for_one_that_cannot(
    storage: S3Storage,
) -> None:
    refuse(storage, "GetBucketVersioning", 503, "SlowDown")
    with pytest.raises(StoreUnreachableError):
        make_store(storage)
    check_nothing_is_left(storage)


def test_who_may_not_delete_is_told_what_was_left(
    storage: S3Storage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    refuse(storage, "DeleteObject", 403, "AccessDenied")
    make_store(storage)
    assert "object of the probe left behind" in caplog.text
    assert "s3:DeleteObject" in caplog.text
    left = [info.key for info in storage.walk("")]
    assert STORE_FILE in left
    assert all(key.startswith(".probe-") for key in left if key != STORE_FILE)
