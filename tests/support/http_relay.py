"""Just enough HTTP/1.1 to pass messages on between two sockets, bodies by the MiB."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

SMALL_MAX_BYTES = 1 << 22  # of what is read as a whole: heads, and bodies known to be small
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, 0 s


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The first line and the headers of a request or an answer, as they came."""

    raw: bytes

    @property
    def words(self) -> list[str]:
        """The words of the first line: method and target, or version and status."""
        return self.raw.split(b"\r\n", 1)[0].decode("latin-1").split(" ")

    def value(self, name: str) -> str:
        """Return a header's value in lower case; '' where it is not given."""
        found = re.search(rb"\r\n%s:[ \t]*([^\r]*)" % name.encode(), self.raw, re.IGNORECASE)
        return found[1].decode("latin-1").strip().lower() if found else ""

    def has(self, name: str) -> bool:
        """Return whether a header is given; its name is a regular expression."""
        return bool(re.search(rb"\r\n(?:%s):" % name.encode(), self.raw, re.IGNORECASE))

    @property
    def num_bytes(self) -> int:
        """Bytes of the body, where their number is given."""
        return int(self.value("content-length") or 0)

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks instead."""
        return "chunked" in self.value("transfer-encoding")

    def without(self, *names: str) -> Head:
        """Return it without some headers; names are regular expressions."""
        headers = rb"\r\n(?:%s):[^\r]*" % "|".join(names).encode()
        return Head(raw=re.sub(headers, b"", self.raw, flags=re.IGNORECASE))

    def having(self, name: str, value: str) -> Head:
        """Return it with one header more."""
        return Head(raw=self.raw[:-2] + f"{name}: {value}\r\n\r\n".encode("latin-1"))


class End:
    """A socket that is read head by head and body by body.

    Args:
        connection: the socket.
        block_bytes: most bytes passed on at once.
        carry: told the number of bytes of every block before it is passed on; may wait.
    """

    def __init__(
        self, connection: socket.socket, *, block_bytes: int, carry: Callable[[int], None]
    ) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self._carry = carry
        self._block = memoryview(bytearray(block_bytes))
        self._ahead = b""  # read before its turn

    def head(self) -> Head | None:
        """Read one head, to its empty line; None where the other side has closed before it."""
        raw = self._until(b"\r\n\r\n")
        return Head(raw=raw) if raw else None

    def pass_body(self, head: Head, to: End | None) -> None:
        """Send the body that belongs to `head` on to another end, or to nobody."""
        if head.is_chunked:
            self._pass_chunks(to)
        else:
            self.pass_bytes(head.num_bytes, to)

    def pass_bytes(self, num_bytes: int, to: End | None) -> None:
        """Send the next bytes of a body on to another end, or to nobody."""
        ahead, self._ahead = self._ahead[:num_bytes], self._ahead[num_bytes:]
        self._deliver(memoryview(ahead), to)
        left = num_bytes - len(ahead)
        while left:
            got = self.connection.recv_into(self._block[:left])
            if not got:
                raise ConnectionError("cut within a body")
            self._deliver(self._block[:got], to)
            left -= got

    def small_body(self, head: Head) -> bytes:
        """Read a body that is known to be small."""
        if not head.is_chunked:
            return self._exactly(head.num_bytes)
        body = b""
        while num_bytes := _chunk_bytes(self._until(b"\r\n")):
            body += self._exactly(num_bytes + 2)[:-2]
        while self._until(b"\r\n") != b"\r\n":
            pass
        return body

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.connection.sendall(data)

    def reset(self) -> None:
        """Break the connection off, so that the other side is told so at once."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.connection.close()

    def _pass_chunks(self, to: End | None) -> None:
        num_bytes = -1
        while num_bytes:
            line = self._until(b"\r\n")
            num_bytes = _chunk_bytes(line)
            self._deliver(memoryview(line), to)
            if num_bytes:
                self.pass_bytes(num_bytes + 2, to)
        while line != b"\r\n":  # what trails the chunks
            line = self._until(b"\r\n")
            self._deliver(memoryview(line), to)

    def _deliver(self, data: memoryview, to: End | None) -> None:
        if data.nbytes:
            self._carry(data.nbytes)
            if to is not None:
                to.connection.sendall(data)

    def _until(self, mark: bytes) -> bytes:
        while (end := self._ahead.find(mark)) < 0:
            if not self._read_ahead() and not self._ahead:
                return b""
        found = self._ahead[: end + len(mark)]
        self._ahead = self._ahead[len(found) :]
        return found

    def _exactly(self, num_bytes: int) -> bytes:
        while len(self._ahead) < num_bytes:
            if not self._read_ahead():
                raise ConnectionError("cut within a body")
        found, self._ahead = self._ahead[:num_bytes], self._ahead[num_bytes:]
        return found

    def _read_ahead(self) -> bool:
        more = self.connection.recv(1 << 16)
        self._ahead += more
        if (self._ahead and not more) or len(self._ahead) > SMALL_MAX_BYTES:
            raise ConnectionError("cut short, or larger than what is read as a whole")
        return bool(more)


def _chunk_bytes(line: bytes) -> int:
    if not line:
        raise ConnectionError("cut between chunks")
    return int(line.partition(b";")[0], 16)
