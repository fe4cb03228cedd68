"""Windows: the order of an epoch in pieces, any of which can be made without the others.

The rows of an epoch are cut into windows of neighbouring rows, all of one size but for the last,
which may be shorter. The windows are visited in a shuffled order, and the rows of each come in an
order of their own. Law: one window that holds all rows is the plain order, `sha256-sort/1`.

Which window comes when is a bijection of the numbers below the count of windows: a Feistel network
over the next power of four, walked until it comes out below the count. So it takes no memory and no
time that grows with the data, and it can be asked both ways: which window stands at a place, and at
which place a window stands. Rows of a window are sorted by SHA-256 of `seed, epoch, index`.
Source: Luby and Rackoff 1988 (https://doi.org/10.1137/0217022), Black and Rogaway 2002, "Ciphers
with arbitrary finite domains" (https://eprint.iacr.org/2001/012), for networks and walks.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

ROUNDS = range(8)
"""Four are enough for large blocks; a few windows more than two need more to be evenly shuffled."""
_DOMAIN = b"sha256-windows/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A window in the order of its epoch.

    Attributes:
        place: how many windows come before it.
        start: how many rows come before it.
        rows: its row indices, in order.
    """

    place: int
    start: int
    rows: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """The windows of one epoch; `window_rows` is at most `num_rows`."""

    seed: int
    epoch: int
    num_rows: int
    window_rows: int

    @property
    def count(self) -> int:
        """How many there are."""
        return -(-self.num_rows // self.window_rows)

    @property
    def place_of_last(self) -> int:
        """The place of the window that ends the data, the one that may be shorter."""
        return _walk(self.count - 1, self.count, self._key, ROUNDS[::-1])

    def holding(self, position: int) -> Window:
        """Return the window that holds the row at `position` of the epoch's order."""
        lacking = self.count * self.window_rows - self.num_rows
        place_of_last = self.place_of_last
        ends_last = (place_of_last + 1) * self.window_rows - lacking
        is_after = position >= ends_last
        place = (position + lacking * is_after) // self.window_rows
        first = _walk(place, self.count, self._key, ROUNDS) * self.window_rows
        end = min(first + self.window_rows, self.num_rows)
        return Window(
            place=place,
            start=place * self.window_rows - lacking * is_after,
            rows=_sorted_rows(self.seed, self.epoch, first, end),
        )

    @property
    def _key(self) -> bytes:
        return _DOMAIN + struct.pack(">QQ", self.seed, self.epoch)


def _walk(value: int, count: int, key: bytes, rounds: Sequence[int]) -> int:
    """Return where the bijection of the numbers below `count` takes `value`.

    With the rounds in reverse it goes back. It ends, since `value` itself lies on the cycle.
    """
    half_bits = -(-(count - 1).bit_length() // 2)
    value = _feistel(value, half_bits, key, rounds)
    while value >= count:
        value = _feistel(value, half_bits, key, rounds)
    return value


def _feistel(value: int, half_bits: int, key: bytes, rounds: Sequence[int]) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for number in rounds:
        digest = hashlib.sha256(key + struct.pack(">QQ", number, right)).digest()
        left, right = right, left ^ int.from_bytes(digest, "big") & mask
    return right << half_bits | left  # halves swapped, which makes the reverse the same function


# Training asks at every step: the order of a million rows takes a second to make.
@lru_cache(maxsize=2)
def _sorted_rows(seed: int, epoch: int, first: int, end: int) -> tuple[int, ...]:
    prefix = hashlib.sha256(struct.pack(">QQ", seed, epoch))

    def key(index: int) -> bytes:
        keyed = prefix.copy()
        keyed.update(struct.pack(">Q", index))
        return keyed.digest()

    return tuple(sorted(range(first, end), key=key))
