from __future__ import annotations

import pytest

from strongroom.errors import InputError
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
