from __future__ import annotations

import pytest
from botocore.exceptions import ReadTimeoutError

from strongroom.errors import InputError
from strongroom.storage.s3_errors import tries_for
from strongroom.storage.s3_settings import S3Settings


def test_a_url_says_everything_but_secrets() -> None:
    url = (
        "s3://bucket/team/store?endpoint_url=http://127.0.0.1:5000&region=us-east-1"
        "&path_style=true&checksums=when_supported"
    )
    settings = S3Settings.from_url(url)
    assert settings == S3Settings(
        bucket="bucket",
        prefix="team/store",
        endpoint_url="http://127.0.0.1:5000",
        region="us-east-1",
        path_style=True,
        checksums="when_supported",
    )
    assert settings.to_url() == url


def test_defaults_are_left_out() -> None:
    settings = S3Settings.from_url("s3://bucket/?path_style=false&checksums=when_required")
    assert settings == S3Settings(bucket="bucket")
    assert settings.to_url() == "s3://bucket"


def test_what_is_asked_of_new_objects_is_in_the_url() -> None:
    url = (
        "s3://bucket/store?storage_class=STANDARD_IA&encryption=aws:kms"
        "&kms_key_id=arn:aws:kms:eu-west-1:123456789012:key/ab-12&lock_mode=GOVERNANCE&lock_days=30"
    )
    settings = S3Settings.from_url(url)
    assert settings == S3Settings(
        bucket="bucket",
        prefix="store",
        storage_class="STANDARD_IA",
        encryption="aws:kms",
        kms_key_id="arn:aws:kms:eu-west-1:123456789012:key/ab-12",
        lock_mode="GOVERNANCE",
        lock_days=30,
    )
    assert settings.to_url() == url


def test_a_server_that_hangs_is_given_up_within_a_minute() -> None:
    settings = S3Settings(bucket="bucket")
    error = ReadTimeoutError(endpoint_url="http://h")
    tries = tries_for(error, read_timeout_s=settings.read_timeout_s)
    assert tries >= 3
    assert (tries + 1) * settings.read_timeout_s < 60  # once more to abort


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://bucket/prefix", "expected s3://"),
        ("s3://bucket/a#b", "expected s3://"),
        ("s3:///prefix", "bucket ''"),
        ("s3://b", "bucket 'b'"),
        ("s3://bucket:9000/prefix", "endpoint_url"),
        ("s3://bucket/a/../b", "storage key"),
        ("s3://bucket?path_style=yes", "expected true or false"),
        ("s3://bucket?path_style=True", "expected true or false"),
        ("s3://bucket?checksums=always", "expected when_supported or when_required"),
        ("s3://bucket?part_bytes=16MiB", "expected a number"),
        ("s3://bucket?part_bytes=1000", "expected 5242880 to"),
        ("s3://bucket?connect_timeout_s=nan", "expected above 0"),
        ("s3://bucket?read_timeout_s=0", "expected above 0"),
        ("s3://bucket?storage_class=standard", "class that can be read at once"),
        ("s3://bucket?storage_class=", "class that can be read at once"),
        ("s3://bucket?storage_class=GLACIER", "class that can be read at once"),
        ("s3://bucket?storage_class=DEEP_ARCHIVE", "class that can be read at once"),
        ("s3://bucket?encryption=aes", "expected AES256 or aws:kms"),
        ("s3://bucket?kms_key_id=ab", "together with encryption=aws:kms"),
        ("s3://bucket?encryption=AES256&kms_key_id=ab", "together with encryption=aws:kms"),
        ("s3://bucket?encryption=aws:kms&kms_key_id=a b", "id, alias or ARN"),
        ("s3://bucket?lock_mode=governance&lock_days=1", "expected GOVERNANCE or COMPLIANCE"),
        ("s3://bucket?lock_mode=GOVERNANCE", "both of them or neither"),
        ("s3://bucket?lock_days=3", "both of them or neither"),
        ("s3://bucket?lock_mode=COMPLIANCE&lock_days=0", "expected 1 to 36500"),
        ("s3://bucket?lock_mode=COMPLIANCE&lock_days=1.5", "expected a number"),
        ("s3://bucket?endpoint=http://h", "unknown or repeated parameters endpoint"),
        ("s3://bucket?region=a&region=b", "unknown or repeated parameters region"),
        ("s3://bucket?region=eu west", "expected letters"),
        ("s3://bucket?region", "cannot be read"),
        ("s3://bucket?endpoint_url=127.0.0.1:5000", "expected http://HOST:PORT"),
        ("s3://bucket?endpoint_url=http://", "expected http://HOST:PORT"),
        ("s3://bucket?endpoint_url=http://h:port", "expected http://HOST:PORT"),
        ("s3://bucket?endpoint_url=http://[::1", "expected http://HOST:PORT"),
        ("s3://bucket?endpoint_url=http://h?a=b", "expected http://HOST:PORT"),
    ],
)
def test_what_is_wrong_in_a_url_is_named(url: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason.replace("?", r"\?")):
        S3Settings.from_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEYID:hunter2@bucket/prefix",
        "s3://bucket?aws_secret_access_key=hunter2",
        "s3://bucket?endpoint_url=http://KEYID:hunter2@127.0.0.1:5000",
        "s3://KEYID:hunter2@bucket?part_bytes=x",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InputError) as caught:
        S3Settings.from_url(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
