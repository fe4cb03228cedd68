"""A real S3 server on 127.0.0.1 for tests: moto, in a process of its own.

`moto_server` starts one for the whole test session; `s3_url` gives a test an empty bucket on it and
credentials in the environment, which child processes inherit.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from strongroom.storage.s3_settings import S3Settings

START_TIMEOUT_S = 120
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
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
    port = _free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_the_tests,  # noqa: PLW1509 -- it calls prctl alone
        )
    try:
        server = MotoServer(endpoint_url=f"http://127.0.0.1:{port}", pid=process.pid)
        _wait_until_it_answers(server, process, log)
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


def _die_with_the_tests() -> None:
    """Have Linux end this process when the test process is killed, which runs no clean-up."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_it_answers(server: MotoServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{server.endpoint_url}/moto-api/") as answer:  # noqa: S310 -- our own http server
                if answer.status == 200:
                    return
        except urllib.error.URLError:
            time.sleep(0.1)
    pytest.fail(f"moto_server did not answer; its log:\n{log.read_text(errors='replace')}")
