"""What goes over our own connections, against a server of our own that does as each test says."""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import os
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from socket import SO_LINGER, SO_RCVBUF, SOL_SOCKET
from threading import Barrier, Event, Thread

import pytest
from botocore import auth

from strongroom.errors import (
    IntegrityError,
    StorageDeniedError,
    StorageError,
    StoreUnreachableError,
)
from strongroom.names import Digest
from strongroom.storage.base import Part
from strongroom.storage.s3 import S3Settings, S3Storage
from strongroom.storage.s3_body import Body
from strongroom.storage.s3_errors import BUSY_TRIES
from tests.support.certificate import write_certificate

MIB = 1 << 20
GIVEN = Digest.of(b"whatever the caller says it is")


@dataclass
class Seen:
    """One request as it arrived, and by which connection."""

    client: tuple[str, int]
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Server:
    """A stub; `script` answers a request, whose body it may have read or not."""

    url: str
    script: Callable[[Request], None]
    seen: list[Seen] = field(default_factory=list)
    over: Event = field(default_factory=Event)


class Request(BaseHTTPRequestHandler):
    """One connection; its requests are answered by the script."""

    protocol_version = "HTTP/1.1"
    stub: Server

    def handle_any(self) -> None:
        self.stub.script(self)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815 -- http.server's names

    def take(self) -> Seen:
        """Read the body and note the request."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.client_address, self.command, self.path, headers)
        seen.body = self.rfile.read(int(headers.get("content-length", 0)))
        self.stub.seen.append(seen)
        return seen

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def break_off(self) -> None:
        """End the connection the hard way."""
        self.wfile.flush()
        self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def hang(self) -> None:
        """Say and take nothing more, until the test is over."""
        self.wfile.flush()
        self.stub.over.wait(120)
        self.close_connection = True

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ValueError):  # a connection that broke, as tests have it
            self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def taken(request: Request) -> None:
    """Accept every part."""
    request.take()
    request.answer(200, ETag='"tag"')


@contextmanager
def serve(
    script: Callable[[Request], None], *, tls: ssl.SSLContext | None = None
) -> Iterator[Server]:
    stub = Server("", script)
    handler = type("Handler", (Request,), {"stub": stub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 64 << 10)
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        stub.url = f"{scheme}://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield stub
        finally:
            stub.over.set()
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)


def storage_at(server: Server, **settings: float) -> S3Storage:
    at_stub = S3Settings(
        bucket="bucket", endpoint_url=server.url, region="us-east-1", path_style=True
    )
    return S3Storage(replace(at_stub, **settings))  # type: ignore[arg-type]


def send_part(storage: S3Storage, data: bytes, *, digest: Digest | None = None) -> str:
    """Send one part of an upload that the stub does not ask about; return its ETag."""
    bucket, half = storage._bucket, len(data) // 2
    body = Body([memoryview(data)[:half], memoryview(data)[half:]], digest)
    return bucket.send(
        "UploadPart",
        "shard",
        lambda client: client.upload_part(
            **bucket.place("shard"), UploadId="id", PartNumber=1, Body=body.rewound()
        ),
    )["ETag"]


# --- bytes and signatures ----------------------------------------------------------------


def test_a_part_arrives_as_it_lies_with_the_digest_that_it_brings() -> None:
    data = os.urandom(3 * MIB)
    with serve(taken) as server:
        storage = storage_at(server)
        assert send_part(storage, data, digest=GIVEN) == '"tag"'
        assert send_part(storage, data) == '"tag"'
    first, second = server.seen
    assert first.body == second.body == data
    assert first.path == "/bucket/shard?uploadId=id&partNumber=1"
    # The digest that was given is stated as it is: nobody hashed those bytes again.
    assert first.headers["x-amz-content-sha256"] == GIVEN.hex
    assert second.headers["x-amz-content-sha256"] == hashlib.sha256(data).hexdigest()
    assert "x-amz-content-sha256" in first.headers["authorization"]
    assert "expect" not in first.headers


def test_each_try_is_signed_when_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports aws/aws-cli#1065, boto/boto3#3893: a part that waited was signed too long ago."""
    hours = count()
    monkeypatch.setattr(
        auth,
        "get_current_datetime",
        lambda: dt.datetime(2026, 12, 1, tzinfo=dt.UTC) + dt.timedelta(hours=next(hours)),
    )

    def busy_once(request: Request) -> None:
        request.take()
        if len(server.seen) == 1:
            request.refuse(503, "SlowDown")
        else:
            request.answer(200, ETag='"tag"')

    with serve(busy_once) as server:
        send_part(storage_at(server), b"bytes")
    dates = [seen.headers["x-amz-date"] for seen in server.seen]
    assert dates == ["20261201T000000Z", "20261201T010000Z"]
    assert server.seen[0].headers["authorization"] != server.seen[1].headers["authorization"]


# --- credentials -------------------------------------------------------------------------


def expects_key(name: str, *, num_refused: int = 1) -> Callable[[Request], None]:
    """Accept what is signed by this key; refuse so many others, all at once."""
    together = Barrier(num_refused)

    def script(request: Request) -> None:
        seen = request.take()
        if f"Credential={name}/" in seen.headers["authorization"]:
            request.answer(200, ETag='"tag"')
        else:
            together.wait(20)
            request.refuse(400, "ExpiredToken")

    return script


def write_credentials(path: Path, name: str) -> None:
    path.write_text(f"[default]\naws_access_key_id={name}\naws_secret_access_key=s\n")


def test_credentials_that_expire_during_an_upload_are_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Report aws/aws-cli#4562: a sidecar has long since written newer ones."""
    caplog.set_level(logging.INFO, logger="strongroom")
    path = tmp_path / "credentials"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    write_credentials(path, "FIRST")
    with serve(expects_key("FIRST")) as server:
        storage = storage_at(server)
        send_part(storage, b"part 1")
        write_credentials(path, "SECOND")
        send_part(storage, b"part 2")  # the old ones hold still
        server.script = expects_key("SECOND", num_refused=4)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: send_part(storage, b"%d" % number), range(4)))
        send_part(storage, b"part 9")
    assert len(server.seen) == 2 + 2 * 4 + 1
    assert server.seen[-1].body == b"part 9"
    assert caplog.text.count("credentials read anew") == 1  # for all threads


def test_credentials_that_stay_expired_are_named() -> None:
    with serve(expects_key("ANOTHER")) as server:
        storage = storage_at(server)
        with pytest.raises(StorageDeniedError, match=r"ExpiredToken.*have expired.*renew them"):
            send_part(storage, b"bytes")
    assert len(server.seen) == 2


# --- connections -------------------------------------------------------------------------


def test_connections_are_kept_and_shared() -> None:
    together = Barrier(4)

    def all_at_once(request: Request) -> None:
        request.take()
        together.wait(10)
        request.answer(200, ETag='"tag"')

    with serve(all_at_once) as server:
        storage = storage_at(server)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: send_part(storage, b"x"), range(40)))
    assert len(server.seen) == 40
    assert len({seen.client for seen in server.seen}) == 4


def test_only_so_many_connections_are_kept() -> None:
    together = Barrier(20)

    def all_at_once(request: Request) -> None:
        request.take()
        together.wait(10)
        request.answer(200, ETag='"tag"')

    with serve(all_at_once) as server:
        storage = storage_at(server)
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda _: send_part(storage, b"x"), range(20)))
        idle = storage._bucket.connections._idle[server.url]
        assert len(idle) == 16


def test_a_connection_that_was_closed_meanwhile_costs_no_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def close_after(request: Request) -> None:
        taken(request)
        request.close_connection = True  # without a word of it in the answer

    caplog.set_level(logging.INFO)
    with serve(close_after) as server:
        storage = storage_at(server)
        for _ in range(3):
            send_part(storage, b"x")
            time.sleep(0.05)
    assert len({seen.client for seen in server.seen}) == 3
    assert "sent again" not in caplog.text


def test_a_refusal_that_comes_before_all_was_sent_is_heard() -> None:
    def refuse_unread(request: Request) -> None:
        request.refuse(403, "AccessDenied")
        request.close_connection = True

    with serve(refuse_unread) as server:
        storage = storage_at(server)
        with pytest.raises(StorageDeniedError, match="expected the right s3:PutObject"):
            send_part(storage, bytes(32 * MIB))


def test_a_reset_half_way_is_tried_again() -> None:
    calls = count(1)

    def break_twice(request: Request) -> None:
        if next(calls) <= 2:
            request.rfile.read(MIB)
            request.break_off()
        else:
            taken(request)

    with serve(break_twice) as server:
        send_part(storage_at(server), bytes(8 * MIB))
    assert len(server.seen) == 1
    assert server.seen[0].body == bytes(8 * MIB)


def test_nobody_at_the_endpoint_is_tried_twice() -> None:
    with serve(taken) as server:
        pass
    with pytest.raises(StoreUnreachableError, match=r"tried 2 times.*check that the endpoint"):
        send_part(storage_at(server), b"x")


# --- waiting -----------------------------------------------------------------------------


def test_a_server_that_hangs_is_given_up() -> None:
    calls = count(1)

    def hang(request: Request) -> None:
        request.take()
        next(calls)
        request.hang()

    with serve(hang) as server:
        begun_s = time.monotonic()
        with pytest.raises(StoreUnreachableError, match=f"tried {BUSY_TRIES} times"):
            send_part(storage_at(server, read_timeout_s=0.05), b"x")
        assert time.monotonic() - begun_s < 30
    assert next(calls) == BUSY_TRIES + 1


def test_a_server_that_takes_no_more_is_given_up_and_another_try_is_made() -> None:
    calls = count(1)

    def stall_once(request: Request) -> None:
        if next(calls) == 1:
            request.hang()
        else:
            taken(request)

    with serve(stall_once) as server:
        send_part(storage_at(server, read_timeout_s=0.3), bytes(16 * MIB))
    assert len(server.seen[0].body) == 16 * MIB


def test_a_server_that_hangs_during_an_upload_is_asked_once_to_abort_it() -> None:
    methods = []

    def hang_after_the_beginning(request: Request) -> None:
        methods.append(request.command)
        if request.command == "HEAD":
            request.answer(404)
        elif request.command == "POST":
            request.take()
            body = b"<InitiateMultipartUploadResult><UploadId>id</UploadId>"
            request.answer(200, body + b"</InitiateMultipartUploadResult>")
        else:
            request.hang()

    data = memoryview(bytes(5 * MIB))
    with serve(hang_after_the_beginning) as server:
        storage = storage_at(server, read_timeout_s=0.1)
        with (
            pytest.raises(StoreUnreachableError, match="UploadPart"),
            storage.create_parts("shard", num_bytes=5 * MIB) as writer,
        ):
            writer.put(Part(number=1, offset=0, buffers=(data,)))
    assert methods == ["HEAD", "POST", *["PUT"] * BUSY_TRIES, "DELETE"]


def test_slow_is_not_stalled() -> None:
    """What takes thrice as long as a standstill may last comes to its end."""

    def slowly(request: Request) -> None:
        if request.command == "GET":
            request.send_response(206)
            request.send_header("Content-Range", "bytes 0-9/10")
            request.send_header("Content-Length", "10")
            request.end_headers()
            for number in range(10):
                time.sleep(0.3)
                request.wfile.write(b"%d" % number)
            return
        for _ in range(32):
            time.sleep(0.1)
            request.rfile.read(MIB // 2)
        request.answer(200, ETag='"tag"')

    target = bytearray(10)
    with serve(slowly) as server:
        storage = storage_at(server, read_timeout_s=1)
        send_part(storage, bytes(16 * MIB))
        storage.read_into("digits", 0, [memoryview(target)])
    assert bytes(target) == b"0123456789"


# --- reading -----------------------------------------------------------------------------


def digits(request: Request) -> None:
    """Serve ranges of ten digits."""
    seen = request.take()
    if request.command == "HEAD":
        request.send_response(200)
        request.send_header("Content-Length", "10")
        request.end_headers()
        return
    begin, end = map(int, seen.headers["range"].removeprefix("bytes=").split("-"))
    data = b"0123456789"[begin : end + 1]
    request.answer(206, data, Content_Range=f"bytes {begin}-{begin + len(data) - 1}/10")


def test_ranges_are_read_into_place_over_one_connection() -> None:
    target = memoryview(bytearray(10))
    with serve(digits) as server:
        storage = storage_at(server)
        for offset in (0, 4, 7):
            storage.read_into("digits", offset, [target[offset : offset + 1], target[offset + 1 :]])
    assert bytes(target) == b"0123456789"
    assert len({seen.client for seen in server.seen}) == 1


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    calls = count(1)

    def cut_twice(request: Request) -> None:
        number = next(calls)
        if number == 1:
            request.take()
            request.answer(206, b"0", Content_Range="bytes 0-9/10", Content_Length="10")
            request.close_connection = True
        elif number == 2:
            request.take()
            request.answer(206, b"012", Content_Range="bytes 0-9/10", Content_Length="10")
            request.break_off()
        else:
            digits(request)

    target = bytearray(10)
    with serve(cut_twice) as server:
        storage_at(server).read_into("digits", 0, [memoryview(target)])
    assert bytes(target) == b"0123456789"
    assert len(server.seen) == 3


def test_an_answer_that_stalls_is_asked_for_again() -> None:
    calls = count(1)

    def stall_once(request: Request) -> None:
        if next(calls) == 1:
            request.take()
            request.answer(206, b"01", Content_Range="bytes 0-9/10", Content_Length="10")
            request.hang()
        else:
            digits(request)

    target = bytearray(10)
    with serve(stall_once) as server:
        storage_at(server, read_timeout_s=0.2).read_into("digits", 0, [memoryview(target)])
    assert bytes(target) == b"0123456789"


def test_an_answer_that_does_not_say_its_length_is_read_all_the_same() -> None:
    answers = iter([b"01234", b"0123456789"])

    def in_pieces(request: Request) -> None:
        request.take()
        request.send_response(206)
        request.send_header("Content-Range", "bytes 0-9/10")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        data = next(answers)
        request.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))

    target = bytearray(10)
    with serve(in_pieces) as server:
        storage_at(server).read_into("digits", 0, [memoryview(target)])
    assert bytes(target) == b"0123456789"
    assert len(server.seen) == 2
    assert len({seen.client for seen in server.seen}) == 1


def test_fewer_bytes_than_asked_for_leave_the_buffers_alone() -> None:
    target = bytearray(b"..........")
    with serve(digits) as server, pytest.raises(IntegrityError, match="too short") as caught:
        storage_at(server).read_into("digits", 5, [memoryview(target)])
    assert caught.value.expected == "10 bytes"
    assert caught.value.got == "5 of an object of 10 bytes"
    assert target == b".........."


@pytest.mark.parametrize(
    ("status", "content_range"),
    [(200, None), (206, None), (206, "bytes 0-9/10"), (206, "bytes 2-9/10"), (206, "lines 2-4/10")],
)
def test_an_endpoint_that_ignores_ranges_is_named(status: int, content_range: str | None) -> None:
    def whole(request: Request) -> None:
        request.take()
        headers = {} if content_range is None else {"Content_Range": content_range}
        request.answer(status, b"0123456789", **headers)

    with serve(whole) as server:
        storage = storage_at(server)
        for read in (
            lambda: storage.read_into("digits", 2, [memoryview(bytearray(3))]),
            lambda: storage.read("digits", offset=2, num_bytes=3),
        ):
            with pytest.raises(StorageError, match=f"got HTTP {status} .*ignores Range"):
                read()
    assert len(server.seen) == 2  # asking again would not help


@pytest.mark.parametrize("body", [b"<html>hello", b"<ListBucketResult><Name>buck", b"hello"])
def test_an_answer_that_is_no_answer_is_asked_for_again(body: bytes) -> None:
    def rubbish(request: Request) -> None:
        request.take()
        request.answer(200, body)

    with serve(rubbish) as server, pytest.raises(StoreUnreachableError, match="ListObjectsV2"):
        list(storage_at(server).walk(""))
    assert len(server.seen) == BUSY_TRIES


def test_an_empty_answer_is_no_empty_list() -> None:
    def nothing(request: Request) -> None:
        request.take()
        request.answer(200)

    with serve(nothing) as server:
        storage = storage_at(server)
        with pytest.raises(StorageError, match="cuts lists short"):
            list(storage.walk(""))
        with pytest.raises(StorageError, match="cuts lists short"):
            storage.discard_unfinished(older_than_s=0)


# --- TLS and proxies ---------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "stub.pem"
    write_certificate(path)
    return path


@contextmanager
def serve_tls(script: Callable[[Request], None], certificate: Path) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serve(script, tls=context) as server:
        yield server


def test_over_tls_the_payload_is_signed_too(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    data = os.urandom(5 * MIB + 3)
    with serve_tls(taken, certificate) as server:
        storage = storage_at(server)
        storage = S3Storage(replace(storage.settings, checksums="when_supported"))
        send_part(storage, data, digest=GIVEN)
        send_part(storage, data)
        storage.create("run.json", b"{}")
    part, hashed, small = server.seen
    assert part.body == hashed.body == data
    assert part.headers["x-amz-content-sha256"] == GIVEN.hex
    assert hashed.headers["x-amz-content-sha256"] == hashlib.sha256(data).hexdigest()
    assert small.headers["x-amz-content-sha256"] == hashlib.sha256(b"{}").hexdigest()
    assert small.body == b"{}"  # and not cut into chunks with a trailer
    assert len({seen.client for seen in server.seen}) == 1


def test_over_tls_ranges_are_read_into_place(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    target = bytearray(4)
    with serve_tls(digits, certificate) as server:
        storage_at(server).read_into("digits", 3, [memoryview(target)])
    assert bytes(target) == b"3456"


def test_a_certificate_that_nobody_signed_is_refused(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serve_tls(taken, certificate) as server:
        with pytest.raises(StoreUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            send_part(storage_at(server), b"x")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "gone.pem"))
        with pytest.raises(StoreUnreachableError, match=r"SSL.*No such file"):
            send_part(storage_at(server), b"x")
    assert server.seen == []


def test_a_proxy_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(3 * MIB)
    with serve(taken) as proxy:
        monkeypatch.setenv("https_proxy", "http://of.another.scheme:1")
        monkeypatch.setenv("http_proxy", proxy.url)
        storage = storage_at(Server("http://s3.example", taken))
        send_part(storage, data, digest=GIVEN)
        (seen,) = proxy.seen
        assert seen.path == "http://s3.example/bucket/shard?uploadId=id&partNumber=1"
        assert seen.body == data
        assert seen.headers["x-amz-content-sha256"] == GIVEN.hex
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with serve(taken) as server:
            send_part(storage_at(server), data)
        assert len(server.seen) == len(proxy.seen) == 1
