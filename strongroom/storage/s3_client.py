"""The boto3 client of an S3 storage: boto3's own in all but three things.

1. Requests that carry an object's bytes go over our connections, bodies uncopied (s3_connections).
2. They are signed with the digest that their body brings, over TLS too (s3_body).
3. `Content-MD5` covers requests that S3 wants a checksum of: Amazon takes that as well as the newer
   CRC, and other servers know nothing else (reports boto/botocore#3352, boto/boto3#4392).
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import boto3
import botocore.session
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.httpsession import get_cert_path

from strongroom.storage.s3_body import SIGNATURE
from strongroom.storage.s3_connections import Connections
from strongroom.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CARRIERS = ("GetObject", "PutObject", "UploadPart")
"""The requests that carry an object's bytes."""

_OF_OLD = ("DeleteObjects", "PutObjectRetention")
_SIGNED_BY_V4 = {"s3v4", "v4"}


def make_client(settings: S3Settings) -> tuple[S3Client, Connections]:
    """Return a client with credentials read anew, and the connections that it sends bytes over.

    Raises:
        BotoCoreError: the profile chosen in the environment does not exist, or the like.
    """
    config = Config(
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        retries={"total_max_attempts": 1, "mode": "standard"},  # `Bucket` tries again
        request_checksum_calculation="when_required",  # a `Body` brings its own
        response_checksum_validation=settings.checksums,
        s3={"addressing_style": "path" if settings.path_style else "auto"},
    )
    core = botocore.session.get_session()
    session = boto3.session.Session(botocore_session=core, region_name=settings.region)
    client = cast(
        "S3Client", session.client("s3", endpoint_url=settings.endpoint_url, config=config)
    )
    connections = Connections(
        connect_timeout_s=settings.connect_timeout_s,
        read_timeout_s=settings.read_timeout_s,
        # As botocore chooses for the rest of the requests.
        ca_file=str(
            core.get_config_variable("ca_bundle")
            or os.environ.get("REQUESTS_CA_BUNDLE")
            or get_cert_path(verify=True)
        ),
    )
    for operation in CARRIERS:
        _register(client, f"choose-signer.s3.{operation}", _signature)
        _register(client, f"before-send.s3.{operation}", connections.send)
    for operation in _OF_OLD:
        _register(client, f"before-sign.s3.{operation}", _cover_by_md5)
    return client, connections


def _register(client: S3Client, event: str, handler: Callable[..., object]) -> None:
    client.meta.events.register(event, cast("Callable[..., None]", handler))


def _signature(signature_version: str, **_: object) -> str | None:
    # What is signed otherwise (S3 Express, presigned URLs, not at all) is left to botocore.
    return SIGNATURE if signature_version in _SIGNED_BY_V4 else None


def _cover_by_md5(request: AWSRequest, **_: object) -> None:
    for name in list(request.headers):
        if name.lower().startswith(("x-amz-checksum-", "x-amz-sdk-checksum-")):
            del request.headers[name]
    digest = hashlib.md5(cast("bytes", request.body), usedforsecurity=False).digest()
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()
