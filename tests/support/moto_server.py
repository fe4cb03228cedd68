"""A real S3 server on 127.0.0.1 for tests: moto, in a process of its own.

`moto_server` starts one for the whole test session; `s3_url` gives a test an empty bucket on it and
credentials in the environment, which child processes inherit.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from strongroom.storage.s3_settings import S3Settings
from tests.support.processes import free_port, start, wait_until_it_answers

START_TIMEOUT_S = 120
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test-key",
    "AWS_SECRET_ACCESS_KEY": "test-secret",  # moto accepts any
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MotoServer:
    """A server that answers at `endpoint_url`."""

    endpoint_url: str
    pid: int


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    log = tmp_path_factory.mktemp("moto") / "server.log"
    port = free_port()
    process = start(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], log=log
    )
    try:
        server = MotoServer(endpoint_url=f"http://127.0.0.1:{port}", pid=process.pid)
        answers = f"{server.endpoint_url}/moto-api/"
        wait_until_it_answers(answers, process, log=log, timeout_s=START_TIMEOUT_S)
        yield server
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def s3_url(moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty place in a new bucket, with S3's least size of a part."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    bucket = f"test-{uuid4().hex}"
    request = urllib.request.Request(f"{moto_server.endpoint_url}/{bucket}", method="PUT")  # noqa: S310 -- our own http server
    urllib.request.urlopen(request).close()  # noqa: S310 -- as above
    return S3Settings(
        bucket=bucket,
        prefix="team/store",
        endpoint_url=moto_server.endpoint_url,
        region="us-east-1",
        path_style=True,
        part_bytes=5 << 20,
    ).to_url()
