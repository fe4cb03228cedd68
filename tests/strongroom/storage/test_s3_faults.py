"""S3 storage on a real Ceph gateway while things go wrong, on the way to it and in it.

After every fault either the object stands whole or there is none, what stood before is as it was,
and no part of an upload is left once `discard_unfinished` has run.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.compat import get_current_datetime

from strongroom.errors import (
    StorageDeniedError,
    StorageError,
    StorageFullError,
    StoreUnreachableError,
)
from strongroom.storage.base import Part, Storage
from strongroom.storage.s3 import S3Settings, S3Storage
from strongroom.storage.s3_errors import BUSY_TRIES
from tests.support.buckets import uploads_in
from tests.support.ceph import USER, CephGateway
from tests.support.fault_proxy import FaultProxy
from tests.support.objects import PART, SIX_PARTS, keys, parts_of, put_parts, put_stream

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.ceph

ROOT = Path(__file__).resolve().parent.parent.parent.parent
BEFORE = b"what stood here before"
READ_TIMEOUT_S = 1.0


@pytest.fixture
def storage(ceph_url: str, ceph_proxy: FaultProxy) -> S3Storage:
    """A storage behind the proxy, in which one object stands."""
    settings = replace(
        S3Settings.from_url(ceph_url), endpoint_url=ceph_proxy.url, read_timeout_s=READ_TIMEOUT_S
    )
    storage = S3Storage(settings)
    storage.create("step-10/shard", BEFORE)
    return storage


def check_nothing_came(storage: S3Storage, client: S3Client) -> None:
    """Check that what stood before is all there is, and that a sweep leaves no part behind."""
    assert keys(storage) == ["step-10/shard"]
    assert storage.read("step-10/shard") == BEFORE
    storage.discard_unfinished(older_than_s=0)
    assert uploads_in(client, storage.settings.bucket) == []


# --- what passes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "counted"),
    [
        ({"busy_share": 0.3}, "busy"),
        ({"reset_share": 0.3}, "reset"),
        ({"stall_share": 0.3, "stall_s": 600.0}, "stall"),
        ({"busy_share": 0.2, "reset_share": 0.2, "stall_share": 0.1, "stall_s": 600.0}, "reset"),
    ],
    ids=["busy", "reset", "stalled", "all of it"],
)
def test_three_of_ten_parts_fail_under_many_writers(
    storage: S3Storage,
    ceph_client: S3Client,
    ceph_proxy: FaultProxy,
    faults: dict[str, float],
    counted: str,
) -> None:
    """Report ray-project/ray#36690: many ranks under one prefix."""
    ceph_proxy.change(**faults)
    shards = {f"step-20/__{rank}_0.distcp": bytes([rank]) + SIX_PARTS for rank in range(3)}
    with ThreadPoolExecutor(len(shards)) as pool:
        list(pool.map(lambda key: put_parts(storage, key, shards[key]), shards))
    counters = ceph_proxy.counters()
    assert counters[counted] > 0
    assert counters["parts"] >= 18 + counters["busy"] + counters["reset"] + counters["stall"]
    ceph_proxy.change()
    for key, data in shards.items():
        assert storage.read(key) == data
    assert uploads_in(ceph_client, storage.settings.bucket) == []


@pytest.mark.parametrize("share", ["get_reset_share", "get_cut_share"])
def test_half_of_all_reads_break_off(
    storage: S3Storage, ceph_proxy: FaultProxy, share: str
) -> None:
    put_parts(storage, "step-20/shard")
    ceph_proxy.change(**{share: 0.5})
    for offset in range(0, 20 << 20, 2 << 20):
        got = bytearray(3 << 20)
        view = memoryview(got)
        storage.read_into("step-20/shard", offset, [view[:100], view[100:]])
        assert got == SIX_PARTS[offset : offset + len(got)]
    assert ceph_proxy.counters()[share.removesuffix("_share")] > 2
    assert storage.read("step-20/shard") == SIX_PARTS


@pytest.mark.parametrize("num_answers", [1, 2])
def test_an_object_whose_writer_was_not_told_is_found_to_be_its_own(
    storage: S3Storage, ceph_client: S3Client, ceph_proxy: FaultProxy, num_answers: int
) -> None:
    ceph_proxy.change(lost_answers=num_answers)
    put_parts(storage, "step-20/shard")
    ceph_proxy.change(lost_answers=num_answers)
    storage.create("step-20/manifest.json", b"mine")
    assert ceph_proxy.counters()["lost_answers"] == num_answers
    assert storage.read("step-20/shard") == SIX_PARTS
    assert storage.read("step-20/manifest.json") == b"mine"
    assert uploads_in(ceph_client, storage.settings.bucket) == []


def test_expired_credentials_are_read_anew_once(
    storage: S3Storage, ceph_client: S3Client, ceph_proxy: FaultProxy
) -> None:
    """Report boto/boto3#3893: a token that expires while an upload goes on."""
    ceph_proxy.change(refuse_code="ExpiredToken", refuse_from_part=4, refuse_times=1)
    put_parts(storage, "step-20/shard")
    assert ceph_proxy.counters()["refuse"] == 1
    assert storage.read("step-20/shard") == SIX_PARTS
    assert uploads_in(ceph_client, storage.settings.bucket) == []


# --- what does not pass ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "kind", "message"),
    [
        ({"busy_share": 1.0}, StoreUnreachableError, rf"tried {BUSY_TRIES} times.*SlowDown"),
        ({"reset_share": 1.0}, StoreUnreachableError, rf"tried {BUSY_TRIES} times"),
        (
            {"refuse_code": "ExpiredToken", "refuse_from_part": 4},
            StorageDeniedError,
            "ExpiredToken.*have expired.*renew them",
        ),
        (
            {"refuse_code": "RequestTimeTooSkewed", "refuse_from_part": 4},
            StorageDeniedError,
            "RequestTimeTooSkewed.*the clocks differ",
        ),
        (
            {"refuse_code": "AccessDenied"},
            StorageDeniedError,
            r"UploadPart.*AccessDenied.*s3:PutObject.*kms:GenerateDataKey and kms:Decrypt",
        ),
        (
            {"refuse_code": "SignatureDoesNotMatch", "refuse_from_part": 2},
            StorageDeniedError,
            "SignatureDoesNotMatch",
        ),
        (
            {"refuse_code": "InsufficientStorage", "refuse_from_part": 5},
            StorageFullError,
            "no space is left",
        ),
    ],
    ids=["busy", "reset", "expired", "skewed", "denied", "signature", "full"],
)
@pytest.mark.parametrize("put", [put_parts, put_stream])
def test_an_upload_that_cannot_succeed_is_named_and_leaves_nothing(  # noqa: PLR0913, PLR0917 -- what fails, and how
    storage: S3Storage,
    ceph_client: S3Client,
    ceph_proxy: FaultProxy,
    put: Callable[[Storage, str], None],
    faults: dict[str, Any],
    kind: type[StorageError],
    message: str,
) -> None:
    """Reports aws/aws-cdk#8947, aws/aws-cli#1065 and aws/aws-cli#4562."""
    ceph_proxy.change(**faults)
    storage.create("small", b"what fits into one request is let through")
    storage.delete("small")
    with pytest.raises(kind, match=message) as caught:
        put(storage, "step-20/shard")
    assert f"{storage.settings.bucket}/team/store/step-20/shard" in str(caught.value)
    assert uploads_in(ceph_client, storage.settings.bucket) == []  # aborted at once
    check_nothing_came(storage, ceph_client)


def test_a_storage_that_stalls_for_ever_is_given_up_in_bounded_time(
    storage: S3Storage, ceph_client: S3Client, ceph_proxy: FaultProxy
) -> None:
    ceph_proxy.change(stall_share=1.0, stall_s=600.0)
    patient = S3Storage(replace(storage.settings, read_timeout_s=0.2))
    begun = time.monotonic()
    with pytest.raises(StoreUnreachableError, match=r"UploadPart got no answer"):
        put_parts(patient, "step-20/shard")
    assert time.monotonic() - begun < 60
    check_nothing_came(storage, ceph_client)


def test_a_clock_that_is_wrong_is_named_and_each_part_is_signed_when_it_is_sent(
    storage: S3Storage, ceph_client: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports aws/aws-cli#1065: a signature is good for 15 minutes, an upload takes longer."""
    first, *others = parts_of(SIX_PARTS)
    with storage.create_parts("step-20/shard", num_bytes=len(SIX_PARTS)) as writer:
        writer.put(first)
        with monkeypatch.context() as clock:
            an_hour_ago = get_current_datetime() - timedelta(hours=1)
            clock.setattr("botocore.auth.get_current_datetime", lambda: an_hour_ago)
            with pytest.raises(StorageDeniedError, match="the clocks differ"):
                writer.put(others[0])
        for part in others:
            writer.put(part)
    assert storage.read("step-20/shard") == SIX_PARTS
    assert uploads_in(ceph_client, storage.settings.bucket) == []


def test_credentials_that_are_withdrawn_during_an_upload_are_named(
    storage: S3Storage, ceph_client: S3Client, ceph: CephGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ("--uid", USER, "--key-type", "s3", "--access-key", "FOR-A-WHILE")
    ceph.admin("key", "create", *key, "--secret-key", "secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FOR-A-WHILE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    short_lived = S3Storage(storage.settings)

    def withdraw(part: Part) -> None:
        if part.number == 3:
            ceph.admin("key", "rm", *key)

    with pytest.raises(StorageDeniedError, match=r"InvalidAccessKeyId.*renew or correct them"):
        put_parts(short_lived, "step-20/shard", before=withdraw)
    assert uploads_in(ceph_client, storage.settings.bucket) == [
        "team/store/step-20/shard"
    ]  # it could not be aborted
    check_nothing_came(storage, ceph_client)


def test_a_bucket_that_is_full_is_named(
    storage: S3Storage, ceph_client: S3Client, ceph: CephGateway
) -> None:
    quota = ("--quota-scope", "bucket", "--bucket", storage.settings.bucket)
    ceph.admin("quota", "set", *quota, "--max-size", str(12 << 20))
    ceph.admin("quota", "enable", *quota)
    with pytest.raises(StorageFullError, match=r"QuotaExceeded.*free space or raise the quota"):
        put_parts(storage, "step-20/shard")
    check_nothing_came(storage, ceph_client)
    storage.create("small", b"there is room for this")
    ceph.admin("quota", "disable", *quota)
    put_parts(storage, "step-20/shard")
    assert storage.read("step-20/shard") == SIX_PARTS


def test_a_gateway_that_is_killed_during_an_upload(
    ceph_url: str, ceph_client: S3Client, ceph: CephGateway, caplog: pytest.LogCaptureFixture
) -> None:
    storage = S3Storage(S3Settings.from_url(ceph_url))
    storage.create("step-10/shard", BEFORE)

    def kill(part: Part) -> None:
        if part.number == 3:
            ceph.kill_gateway()

    with pytest.raises(StoreUnreachableError, match="check that the endpoint runs"):
        put_parts(storage, "step-20/shard", before=kill)
    assert "unfinished upload left behind" in caplog.text
    ceph.start_gateway()
    assert uploads_in(ceph_client, storage.settings.bucket) == ["team/store/step-20/shard"]
    check_nothing_came(storage, ceph_client)
    put_parts(storage, "step-20/shard")
    assert storage.read("step-20/shard") == SIX_PARTS


UPLOADER = """
import sys
from strongroom.storage.s3 import S3Settings, S3Storage
storage = S3Storage(S3Settings.from_url(sys.argv[1]))
with storage.create_stream("step-20/shard") as writer:
    while True:
        writer.write(bytes(5 << 20))
"""


def test_the_parts_of_a_process_that_was_killed_are_swept_by_age(
    storage: S3Storage, ceph_client: S3Client, ceph_proxy: FaultProxy
) -> None:
    """Report TileDB-Inc/TileDB#1068: parts that no list of objects shows, and that cost."""
    process = subprocess.Popen([sys.executable, "-c", UPLOADER, storage.url], cwd=ROOT)
    while ceph_proxy.counters()["parts"] < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (upload,) = ceph_client.list_multipart_uploads(Bucket=storage.settings.bucket)["Uploads"]
    list_parts = partial(
        ceph_client.list_parts,
        Bucket=storage.settings.bucket,
        Key=upload["Key"],
        UploadId=upload["UploadId"],
    )
    left = list_parts()["Parts"]
    assert sum(part["Size"] for part in left) >= 2 * PART
    assert keys(storage) == ["step-10/shard"]
    assert storage.discard_unfinished(older_than_s=3600) == []
    assert storage.discard_unfinished(older_than_s=0) == ["step-20/shard"]
    check_nothing_came(storage, ceph_client)
    with pytest.raises(ceph_client.exceptions.ClientError, match="NoSuch"):
        list_parts()


def test_more_uploads_than_one_list_holds_are_swept(
    storage: S3Storage, ceph_client: S3Client
) -> None:
    begin = partial(ceph_client.create_multipart_upload, Bucket=storage.settings.bucket)
    wanted = [f"step-20/shard-{number:04d}" for number in range(1001)]
    with ThreadPoolExecutor(8) as pool:
        for key in wanted:
            pool.submit(begin, Key=f"team/store/{key}")
    begin(Key="team/store-2/shard")
    assert sorted(storage.discard_unfinished(older_than_s=0)) == wanted
    assert uploads_in(ceph_client, storage.settings.bucket) == ["team/store-2/shard"]


# --- reads -----------------------------------------------------------------------------------


def test_reads_that_always_break_off_are_given_up(
    storage: S3Storage, ceph_proxy: FaultProxy
) -> None:
    put_parts(storage, "step-20/shard")
    ceph_proxy.change(get_reset_share=1.0)
    with pytest.raises(StoreUnreachableError, match=f"GetObject.*tried {BUSY_TRIES} times"):
        storage.read_into("step-20/shard", 5, [memoryview(bytearray(PART))])


def test_a_span_answered_by_the_whole_object_is_found_out(
    storage: S3Storage, ceph_client: S3Client, ceph_proxy: FaultProxy
) -> None:
    put_parts(storage, "step-20/shard")
    ceph_client.put_object_acl(
        Bucket=storage.settings.bucket, Key="team/store/step-20/shard", ACL="public-read"
    )
    ceph_proxy.change(ignore_ranges=True)
    target = bytearray(100)
    for read in (
        partial(storage.read, "step-20/shard", offset=PART, num_bytes=100),
        partial(storage.read, "step-20/shard", num_bytes=100),
        partial(storage.read_into, "step-20/shard", 0, [memoryview(target)]),
        partial(storage.read_into, "step-20/shard", PART, [memoryview(target)]),
    ):
        with pytest.raises(StorageError, match="this endpoint ignores Range"):
            read()
    assert target == bytes(100)
    assert ceph_proxy.counters()["ignore_ranges"] == 4


# --- lists and deletes -----------------------------------------------------------------------


def many(storage: Storage, names: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: storage.create(name, b"x"), names))


def test_a_folder_of_2500_is_listed_and_deleted_and_no_neighbour_of_it(
    storage: S3Storage, ceph_proxy: FaultProxy
) -> None:
    """Reports minio/minio#16880 and mickael-kerjean/filestash PR 996."""
    shards = [f"runs/r1/step-10/shard-{number:05d}" for number in range(2500)]
    others = ["runs/r1/step-10.bak/a", "runs/r1/step-100/a", "runs/r10/step-10/a", "step-10/shard"]
    many(storage, shards)
    many(storage, others[:-1])
    assert keys(storage, "runs/r1/step-10") == shards
    assert keys(storage) == sorted(shards + others)
    assert storage.folders("runs/r1") == ["step-10", "step-10.bak", "step-100"]
    ceph_proxy.change()
    storage.delete_many(keys(storage, "runs/r1/step-10"))
    counters = ceph_proxy.counters()
    assert (counters["deletes_of_many"], counters["DELETE"]) == (3, 0)
    assert keys(storage, "runs/r1/step-10") == []
    assert keys(storage) == others


def test_deletes_that_are_refused_for_the_moment_are_asked_for_again(
    storage: S3Storage, ceph_proxy: FaultProxy
) -> None:
    many(storage, ["a", "b"])
    ceph_proxy.change(delete_refusals=1)
    storage.delete_many(["a", "b", "never-there"])
    assert ceph_proxy.counters()["delete_refusals"] == 1
    assert keys(storage) == ["step-10/shard"]


def test_a_delete_of_many_that_says_200_names_what_stayed_and_why(
    storage: S3Storage, ceph_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strongroom.storage.s3.DELETE_MAX", 2)
    many(storage, ["a", "b", "c", "d"])
    ceph_proxy.change(delete_refusals=1, delete_refusal_code="AccessDenied")
    with pytest.raises(StorageDeniedError, match="the right s3:DeleteObject") as caught:
        storage.delete_many(["a", "b", "c", "d"])
    named = [name for name in "abcd" if f"team/store/{name}: " in str(caught.value)]
    assert named == ["a", "b"]
    assert keys(storage) == ["a", "b", "step-10/shard"]
    storage.delete_many(["a", "b", "c", "d"])
    assert keys(storage) == ["step-10/shard"]


def test_a_store_that_cannot_delete_many_is_asked_one_by_one(
    storage: S3Storage, ceph_proxy: FaultProxy
) -> None:
    """Report CERT-Polska/karton#269."""
    many(storage, ["a", "b", "c"])
    ceph_proxy.change(has_no_bulk_delete=True)
    storage.delete_many(["a", "b"])
    storage.delete_many(["c"])
    counters = ceph_proxy.counters()
    assert (counters["deletes_of_many"], counters["DELETE"]) == (1, 3)
    assert keys(storage) == ["step-10/shard"]


def test_a_server_that_knows_no_checksums_and_wants_md5_is_served(
    storage: S3Storage, ceph_proxy: FaultProxy
) -> None:
    """Reports boto/botocore#3352, boto/boto3#4392 and amd/gaia PR 3029."""
    ceph_proxy.change(is_old=True)
    storage.create("small", b"data")
    storage.replace("head", b"data")
    put_parts(storage, "large")
    put_stream(storage, "stream")
    assert storage.read("large") == storage.read("stream") == SIX_PARTS
    storage.delete_many(["small", "head", "stream"])
    counters = ceph_proxy.counters()
    assert (counters["is_old"], counters["deletes_of_many"], counters["DELETE"]) == (0, 1, 0)
    assert keys(storage) == ["large", "step-10/shard"]
