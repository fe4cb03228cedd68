"""Tiles: how a Merkle log lies in static files, none of which ever changes.

A tile is 256 (or, at the right edge, fewer) consecutive hashes of one level; a bundle is the 256
entries under a tile of level 0. Law: `Tile.parse(t.path) == t`.

Source: C2SP tlog-tiles, https://c2sp.org/tlog-tiles
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from strongroom.errors import FormatError, InputError
from strongroom.ledger.tree import Node, fold, leaf_hash, nodes_of, range_root

WIDTH: Final = 256
HEIGHT: Final = 8
HASH_BYTES: Final = 32
MAX_ENTRY_BYTES: Final = 0xFFFF
_LEVELS: Final = 8  # enough for 2**64 entries

_PATH = re.compile(
    r"tile/(?P<level>entries|0|[1-9][0-9]?)/(?P<index>(?:x[0-9]{3}/)*[0-9]{3})"
    r"(?:\.p/(?P<width>[1-9][0-9]{0,2}))?"
)


@dataclass(frozen=True, order=True, slots=True)
class Tile:
    """The name of one tile, or of one entry bundle.

    Attributes:
        level: 0 for leaf hashes, n for roots of full tiles of level n - 1; None for entries.
        index: place within the level, counted in full tiles.
        width: hashes or entries it holds, 1 to 256.
    """

    level: int | None
    index: int
    width: int

    @property
    def path(self) -> str:
        """The tile's path under the log: `tile/<level>/<index>[.p/<width>]`."""
        level = "entries" if self.level is None else str(self.level)
        digits = f"{self.index:03d}"
        digits = digits.zfill(-(-len(digits) // 3) * 3)
        parts = [digits[i : i + 3] for i in range(0, len(digits), 3)]
        index = "/".join([*(f"x{part}" for part in parts[:-1]), parts[-1]])
        return f"tile/{level}/{index}" + ("" if self.width == WIDTH else f".p/{self.width}")

    @classmethod
    def parse(cls, path: str) -> Tile:
        """Read a tile's path.

        Raises:
            InputError: it is not spelt as `path` spells it.
        """
        match = _PATH.fullmatch(path)
        if match:
            tile = cls(
                level=None if match["level"] == "entries" else int(match["level"]),
                index=int(match["index"].replace("x", "").replace("/", "")),
                width=int(match["width"] or WIDTH),
            )
            if tile.path == path:
                return tile
        raise InputError(f"tile: expected tile/<level>/<index>[.p/<width>], got {path!r}")

    def covered_by(self, size: int) -> bool:
        """Say whether a tree of `size` determines every byte of this tile."""
        return (self.index * WIDTH + self.width) * _span(self.level) <= size


def bundle_at(size: int) -> Tile | None:
    """Return the partial bundle that ends a log of `size`; None where its last one is full."""
    return _edge_tile(None, size)


def bundle_ending(size: int) -> Tile:
    """Return the bundle whose last entry is the last of a log of `size`, at least 1."""
    index, place = divmod(size - 1, WIDTH)
    return Tile(None, index, place + 1)


def tiles_of(size: int) -> Iterator[Tile]:
    """Yield the bundles and tiles a log of `size` must have, rightmost ones as partial."""
    for level in (None, *range(_LEVELS)):
        count = size // _span(level)
        for index in range(count // WIDTH):
            yield Tile(level, index, WIDTH)
        if (tile := _edge_tile(level, size)) is not None:
            yield tile


def tile_bytes(tile: Tile, node: Node) -> bytes:
    """Return what a hash tile holds, of the tree behind `node`."""
    level = tile.level or 0
    first = tile.index * WIDTH
    return b"".join(node(HEIGHT * level, first + i) for i in range(tile.width))


def split_hashes(data: bytes, tile: Tile) -> list[bytes]:
    """Return the hashes of a tile.

    Raises:
        FormatError: it does not hold `width` hashes.
    """
    if len(data) != tile.width * HASH_BYTES:
        raise FormatError(f"{tile.path}: expected {tile.width * HASH_BYTES} bytes, got {len(data)}")
    return [data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES)]


def encode_bundle(entries: Sequence[bytes]) -> bytes:
    """Return entries one after another, each behind its length as a big-endian uint16.

    Raises:
        InputError: an entry is longer than 65,535 bytes.
    """
    for entry in entries:
        if len(entry) > MAX_ENTRY_BYTES:
            raise InputError(
                f"ledger entry: expected at most {MAX_ENTRY_BYTES} bytes, got {len(entry)}; "
                "put the long part into an attestation and name its digest"
            )
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def decode_bundle(data: bytes, tile: Tile) -> list[bytes]:
    """Return the entries of a bundle.

    Raises:
        FormatError: it does not hold exactly `width` entries.
    """
    entries = []
    position = 0
    while position < len(data):
        end = position + 2 + int.from_bytes(data[position : position + 2], "big")
        entries.append(data[position + 2 : end])
        position = end
    if position != len(data) or len(entries) != tile.width:
        raise FormatError(
            f"{tile.path}: expected exactly {tile.width} entries in {len(data)} bytes; "
            "the lengths inside do not add up"
        )
    return entries


def nodes_from(size: int, read: Callable[[Tile], bytes]) -> Node:
    """Return the `Node` function of a log of `size` whose tiles `read` fetches, each once."""
    fetched: dict[Tile, Node] = {}

    def node(height: int, index: int) -> bytes:
        level, above = divmod(height, HEIGHT)
        number = (index << above) // WIDTH
        count = size // _span(level)
        tile = Tile(level, number, min(WIDTH, count - number * WIDTH))
        if tile not in fetched:
            fetched[tile] = nodes_of(split_hashes(read(tile), tile))
        return fetched[tile](above, index - (number * WIDTH >> above))

    return node


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """The right edge of a log: the partial tile of every level, all that an append needs.

    Attributes:
        levels: for each level from 0 up, the hashes of its partial tile, 0 to 255 of them.
    """

    size: int
    levels: tuple[tuple[bytes, ...], ...] = ()

    @classmethod
    def of(cls, size: int, entries: Sequence[bytes], read: Callable[[Tile], bytes]) -> Edge:
        """Return the edge of a log of `size` that ends with these `entries` of its last bundle."""
        levels = [tuple(leaf_hash(entry) for entry in entries)]
        level = 1
        while size // _span(level):
            tile = _edge_tile(level, size)
            levels.append(() if tile is None else tuple(split_hashes(read(tile), tile)))
            level += 1
        return cls(size=size, levels=tuple(levels))

    def root(self) -> bytes:
        """Return the root hash of the whole log."""
        subtrees: list[bytes] = []
        for hashes in reversed(self.levels):
            node, start = nodes_of(hashes), 0
            for height in reversed(range(HEIGHT)):
                if len(hashes) & 1 << height:
                    subtrees.append(node(height, start >> height))
                    start += 1 << height
        return fold(subtrees)

    def grown(self, leaf: bytes) -> tuple[Edge, dict[Tile, bytes]]:
        """Return the edge after one more leaf, and the tiles that came to be, lowest first."""
        levels = list(self.levels)
        tiles: dict[Tile, bytes] = {}
        level, carried = 0, leaf
        while True:
            if level == len(levels):
                levels.append(())
            levels[level] = hashes = (*levels[level], carried)
            count = (self.size + 1) // _span(level)
            tiles[Tile(level, (count - 1) // WIDTH, len(hashes))] = b"".join(hashes)
            if len(hashes) < WIDTH:
                break
            levels[level] = ()
            level, carried = level + 1, range_root(0, WIDTH, nodes_of(hashes))
        return Edge(size=self.size + 1, levels=tuple(levels)), tiles


def _edge_tile(level: int | None, size: int) -> Tile | None:
    """Return the partial tile at the right edge of a level, if there is one."""
    index, width = divmod(size // _span(level), WIDTH)
    return Tile(level, index, width) if width else None


def _span(level: int | None) -> int:
    """Return how many entries one hash (or entry) of a level stands for."""
    return 1 << HEIGHT * (level or 0)
