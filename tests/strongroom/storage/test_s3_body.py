from __future__ import annotations

import base64
import hashlib
import io
import zlib
from typing import cast

import numpy as np
import pytest
from botocore.auth import AUTH_TYPE_MAPS, S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from strongroom.names import Digest
from strongroom.storage.s3_body import SIGNATURE, Body

DATA = bytes(range(256)) * 10


def cut(*ends: int) -> list[memoryview]:
    begins = (0, *ends)
    return [
        memoryview(DATA)[begin:end] for begin, end in zip(begins, (*ends, len(DATA)), strict=True)
    ]


@pytest.mark.parametrize("buffers", [cut(), cut(1), cut(0, 7, 7, 2000), cut(len(DATA))])
def test_buffers_are_read_as_one_file(buffers: list[memoryview]) -> None:
    body = Body(buffers)
    assert body.num_bytes == body.seek(0, io.SEEK_END) == len(DATA)
    assert body.rewound().read(1) == DATA[:1]
    assert body.tell() == 1
    assert body.read() == DATA[1:]
    assert body.read(1) == b""
    assert body.seek(-3, io.SEEK_END) == len(DATA) - 3
    assert body.seek(1, io.SEEK_CUR) == len(DATA) - 2
    assert body.read() == DATA[-2:]
    assert body.rewound().read() == DATA


def test_typed_memory_is_a_body_of_bytes() -> None:
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    body = Body([numbers.data, np.empty((0, 2)).data])
    assert body.read() == numbers.tobytes()
    assert body.sha256 == Digest.of(numbers.tobytes())


def test_digests_are_of_all_buffers() -> None:
    body = Body(cut(3, 3, 900))
    assert body.sha256.hex == hashlib.sha256(DATA).hexdigest()
    assert int.from_bytes(base64.b64decode(body.crc32()), "big") == zlib.crc32(DATA)
    assert Body([]).sha256 == Digest.of(b"")


def test_a_digest_is_computed_once_and_never_where_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body, given = Body(cut(3)), Body(cut(3), Digest.of(b"other"))
    assert body.sha256 == Digest.of(DATA)

    def refuse() -> None:
        pytest.fail("hashed again")

    monkeypatch.setattr(hashlib, "sha256", refuse)
    assert body.sha256.hex == hashlib.new("sha256", DATA).hexdigest()
    assert given.sha256.hex == hashlib.new("sha256", b"other").hexdigest()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_signer_takes_the_digest_from_the_body(scheme: str) -> None:
    given = Digest.of(b"other")
    signer = cast("type[S3SigV4Auth]", AUTH_TYPE_MAPS[SIGNATURE])(
        Credentials("key", "secret"), "s3", "us-east-1"
    )
    request = AWSRequest("PUT", f"{scheme}://host/bucket/key", data=Body(cut(), given))
    request.context["has_streaming_input"] = True  # botocore would sign no payload over TLS
    request.headers["Content-MD5"] = "x"
    signer.add_auth(request)
    assert request.headers["X-Amz-Content-SHA256"] == given.hex
