"""An S3 endpoint that stands for storage on another machine, at the end of a line of limited speed.

It costs this machine next to nothing: the bytes of parts are thrown away in the kernel, unread, as
fast as the line would carry them. Small objects are kept, so that what was written can be looked
up. One bucket, no errors, no signatures checked; for benchmarks alone.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from benchmarks.trial import ROOT
from tests.support.processes import free_port, start, wait_until_it_answers

BYTES_PER_S = 250e6
KEPT_MAX_BYTES = 2**20
BLOCK_BYTES = 2**18
WHOLE = "<IsTruncated>false</IsTruncated>"
ETAG = '"0123456789abcdef0123456789abcdef"'
START_TIMEOUT_S = 60.0


class _Line:
    """What all connections share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def carry(self, num_bytes: int) -> None:
        """Wait until the line has carried what came before, and this."""
        with self._lock:
            now_s = time.monotonic()
            self._free_at_s = max(self._free_at_s, now_s) + num_bytes / BYTES_PER_S
            wait_s = self._free_at_s - now_s
        time.sleep(wait_s)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    rbufsize = 0  # no byte of a body is read with the head
    line = _Line()
    objects: ClassVar[dict[str, bytes | int]] = {}  # the bytes, or of a large one their number
    uploads: ClassVar[dict[str, int]] = {}  # the bytes of the parts that are there

    def do_PUT(self) -> None:
        key, query = self._target()
        if "x-amz-copy-source" in self.headers:
            source = unquote(self.headers["x-amz-copy-source"]).lstrip("/").partition("/")[2]
            self.objects[key] = self.objects[source]
            self._answer(200, f"<CopyObjectResult><ETag>{ETAG}</ETag></CopyObjectResult>")
            return
        if key and "If-None-Match" in self.headers and key in self.objects:
            self._body()
            self._answer(412, "<Error><Code>PreconditionFailed</Code></Error>")
            return
        stored = self._body()
        if "partNumber" in query:
            self.uploads[key] += _size(stored)
        elif key:
            self.objects[key] = stored
        self._answer(200)

    def do_POST(self) -> None:
        key, query = self._target()
        body = self._body()
        if "uploads" in query:
            self.uploads[key] = 0
            kind, inner = "InitiateMultipartUploadResult", "<UploadId>1</UploadId>"
        elif "delete" in query and isinstance(body, bytes):
            for found in re.findall(rb"<Key>(.*?)</Key>", body):
                self.objects.pop(found.decode(), None)
            kind, inner = "DeleteResult", ""
        else:
            self.objects[key] = self.uploads.pop(key)
            kind = "CompleteMultipartUploadResult"
            inner = f"<Key>{key}</Key><ETag>{ETAG}</ETag>"
        self._answer(200, f"<{kind}>{inner}</{kind}>")

    def do_GET(self) -> None:
        key, query = self._target()
        stored = self.objects.get(key)
        if "uploads" in query:
            self._answer(200, f"<ListMultipartUploadsResult>{WHOLE}</ListMultipartUploadsResult>")
        elif not key:
            (prefix,) = query.get("prefix", [""])
            found = "".join(
                f"<Contents><Key>{name}</Key><Size>{_size(stored)}</Size></Contents>"
                for name, stored in sorted(self.objects.items())
                if name.startswith(prefix)
            )
            self._answer(200, f"<ListBucketResult>{WHOLE}{found}</ListBucketResult>")
        elif isinstance(stored, bytes):
            self._answer(200, stored)
        else:
            self._answer(404, "<Error><Code>NoSuchKey</Code></Error>")

    def do_HEAD(self) -> None:
        key, _ = self._target()
        if key and key not in self.objects:
            self._answer(404)
        else:
            self._answer(200, num_bytes=_size(self.objects[key]) if key else 0)

    def do_DELETE(self) -> None:
        (self.uploads if "uploadId" in self.path else self.objects).pop(self._target()[0], None)
        self._answer(204)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _target(self) -> tuple[str, dict[str, list[str]]]:
        """Return the key, '' for the bucket itself, and the query."""
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        return unquote(parts.path).lstrip("/").partition("/")[2], query

    def _body(self) -> bytes | int:
        """Take the body off the line; return it, or of a large one the number of bytes."""
        num_bytes = int(self.headers.get("Content-Length", 0))
        if num_bytes <= KEPT_MAX_BYTES:
            self.line.carry(num_bytes)
            body = b""
            while len(body) < num_bytes:
                body += self.connection.recv(num_bytes - len(body))
            return body
        left, nowhere = num_bytes, memoryview(bytearray(BLOCK_BYTES))
        while left:
            # tcp(7): with MSG_TRUNC the bytes are discarded, and nothing is written to the buffer.
            got = self.connection.recv_into(nowhere, min(left, BLOCK_BYTES), socket.MSG_TRUNC)
            if not got:
                raise ConnectionError("cut within a body")
            self.line.carry(got)
            left -= got
        return num_bytes

    def _answer(self, status: int, body: str | bytes = b"", num_bytes: int | None = None) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("ETag", ETAG)
        self.send_header("Last-Modified", "Tue, 01 Dec 2026 00:00:00 GMT")
        if status != 204:  # noqa: PLR2004 -- HTTP's own number
            self.send_header("Content-Length", str(len(data) if num_bytes is None else num_bytes))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _size(stored: bytes | int) -> int:
    return stored if isinstance(stored, int) else len(stored)


@contextmanager
def far_endpoint(folder: Path) -> Iterator[str]:
    """Run an endpoint in a process of its own while the block lasts; yield its URL."""
    port, log = free_port(), folder / "far-endpoint.log"
    command = [sys.executable, "-m", "benchmarks.far_endpoint", str(port)]
    process = start(command, log=log, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_answers(url, process, log=log, timeout_s=START_TIMEOUT_S)
        yield url
    finally:
        process.kill()
        process.wait()


def main(port: str) -> None:
    """Serve for ever."""
    ThreadingHTTPServer(("127.0.0.1", int(port)), _Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
