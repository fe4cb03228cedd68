"""Where benchmarks store: on local disk, in a Ceph gateway started for them, or far away.

The process that runs a benchmark opens a place; those that measure are given it as JSON.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from benchmarks.far_endpoint import far_endpoint
from strongroom.canonical import JsonObject
from strongroom.storage.base import Storage
from strongroom.storage.s3_settings import S3Settings
from strongroom.storage.store import open_storage
from tests.support.ceph import ceph_gateway
from tests.support.fault_proxy import fault_proxy

BUCKET = "bench"
REGION = "us-east-1"
OSD_BYTES = 12 * 2**30
FAR_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A place to store at.

    Attributes:
        url: opens it as strongroom storage.
        folder: of local storage; '' for S3.
        endpoint_url: of S3; '' for local storage.
        etag_url: the same S3 through a proxy that adds the ETag which rgw 16 leaves out of its
            answer to CompleteMultipartUpload.
        server_pids: processes of the server; their CPU time is measured apart.
    """

    url: str
    folder: str = ""
    endpoint_url: str = ""
    etag_url: str = ""
    server_pids: tuple[int, ...] = ()

    def to_json(self) -> JsonObject:
        """Return it as JSON, for another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Place:
        """Read what `to_json` returned."""
        return cls(**{**document, "server_pids": tuple(document["server_pids"])})

    def storage(self) -> Storage:
        """Return the place as strongroom storage."""
        return open_storage(self.url)

    def forget(self) -> None:
        """Have the page cache forget all files of local storage: what reads them reads the disk."""
        for file in Path(self.folder).rglob("*"):
            if file.is_file():
                descriptor = os.open(file, os.O_RDONLY)
                os.fsync(descriptor)  # what is not on the disk cannot be forgotten
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)

    def stored_bytes(self) -> int:
        """Return the bytes of all objects stored."""
        return sum(found.num_bytes for found in self.storage().walk(""))


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenPlace:
    """A place as its opener has it; `empty` deletes everything stored there, and waits for it."""

    place: Place
    empty: Callable[[], None]


@contextmanager
def open_place(kind: str, folder: Path) -> Iterator[OpenPlace]:
    """Open a place of a kind of `PLACES`, in a new folder in `folder`, while the block lasts."""
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix=f"{kind}-") as name,
        PLACES[kind](Path(name)) as opened,
    ):
        yield opened


@contextmanager
def _disk(folder: Path) -> Iterator[OpenPlace]:
    root = folder / "objects"

    def empty() -> None:
        shutil.rmtree(root)
        root.mkdir()

    root.mkdir()
    yield OpenPlace(place=Place(url=root.as_uri(), folder=str(root)), empty=empty)


@contextmanager
def _gateway(_folder: Path) -> Iterator[OpenPlace]:
    # Objects are kept in memory, and the paths of Ceph's sockets must be short.
    with (
        tempfile.TemporaryDirectory(prefix="ceph-") as short,
        ceph_gateway(Path(short), osd_bytes=OSD_BYTES) as gateway,
        fault_proxy(gateway.endpoint_url, etag_fix=True) as proxy,
    ):
        place = _s3_place(
            gateway.endpoint_url,
            etag_url=proxy.url,
            server_pids=gateway.pids,
            environment=gateway.environment(),
        )

        def empty() -> None:
            _delete_all(place)
            gateway.admin("gc", "process", "--include-all")  # else it happens during the next trial

        yield OpenPlace(place=place, empty=empty)


@contextmanager
def _far(folder: Path) -> Iterator[OpenPlace]:
    with far_endpoint(folder) as url:
        place = _s3_place(url, environment=FAR_CREDENTIALS)
        yield OpenPlace(place=place, empty=lambda: _delete_all(place))


def _delete_all(place: Place) -> None:
    storage = place.storage()
    storage.delete_many([found.key for found in storage.walk("")])
    storage.discard_unfinished(older_than_s=0)


def _s3_place(
    endpoint_url: str,
    *,
    environment: Mapping[str, str],
    etag_url: str = "",
    server_pids: tuple[int, ...] = (),
) -> Place:
    """Return a new bucket at a server on this machine.

    Args:
        endpoint_url: of the server.
        environment: variables that hold the credentials: set here, and so for every trial.
        etag_url: see `Place`.
        server_pids: see `Place`.
    """
    os.environ.update(environment)
    client = boto3.session.Session().client(
        "s3", endpoint_url=endpoint_url, config=Config(s3={"addressing_style": "path"})
    )
    client.create_bucket(Bucket=BUCKET)
    settings = S3Settings(bucket=BUCKET, endpoint_url=endpoint_url, region=REGION, path_style=True)
    return Place(
        url=settings.to_url(),
        endpoint_url=endpoint_url,
        etag_url=etag_url,
        server_pids=server_pids,
    )


PLACES = {"gateway": _gateway, "disk": _disk, "far": _far}
"""The kinds of places, and what opens each."""
