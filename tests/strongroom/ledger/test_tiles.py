from __future__ import annotations

import pytest

from strongroom.errors import FormatError, InputError
from strongroom.ledger.tiles import (
    Edge,
    Tile,
    bundle_at,
    bundle_ending,
    decode_bundle,
    encode_bundle,
    nodes_from,
    split_hashes,
    tile_bytes,
    tiles_of,
)
from strongroom.ledger.tree import leaf_hash, nodes_of, range_root


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        (Tile(0, 0, 256), "tile/0/000"),
        (Tile(0, 0, 1), "tile/0/000.p/1"),
        (Tile(1, 999, 255), "tile/1/999.p/255"),
        (Tile(None, 1000, 256), "tile/entries/x001/000"),
        (Tile(3, 1234067, 256), "tile/3/x001/x234/067"),
    ],
)
def test_paths_are_those_of_the_specification(tile: Tile, path: str) -> None:
    assert tile.path == path
    assert Tile.parse(path) == tile


@pytest.mark.parametrize(
    "path",
    [
        "checkpoint",
        "tile/0/0",
        "tile/0/0000",
        "tile/00/000",
        "tile/64/x000/000",
        "tile/0/x000/000",
        "tile/0/001/000",
        "tile/0/000.p/0",
        "tile/0/000.p/256",
        "tile/0/000.p/01",
        "tile/entries/000.p",
        "tile/entries/000/",
        "tile/entry/000",
        "tile/0/٠٠٠",
    ],
)
def test_another_spelling_is_refused(path: str) -> None:
    with pytest.raises(InputError, match="tile"):
        Tile.parse(path)


def test_a_tree_of_70000_has_the_tiles_of_the_specification_s_example() -> None:
    tiles = [tile for tile in tiles_of(70_000) if tile.level is not None]
    full = [(tile.level, tile.index) for tile in tiles if tile.width == 256]
    partial = {tile.level: tile.width for tile in tiles if tile.width < 256}
    assert len([level for level, _ in full if level == 0]) == 273
    assert [index for level, index in full if level == 1] == [0]
    assert partial == {0: 112, 1: 17, 2: 1}


def test_a_tree_of_256_has_one_hash_above() -> None:
    assert {tile.path for tile in tiles_of(256)} == {
        "tile/entries/000",
        "tile/0/000",
        "tile/1/000.p/1",
    }
    assert bundle_at(256) is None
    assert bundle_ending(256) == Tile(None, 0, 256)
    assert bundle_at(257) == Tile(None, 1, 1) == bundle_ending(257)


def test_an_empty_tree_has_none() -> None:
    assert list(tiles_of(0)) == []


@pytest.mark.parametrize(
    ("tile", "size"), [(Tile(0, 0, 3), 3), (Tile(1, 0, 1), 256), (Tile(None, 1, 1), 257)]
)
def test_a_tile_is_covered_from_its_last_hash_on(tile: Tile, size: int) -> None:
    assert tile.covered_by(size)
    assert not tile.covered_by(size - 1)


def test_a_bundle_survives_its_bytes() -> None:
    entries = [b"", b"x", b"y" * 65_535]
    data = encode_bundle(entries)
    assert data[:5] == b"\x00\x00\x00\x01x"
    assert decode_bundle(data, Tile(None, 0, 3)) == entries


def test_an_entry_too_long_is_refused() -> None:
    with pytest.raises(InputError, match="attestation"):
        encode_bundle([b"z" * 65_536])


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x00\x02x", b"\x00\x01x\x00", b"\x00\x00\x00\x00"]
)
def test_a_bundle_whose_lengths_do_not_add_up_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"tile/entries/000\.p/1"):
        decode_bundle(data, Tile(None, 0, 1))


def test_a_tile_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(FormatError, match="expected 64 bytes, got 63"):
        split_hashes(bytes(63), Tile(0, 0, 2))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 511, 700])
def test_tiles_alone_give_the_root(size: int) -> None:
    node = nodes_of([leaf_hash(b"%d" % number) for number in range(size)])
    read: list[Tile] = []

    def fetch(tile: Tile) -> bytes:
        read.append(tile)
        return tile_bytes(tile, node)

    assert range_root(0, size, nodes_from(size, fetch)) == range_root(0, size, node)
    assert len(read) == len(set(read)), "a tile was fetched twice"


def test_an_edge_grows_as_the_tree_does() -> None:
    # Past the first full tile of level 1 the edge carries twice at once.
    stored: dict[Tile, bytes] = {}
    leaves: list[bytes] = []
    edge = Edge(size=0)
    for number in range(600):
        leaves.append(leaf_hash(b"%d" % number))
        edge, tiles = edge.grown(leaves[-1])
        assert not tiles.keys() & stored.keys()
        stored |= tiles
        if number % 37 == 0 or number in {254, 255, 256, 511, 512}:
            node = nodes_of(leaves)
            assert edge.root() == range_root(0, len(leaves), node)
            expected = {
                t: tile_bytes(t, node) for t in tiles_of(len(leaves)) if t.level is not None
            }
            assert {t: stored[t] for t in expected} == expected


def test_an_edge_carries_through_two_levels() -> None:
    # 65,535 leaves would be slow to grow one by one: begin with the edge they leave.
    one = leaf_hash(b"one")
    edge = Edge(size=65_535, levels=((one,) * 255, (one,) * 255))
    grown, tiles = edge.grown(one)
    assert grown.levels[:2] == ((), ())
    assert [len(level) for level in grown.levels] == [0, 0, 1]
    assert list(tiles) == [Tile(0, 255, 256), Tile(1, 0, 256), Tile(2, 0, 1)]


def test_an_edge_is_read_back_from_entries_and_tiles() -> None:
    edge, entries = Edge(size=0), list[bytes]()
    stored: dict[Tile, bytes] = {}
    for number in range(515):
        entries.append(b"%d" % number)
        edge, tiles = edge.grown(leaf_hash(entries[-1]))
        stored |= tiles
    assert Edge.of(515, entries[512:], stored.__getitem__) == edge
