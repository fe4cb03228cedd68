"""Laws of the Merkle tree, against RFC 6962 written down as it stands there, without economy."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strongroom.errors import LedgerError
from strongroom.ledger.tiles import WIDTH, Edge, Tile, decode_bundle, encode_bundle
from strongroom.ledger.tree import (
    check_consistency,
    check_inclusion,
    consistency_path,
    inclusion_path,
    leaf_hash,
    nodes_of,
    range_root,
)

Entries = list[bytes]


def mth(d: Entries) -> bytes:
    """Merkle Tree Hash, section 2.1."""
    if not d:
        return hashlib.sha256().digest()
    if len(d) == 1:
        return hashlib.sha256(b"\x00" + d[0]).digest()
    k = largest_power_below(len(d))
    return hashlib.sha256(b"\x01" + mth(d[:k]) + mth(d[k:])).digest()


def path(m: int, d: Entries) -> list[bytes]:
    """Merkle audit path, section 2.1.1."""
    if len(d) == 1:
        return []
    k = largest_power_below(len(d))
    if m < k:
        return [*path(m, d[:k]), mth(d[k:])]
    return [*path(m - k, d[k:]), mth(d[:k])]


def proof(m: int, d: Entries) -> list[bytes]:
    """Merkle consistency proof, section 2.1.2."""
    return subproof(m, d, complete=True)


def subproof(m: int, d: Entries, *, complete: bool) -> list[bytes]:
    if m == len(d):
        return [] if complete else [mth(d)]
    k = largest_power_below(len(d))
    if m <= k:
        return [*subproof(m, d[:k], complete=complete), mth(d[k:])]
    return [*subproof(m - k, d[k:], complete=False), mth(d[:k])]


def largest_power_below(n: int) -> int:
    k = 1
    while 2 * k < n:
        k *= 2
    return k


entries = st.lists(st.binary(max_size=6), min_size=1, max_size=70)
hashes = st.binary(min_size=32, max_size=32)


@given(entries)
def test_roots_are_the_reference_s(d: Entries) -> None:
    node = nodes_of([leaf_hash(entry) for entry in d])
    assert range_root(0, len(d), node) == mth(d)


@given(entries, st.data())
def test_inclusion_proofs_are_the_reference_s_and_hold(d: Entries, data: st.DataObject) -> None:
    node = nodes_of([leaf_hash(entry) for entry in d])
    index = data.draw(st.integers(0, len(d) - 1))
    found = inclusion_path(index, len(d), node)
    assert found == path(index, d)
    check_inclusion(leaf_hash(d[index]), index, len(d), found, mth(d))


@given(entries, st.data())
def test_consistency_proofs_are_the_reference_s_and_hold(d: Entries, data: st.DataObject) -> None:
    node = nodes_of([leaf_hash(entry) for entry in d])
    old = data.draw(st.integers(1, len(d)))
    found = consistency_path(old, len(d), node)
    assert found == proof(old, d)
    check_consistency(old, mth(d[:old]), len(d), mth(d), found)


@given(entries, st.data())
def test_a_proof_of_anything_else_fails(d: Entries, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(d) - 1))
    good = (leaf_hash(d[index]), index, len(d), path(index, d), mth(d))
    leaf, _, size, siblings, root = good
    kind = data.draw(st.sampled_from(["leaf", "index", "path", "root", "longer", "shorter"]))
    if kind == "leaf":
        bad = (data.draw(hashes), index, size, siblings, root)
    elif kind == "index":
        other = data.draw(st.integers(-1, size))
        bad = (leaf_hash(b"not in it" + d[index]), other, size, siblings, root)
    elif kind == "path" and siblings:
        place = data.draw(st.integers(0, len(siblings) - 1))
        bad = (
            leaf,
            index,
            size,
            [*siblings[:place], data.draw(hashes), *siblings[place + 1 :]],
            root,
        )
    elif kind == "longer":
        bad = (leaf, index, size, [*siblings, data.draw(hashes)], root)
    elif kind == "shorter" and siblings:
        bad = (leaf, index, size, siblings[:-1], root)
    else:
        bad = (leaf, index, size, siblings, data.draw(hashes))
    with pytest.raises(LedgerError):
        check_inclusion(*bad)


@given(entries, st.data())
def test_a_rewritten_log_is_never_consistent(new: Entries, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(new)))
    place = data.draw(st.integers(0, size - 1))
    old = [*new[:place], new[place] + b"!", *new[place + 1 : size]]
    honest, forged = proof(size, new), proof(size, [*old, *new[size:]])
    for siblings in (honest, forged, [], [*honest, mth(old)]):
        with pytest.raises(LedgerError):
            check_consistency(size, mth(old), len(new), mth(new), siblings)


@given(entries)
def test_an_edge_gives_the_reference_s_root_at_every_size(d: Entries) -> None:
    edge = Edge(size=0)
    for number, entry in enumerate(d):
        edge, _ = edge.grown(leaf_hash(entry))
        assert edge.root() == mth(d[: number + 1])


@given(st.none() | st.integers(0, 63), st.integers(0, 2**48), st.integers(1, WIDTH))
def test_a_tile_survives_its_path(level: int | None, index: int, width: int) -> None:
    tile = Tile(level, index, width)
    assert Tile.parse(tile.path) == tile


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=WIDTH))
def test_a_bundle_survives_its_bytes(items: list[bytes]) -> None:
    assert decode_bundle(encode_bundle(items), Tile(None, 0, len(items))) == items
