from __future__ import annotations

import hashlib

import pytest

from strongroom.errors import LedgerError
from strongroom.ledger.tree import (
    EMPTY_ROOT,
    check_consistency,
    check_inclusion,
    consistency_path,
    inclusion_path,
    leaf_hash,
    node_hash,
    nodes_of,
    range_root,
)

# The eight leaves that Certificate Transparency implementations share as test data, with the root
# of every tree over the first n of them.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
HASHES = [leaf_hash(leaf) for leaf in LEAVES]
NODE = nodes_of(HASHES)
ROOT = bytes.fromhex(ROOTS[8])


@pytest.mark.parametrize("size", range(9))
def test_roots_are_those_everyone_computes(size: int) -> None:
    assert range_root(0, size, NODE).hex() == ROOTS[size]


def test_the_rules_of_rfc_6962() -> None:
    assert hashlib.sha256(b"").digest() == EMPTY_ROOT
    assert leaf_hash(b"x") == hashlib.sha256(b"\x00x").digest()
    assert node_hash(b"l", b"r") == hashlib.sha256(b"\x01lr").digest()


def test_the_inclusion_paths_of_rfc_6962() -> None:
    # RFC 6962, section 2.1.3: a tree of seven leaves d0 to d6, hashes a to j, and i, k, l above.
    a, b, c, d, e, f, j = HASHES[:7]
    g, h, i = node_hash(a, b), node_hash(c, d), node_hash(e, f)
    k, last = node_hash(g, h), node_hash(i, j)
    assert inclusion_path(0, 7, NODE) == [b, h, last]
    assert inclusion_path(3, 7, NODE) == [c, g, last]
    assert inclusion_path(4, 7, NODE) == [f, j, k]
    assert inclusion_path(6, 7, NODE) == [i, k]


def test_the_consistency_paths_of_rfc_6962() -> None:
    a, b, c, d, e, f, j = HASHES[:7]
    g, h, i = node_hash(a, b), node_hash(c, d), node_hash(e, f)
    k, last = node_hash(g, h), node_hash(i, j)
    assert consistency_path(3, 7, NODE) == [c, d, g, last]
    assert consistency_path(4, 7, NODE) == [last]
    assert consistency_path(6, 7, NODE) == [i, j, k]


def test_an_index_outside_the_tree_is_refused() -> None:
    for index in (-1, 8):
        with pytest.raises(LedgerError, match="expected an index below 8"):
            check_inclusion(HASHES[0], index, 8, [], ROOT)


def test_a_proof_of_the_wrong_length_is_refused() -> None:
    path = inclusion_path(2, 8, NODE)
    for wrong in (path[:-1], [*path, EMPTY_ROOT], []):
        with pytest.raises(LedgerError, match="inclusion proof"):
            check_inclusion(HASHES[2], 2, 8, wrong, ROOT)


def test_a_path_too_short_does_not_pass_for_reaching_the_root() -> None:
    with pytest.raises(LedgerError, match="inclusion proof"):
        check_inclusion(ROOT, 0, 8, [], ROOT)


def test_a_rewritten_beginning_is_found_by_either_root() -> None:
    path = consistency_path(3, 8, NODE)
    old_root = bytes.fromhex(ROOTS[3])
    check_consistency(3, old_root, 8, ROOT, path)
    for wrong_old, wrong_new in ((EMPTY_ROOT, ROOT), (old_root, EMPTY_ROOT)):
        with pytest.raises(LedgerError, match="rewritten"):
            check_consistency(3, wrong_old, 8, wrong_new, path)
    for wrong in ([], path[:-1], [*path, EMPTY_ROOT]):
        with pytest.raises(LedgerError, match="from 3 to 8"):
            check_consistency(3, old_root, 8, ROOT, wrong)


def test_a_shrunken_log_is_refused() -> None:
    with pytest.raises(LedgerError, match="shrunk"):
        check_consistency(9, EMPTY_ROOT, 8, ROOT, [])


def test_equal_sizes_need_equal_roots() -> None:
    check_consistency(8, ROOT, 8, ROOT, [])
    with pytest.raises(LedgerError, match="from 8 to 8"):
        check_consistency(8, EMPTY_ROOT, 8, ROOT, [])


def test_every_log_begins_with_the_empty_one() -> None:
    check_consistency(0, EMPTY_ROOT, 8, ROOT, [])
    with pytest.raises(LedgerError, match="from 0 to 8"):
        check_consistency(0, ROOT, 8, ROOT, [])
