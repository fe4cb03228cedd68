"""Kept connections for the requests that carry an object's bytes.

boto3 makes, signs and understands these requests; here they are only sent, through plain
`http.client` connections: buffers to the socket, and the socket to buffers, without a copy between.
What fails is raised as botocore's own errors. Where the environment names a proxy, boto3 sends them
itself.

Every wait is for the next bytes, not for all: a slow connection goes on, a stalled one ends.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Lock
from urllib.parse import SplitResult, urlsplit

from botocore import exceptions as boto
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.utils import get_environ_proxies

from strongroom.storage.base import views
from strongroom.storage.s3_body import Body

_IDLE_MAX = 16
"""Most connections kept while nobody uses them; in use are as many as threads send."""


class Connections:
    """Connections that threads take, use for one request each, and give back.

    Args:
        connect_timeout_s: seconds to wait for a connection.
        read_timeout_s: seconds to wait for the next bytes to leave or to come.
        ca_file: certificates to trust.
    """

    def __init__(self, *, connect_timeout_s: float, read_timeout_s: float, ca_file: str) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._ca_file = ca_file
        self._context: ssl.SSLContext | None = None
        self._idle: dict[str, list[HTTPConnection]] = {}
        self._lock = Lock()

    def send(self, request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
        """Send a signed request and return its answer; None where it must go through a proxy.

        A handler of botocore's event `before-send`.

        Raises:
            HTTPClientError: no whole answer came; one of its subclasses says why.
        """
        place = urlsplit(request.url)
        if get_environ_proxies(request.url).get(place.scheme):
            return None
        connection = self._take(place)
        try:
            with _named(request.url):
                answer, reusable = _exchange(connection, request, place)
        except BaseException:
            connection.close()
            raise

        def free(*, whole: bool) -> None:
            if whole and reusable and not answer.will_close:
                self._give_back(place, connection)
            else:
                connection.close()

        raw = _Answer(answer, request.url, free)
        response = AWSResponse(request.url, answer.status, answer.headers, raw)  # type: ignore[arg-type]  # read like urllib3's
        if not request.stream_output:
            response.content  # noqa: B018 -- it is read to its end and kept: the connection is free
        return response

    def _take(self, place: SplitResult) -> HTTPConnection:
        with self._lock:
            idle = self._idle.get(_origin(place), [])
            while idle:
                connection = idle.pop()
                if not _is_dropped(connection.sock):
                    return connection
                connection.close()
        return self._connect(place)

    def _give_back(self, place: SplitResult, connection: HTTPConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(_origin(place), [])
            if len(idle) < _IDLE_MAX:
                idle.append(connection)
                return
        connection.close()

    def _connect(self, place: SplitResult) -> HTTPConnection:
        host, port, timeout_s = place.hostname or "", place.port, self._connect_timeout_s
        url = _origin(place)
        if place.scheme == "https":
            context = self._trusted(url)
            connection: HTTPConnection = HTTPSConnection(
                host, port, timeout=timeout_s, context=context
            )
        else:
            connection = HTTPConnection(host, port, timeout=timeout_s)
        try:
            connection.connect()
        except TimeoutError as error:
            raise boto.ConnectTimeoutError(endpoint_url=url, error=error) from error
        except ssl.SSLError as error:
            raise boto.SSLError(endpoint_url=url, error=error) from error
        except OSError as error:
            raise boto.EndpointConnectionError(endpoint_url=url, error=error) from error
        connection.sock.settimeout(self._read_timeout_s)
        return connection

    def _trusted(self, url: str) -> ssl.SSLContext:
        """Return what checks the certificate of `url`, loaded once."""
        with self._lock:
            if self._context is None:
                try:
                    self._context = ssl.create_default_context(cafile=self._ca_file)
                except OSError as error:
                    raise boto.SSLError(endpoint_url=url, error=error) from error
            return self._context


class _Answer:
    """The body of an answer, to be read as botocore reads; then its connection is free."""

    def __init__(self, answer: HTTPResponse, url: str, free: Callable[..., None]) -> None:
        self._answer = answer
        self._url = url
        self._free: Callable[..., None] | None = free
        with self._reading():  # an answer may end with its headers
            pass

    def read(self, num_bytes: int | None = None) -> bytes:
        """Return what comes next, all of it or so many bytes."""
        with self._reading():
            return self._answer.read(num_bytes)

    def readinto(self, target: memoryview) -> int:
        """Fill `target`, or less of it where the answer ends; return the number of bytes."""
        with self._reading():
            return self._answer.readinto(target)

    def stream(self) -> Iterator[bytes]:
        """Yield all that is left."""
        yield self.read()

    def close(self) -> None:
        """Be done with the answer, read or not."""
        self._let_go(whole=False)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with _named(self._url):
                yield
        except BaseException:
            self.close()
            raise
        if self._answer.isclosed():
            self._let_go(whole=not self._answer.length)

    def _let_go(self, *, whole: bool) -> None:
        if self._free is not None:
            self._free(whole=whole)
            self._free = None


def _exchange(
    connection: HTTPConnection, request: AWSPreparedRequest, place: SplitResult
) -> tuple[HTTPResponse, bool]:
    """Send a request; return the answer, and whether all was sent, so that another can follow."""
    target = f"{place.path or '/'}?{place.query}" if place.query else place.path or "/"
    connection.putrequest(request.method, target, skip_accept_encoding=True)
    for name, value in request.headers.items():
        if name.lower() != "expect":  # nobody waits here for leave to go on
            connection.putheader(name, value)
    connection.endheaders()
    whole = True
    try:
        if isinstance(request.body, Body):
            _send_all(connection.sock, request.body.buffers)
        elif request.body:
            _send_all(connection.sock, [memoryview(request.body)])  # type: ignore[arg-type]  # bytes
    except (BrokenPipeError, ConnectionResetError):
        # A server may refuse a request before it has read all of it, and then it says why.
        whole = False
    return connection.getresponse(), whole


def _send_all(connected: socket.socket, buffers: Sequence[memoryview]) -> None:
    if isinstance(connected, ssl.SSLSocket):
        for buffer in buffers:
            sent = 0
            while sent < buffer.nbytes:
                sent += connected.send(buffer[sent:])
        return
    sent = 0
    while left := views(buffers, start=sent):
        sent += connected.sendmsg(left)


@contextmanager
def _named(url: str) -> Iterator[None]:
    """Raise what goes wrong on a connection as botocore does."""
    try:
        yield
    except TimeoutError as error:
        raise boto.ReadTimeoutError(endpoint_url=url, error=error) from error
    except (OSError, HTTPException) as error:
        raise boto.ConnectionClosedError(endpoint_url=url, error=error) from error


def _is_dropped(connected: socket.socket) -> bool:
    """Whether the server has closed an idle connection: then its end is there to be read."""
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(0))


def _origin(place: SplitResult) -> str:
    return f"{place.scheme}://{place.netloc}"
