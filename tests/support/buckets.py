"""The real Ceph gateway of a test run, and an empty place on it for each test.

`ceph` starts one gateway for the whole run. `ceph_url` gives a test an empty place in a new
bucket, with credentials in the environment, which child processes inherit; the bucket is emptied
and removed afterwards, so that the gateway holds in memory what one test wrote and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast
from uuid import uuid4

import boto3
import pytest
from botocore.config import Config

from strongroom.storage.s3_settings import S3Settings
from tests.support.ceph import CephGateway, ceph_gateway
from tests.support.fault_proxy import FaultProxy, fault_proxy

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

LEAST_PART_BYTES = 5 << 20  # S3's own


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CephGateway]:
    with ceph_gateway(tmp_path_factory.mktemp("ceph")) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def ceph_client(ceph: CephGateway) -> S3Client:
    """A plain client: for what a test does to a bucket behind strongroom's back."""
    return client_of(ceph)


@pytest.fixture(scope="session")
def ceph_proxy_server(ceph: CephGateway) -> Iterator[FaultProxy]:
    with fault_proxy(ceph.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def ceph_proxy(ceph_proxy_server: FaultProxy) -> Iterator[FaultProxy]:
    """A proxy before the gateway; nothing goes wrong until the test says so by `change`."""
    ceph_proxy_server.change()
    yield ceph_proxy_server
    ceph_proxy_server.change()


@pytest.fixture
def ceph_url(
    ceph: CephGateway, ceph_client: S3Client, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """URL of an empty place in a new bucket, with S3's least size of a part."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for name, value in ceph.environment().items():
        monkeypatch.setenv(name, value)
    with new_bucket(ceph_client) as bucket:
        yield S3Settings(
            bucket=bucket,
            prefix="team/store",
            endpoint_url=ceph.endpoint_url,
            region="us-east-1",
            path_style=True,
            part_bytes=LEAST_PART_BYTES,
        ).to_url()
        ceph.start_gateway()  # a test may have killed it


def client_of(gateway: CephGateway) -> S3Client:
    """Return a client of the gateway's one user."""
    client = boto3.client(
        "s3",
        endpoint_url=gateway.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=gateway.access_key,
        aws_secret_access_key=gateway.secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )
    return cast("S3Client", client)


@contextmanager
def new_bucket(client: S3Client, *, locked: bool = False) -> Iterator[str]:
    """Make a bucket, with object lock if asked for, and remove it with all that is in it then."""
    bucket = f"test-{uuid4().hex}"
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=locked)
    try:
        yield bucket
    finally:
        _empty(client, bucket, locked=locked)
        client.delete_bucket(Bucket=bucket)


def uploads_in(client: S3Client, bucket: str) -> list[str]:
    """Return the keys of the uploads, a thousand at most, that are neither complete nor aborted."""
    found = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return [upload["Key"] for upload in found]


def _empty(client: S3Client, bucket: str, *, locked: bool) -> None:
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
        for upload in page.get("Uploads", []):
            client.abort_multipart_upload(
                Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
            )
    for versions in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
        found = [*versions.get("Versions", []), *versions.get("DeleteMarkers", [])]
        if found:
            client.delete_objects(
                Bucket=bucket,
                Delete={
                    "Objects": [
                        {"Key": each["Key"], "VersionId": each["VersionId"]} for each in found
                    ]
                },
                BypassGovernanceRetention=locked,
            )
