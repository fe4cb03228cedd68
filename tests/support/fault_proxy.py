"""A proxy on 127.0.0.1 before an S3 server, through which chosen things go wrong.

Heads pass unchanged, so that what a client has signed stays signed, and bodies by the MiB, so that
benchmarks can go through it too. Which requests are hit is drawn from a seeded generator, in the
order in which they come.

`fault_proxy` runs it in a process of its own; `python -m tests.support.fault_proxy URL PORT JSON`,
the JSON being the fields of a `Faults`, is what it starts. While it runs, `PUT /.faults` sets other
faults and `GET /.faults` tells what has happened since.
"""

from __future__ import annotations

import json
import random
import re
import socket
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from tests.support.http_relay import End, Head
from tests.support.processes import free_port, start, wait_until_it_answers

CONTROL = "/.faults"
ROOT = Path(__file__).resolve().parent.parent.parent
START_TIMEOUT_S = 60.0
CHECKSUMS = "x-amz-(?:sdk-)?(?:checksum|trailer)[a-z0-9-]*"  # headers of newer clients
BLOCK_BYTES = 1 << 20
THROTTLED_BLOCK_BYTES = 1 << 17  # a slow line delivers evenly


@dataclass(frozen=True, kw_only=True, slots=True)
class Faults:
    """What goes wrong. A part is a PUT of one part of a multipart upload; a share is 0 to 1.

    Attributes:
        busy_share: parts answered with 503 SlowDown, once their bytes have been read.
        reset_share: parts whose connection is reset half way through them.
        stall_share: parts held up half way through them, for `stall_s` seconds.
        stall_s: see `stall_share`.
        refuse_code: parts from number `refuse_from_part` on are answered with 403 and this code.
        refuse_from_part: see `refuse_code`.
        refuse_times: how many parts are refused; None: all of them.
        lost_answers: how many new objects are stored, and their writers not told: PUTs of whole
            objects and completed uploads, whose connection is reset before the answer.
        get_reset_share: reads of objects whose connection is reset half way through the answer.
        get_cut_share: reads of objects whose connection is closed half way through the answer.
        ignore_ranges: reads of a span are answered with 200 and the whole object, which everybody
            must be allowed to read: a request without its range is not what was signed.
        delete_refusals: how many deletes of many are answered with 200 and an error for each key.
        delete_refusal_code: what that error is.
        is_old: requests with a checksum header or trailer are answered with 400, and so are deletes
            of many without a Content-MD5, as older servers do.
        has_no_bulk_delete: deletes of many are answered with 501.
        etag_fix: the ETag in the answer to a completed upload is given as a header, too: Ceph 16
            leaves it out, and s3torchconnector fails without.
        bytes_per_s: what all connections together carry in each direction; None: all there is.
        seed: where the drawing starts.
    """

    busy_share: float = 0.0
    reset_share: float = 0.0
    stall_share: float = 0.0
    stall_s: float = 0.0
    refuse_code: str = ""
    refuse_from_part: int = 1
    refuse_times: int | None = None
    lost_answers: int = 0
    get_reset_share: float = 0.0
    get_cut_share: float = 0.0
    ignore_ranges: bool = False
    delete_refusals: int = 0
    delete_refusal_code: str = "InternalError"
    is_old: bool = False
    has_no_bulk_delete: bool = False
    etag_fix: bool = False
    bytes_per_s: float | None = None
    seed: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultProxy:
    """A proxy that answers at `url` in place of its server."""

    url: str
    pid: int

    def counters(self) -> Counter[str]:
        """Return what has happened since the faults were set.

        Requests by method; `parts`; `deletes_of_many`; `copies` made by the server; `bytes_up` and
        `bytes_down` of bodies; each fault by the name of its field without `_share` and `_code`.
        """
        with urllib.request.urlopen(self.url + CONTROL) as answer:  # noqa: S310 -- our own http server
            return Counter(json.load(answer))

    def change(self, **faults: Any) -> None:  # noqa: ANN401 -- the fields of Faults
        """Let these faults happen from now on and no others, and count from nought."""
        body = json.dumps(asdict(Faults(**faults))).encode()
        request = urllib.request.Request(self.url + CONTROL, data=body, method="PUT")  # noqa: S310 -- as above
        urllib.request.urlopen(request).close()  # noqa: S310 -- as above


@contextmanager
def fault_proxy(upstream_url: str, **faults: Any) -> Iterator[FaultProxy]:  # noqa: ANN401 -- the fields of Faults
    """Run a proxy before `upstream_url` while the block lasts, in a process of its own."""
    port = free_port()
    what = (upstream_url, str(port), json.dumps(asdict(Faults(**faults))))
    with TemporaryDirectory(prefix="fault-proxy-") as folder:
        log = Path(folder) / "log"
        process = start(
            [sys.executable, "-m", "tests.support.fault_proxy", *what], log=log, cwd=ROOT
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_it_answers(url + CONTROL, process, log=log, timeout_s=START_TIMEOUT_S)
            yield FaultProxy(url=url, pid=process.pid)
        finally:
            process.kill()
            process.wait()


# --- in the proxy's own process --------------------------------------------------------------


class _Plan:
    """The faults that are set, what has happened since, and the line that all bytes share."""

    def __init__(self, faults: Faults) -> None:
        self._lock = threading.Lock()
        self.set(faults)

    def set(self, faults: Faults) -> None:
        with self._lock:
            self.faults = faults
            self.counters: Counter[str] = Counter()
            self._random = random.Random(faults.seed)  # noqa: S311 -- no secret
            self._free_at_s = {"bytes_up": 0.0, "bytes_down": 0.0}

    def draw(self, **shares: float) -> str:
        """Return the name of one of the shares, or '', each as often as it says."""
        with self._lock:
            drawn = self._random.random()
            for name, share in shares.items():
                if drawn < share:
                    self.counters[name] += 1
                    return name
                drawn -= share
        return ""

    def count(self, name: str, limit: int | None = None) -> bool:
        """Count one more, unless there are as many as `limit`; return whether there were not."""
        with self._lock:
            if limit is not None and self.counters[name] >= limit:
                return False
            self.counters[name] += 1
            return True

    def carry(self, direction: str, num_bytes: int) -> None:
        """Wait until the line has carried all that came before, and this."""
        with self._lock:
            self.counters[direction] += num_bytes
            if self.faults.bytes_per_s is None:
                return
            now_s = time.monotonic()
            start_s = max(self._free_at_s[direction], now_s)
            end_s = self._free_at_s[direction] = start_s + num_bytes / self.faults.bytes_per_s
        time.sleep(end_s - now_s)


class _Connection:
    """One connection of a client, and the one to the server that its requests go on over."""

    def __init__(self, client: socket.socket, upstream: tuple[str, int], plan: _Plan) -> None:
        self._plan = plan
        self._upstream = upstream
        self._client = self._end(client, "bytes_up")
        self._connected: End | None = None

    def serve(self) -> None:
        """Pass requests and answers on until either side closes, or is to be broken off."""
        try:
            while (request := self._client.head()) is not None:
                self._exchange(request)
            self._client.connection.close()
        except OSError:  # a _BreakOffError among them
            self._client.reset()
        finally:
            if self._connected is not None:
                self._connected.reset()

    def _exchange(self, request: Head) -> None:
        method, target, _ = request.words
        path, _, query = target.partition("?")
        if path == CONTROL:
            self._control(request)
            return
        self._plan.count(method)
        if request.has("x-amz-copy-source"):
            self._plan.count("copies")
        if self._plan.faults.is_old and request.has(CHECKSUMS):
            self._plan.count("is_old")
            self._answer_instead(request, 400, "InvalidArgument")
            return
        part = re.search(r"\bpartNumber=(\d+)", query)
        if method == "PUT" and part:
            self._put_part(request, int(part[1]))
        elif method == "POST" and re.match(r"delete\b", query):
            self._delete_many(request)
        elif (method == "POST" and "uploadId=" in query) or (method == "PUT" and not query):
            self._put_whole(request)
        elif method == "GET" and not query:
            self._get(request)
        else:
            self._pass_answer(request, self._ask(request))

    def _put_part(self, request: Head, number: int) -> None:
        plan, faults = self._plan, self._plan.faults
        plan.count("parts")
        refused = faults.refuse_code and number >= faults.refuse_from_part
        if refused and plan.count("refuse", faults.refuse_times):
            self._answer_instead(request, 403, faults.refuse_code)
            return
        fate = plan.draw(busy=faults.busy_share, reset=faults.reset_share, stall=faults.stall_share)
        if fate == "busy":
            self._answer_instead(request, 503, "SlowDown")
            return
        self._pass_answer(request, self._ask(request, fate=fate))

    def _get(self, request: Head) -> None:
        faults = self._plan.faults
        if faults.ignore_ranges and request.value("range"):
            self._plan.count("ignore_ranges")
            request = request.without("range", "authorization", "x-amz-[a-z0-9-]+")
        answer = self._ask(request)
        fate = self._plan.draw(get_reset=faults.get_reset_share, get_cut=faults.get_cut_share)
        if not fate:
            self._pass_answer(request, answer)
            return
        self._client.send(answer.raw)
        self._server.pass_bytes(answer.num_bytes // 2, self._client)
        if fate == "get_reset":
            raise _BreakOffError
        self._client.connection.shutdown(socket.SHUT_RDWR)

    def _delete_many(self, request: Head) -> None:
        plan, faults = self._plan, self._plan.faults
        plan.count("deletes_of_many")
        if faults.has_no_bulk_delete:
            self._answer_instead(request, 501, "NotImplemented")
            return
        if faults.is_old and not request.has("content-md5"):
            self._answer_instead(request, 400, "InvalidRequest")
            return
        if not plan.count("delete_refusals", faults.delete_refusals):
            self._pass_answer(request, self._ask(request))
            return
        keys = re.findall(rb"<Key>(.*?)</Key>", self._client.small_body(request))
        why = (
            b"<Code>%b</Code><Message>said the proxy</Message>"
            % faults.delete_refusal_code.encode()
        )
        errors = b"".join(b"<Error><Key>%b</Key>%b</Error>" % (key, why) for key in keys)
        self._send(200, b"<DeleteResult>%b</DeleteResult>" % errors)

    def _put_whole(self, request: Head) -> None:
        answer = self._ask(request)
        faults = self._plan.faults
        if self._plan.count("lost_answers", faults.lost_answers):
            raise _BreakOffError
        if not faults.etag_fix:
            self._pass_answer(request, answer)
            return
        body = self._server.small_body(answer)
        tag = re.search(rb"<ETag>(?:&quot;|&#34;|\")?([^&\"<]*)", body)
        if tag and not answer.value("etag"):
            self._plan.count("etag_fix")
            answer = answer.having("ETag", f'"{tag[1].decode()}"')
        answer = answer.without("transfer-encoding", "content-length")
        self._client.send(answer.having("Content-Length", str(len(body))).raw + body)

    def _control(self, request: Head) -> None:
        body = self._client.small_body(request)
        if request.words[0] == "PUT":
            self._plan.set(Faults(**json.loads(body)))
        self._send(200, json.dumps(self._plan.counters).encode())

    # --- what all of these are made of ---

    def _ask(self, request: Head, *, fate: str = "") -> Head:
        """Send a request on, body and all, and return the head of its answer."""
        self._server.send(request.raw)
        if request.value("expect") == "100-continue":
            answer = self._answer()
            if answer.words[1] != "100":
                return answer  # so the client sends no body
            self._client.send(answer.raw)
        half = request.num_bytes // 2 if fate else 0
        self._client.pass_bytes(half, self._server)
        if fate == "reset":
            raise _BreakOffError
        if fate == "stall":
            time.sleep(self._plan.faults.stall_s)
        if half:
            self._client.pass_bytes(request.num_bytes - half, self._server)
        else:
            self._client.pass_body(request, self._server)
        answer = self._answer()
        while answer.words[1] == "100":
            answer = self._answer()
        return answer

    def _answer(self) -> Head:
        answer = self._server.head()
        if answer is None:
            raise _BreakOffError
        return answer

    def _pass_answer(self, request: Head, answer: Head) -> None:
        self._client.send(answer.raw)
        if request.words[0] != "HEAD" and answer.words[1] not in {"204", "304"}:
            self._server.pass_body(answer, self._client)

    def _answer_instead(self, request: Head, status: int, code: str) -> None:
        """Read a request and answer it with an error, without the server hearing of it."""
        if request.value("expect") == "100-continue":
            self._client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._client.pass_body(request, None)
        message = f"<Error><Code>{code}</Code><Message>said the proxy</Message></Error>"
        self._send(status, message.encode())

    def _send(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} Answered by the proxy\r\nContent-Length: {len(body)}\r\n\r\n"
        self._client.send(head.encode() + body)

    @property
    def _server(self) -> End:
        if self._connected is None:
            self._connected = self._end(socket.create_connection(self._upstream), "bytes_down")
        return self._connected

    def _end(self, connection: socket.socket, direction: str) -> End:
        throttled = self._plan.faults.bytes_per_s is not None
        return End(
            connection,
            block_bytes=THROTTLED_BLOCK_BYTES if throttled else BLOCK_BYTES,
            carry=partial(self._plan.carry, direction),
        )


class _BreakOffError(ConnectionError):
    """This connection ends here."""


def main(upstream_url: str, port: str, faults: str) -> None:
    """Serve for ever."""
    plan = _Plan(Faults(**json.loads(faults)))
    place = urlsplit(upstream_url)
    upstream = (place.hostname or "127.0.0.1", place.port or 80)
    with socket.create_server(("127.0.0.1", int(port)), backlog=128) as server:
        while True:
            client, _ = server.accept()
            connection = _Connection(client, upstream, plan)
            threading.Thread(target=connection.serve, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
