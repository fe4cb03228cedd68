"""Merkle trees as RFC 6962 hashes them: roots, inclusion and consistency proofs. Pure.

A tree is seen through a `Node` function: `node(height, index)` is the hash of the perfect subtree
over leaves [index * 2**height, (index + 1) * 2**height). Who keeps tiles, or all leaves in memory,
can give one; nothing here reads or stores.

Hashes are raw 32-byte SHA-256 values.

Source: RFC 6962 section 2.1; verification after RFC 9162 sections 2.1.3.2 and 2.1.4.2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from strongroom.errors import LedgerError

Node = Callable[[int, int], bytes]
"""(height, index) -> hash of one perfect subtree."""

EMPTY_ROOT = hashlib.sha256(b"").digest()


def leaf_hash(entry: bytes) -> bytes:
    """Hash one entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash two neighbouring subtrees into the one above."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def nodes_of(leaves: Sequence[bytes]) -> Node:
    """Return the `Node` function of a tree whose leaf hashes are all in memory."""
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append(
            [node_hash(below[i], below[i + 1]) for i in range(0, len(below) - len(below) % 2, 2)]
        )
    return lambda height, index: levels[height][index]


def range_root(start: int, end: int, node: Node) -> bytes:
    """Return MTH(D[start:end]).

    Args:
        start: a multiple of the largest power of two that is not above `end - start`.
        end: not included.
        node: gives the perfect subtrees.
    """
    subtrees = []
    while start < end:
        height = (end - start).bit_length() - 1
        subtrees.append(node(height, start >> height))
        start += 1 << height
    return fold(subtrees)


def fold(subtrees: Sequence[bytes]) -> bytes:
    """Return the root over perfect subtrees of falling size, left to right."""
    if not subtrees:
        return EMPTY_ROOT
    *rest, root = subtrees
    for left in reversed(rest):
        root = node_hash(left, root)
    return root


def inclusion_path(index: int, size: int, node: Node) -> list[bytes]:
    """Return PATH(index, D[0:size]): the sibling of the leaf first, the root's child last."""
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(range_root(middle, end, node))
            end = middle
        else:
            path.append(range_root(start, middle, node))
            start = middle
    return path[::-1]


def consistency_path(old_size: int, size: int, node: Node) -> list[bytes]:
    """Return PROOF(old_size, D[0:size]); empty where either tree is empty or both are the same."""
    if old_size in {0, size}:
        return []
    path: list[bytes] = []
    start, end = 0, size
    # SUBPROOF goes down until the old tree's edge is the edge of a subtree.
    while old_size != end:
        middle = start + _split(end - start)
        if old_size <= middle:
            path.append(range_root(middle, end, node))
            end = middle
        else:
            path.append(range_root(start, middle, node))
            start = middle
    if start != 0:
        path.append(range_root(start, end, node))
    return path[::-1]


def check_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """Check that `leaf` is the leaf hash at `index` of the tree of `size` with this `root`.

    Raises:
        LedgerError: the proof does not lead there.
    """
    if not 0 <= index < size:
        raise LedgerError(f"inclusion proof: expected an index below {size}, got {index}")
    first, last, reached = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            raise LedgerError(f"inclusion proof of entry {index}: it has too many hashes")
        if first % 2 == 1 or first == last:
            reached = node_hash(sibling, reached)
            while first % 2 == 0 and first != 0:
                first, last = first >> 1, last >> 1
        else:
            reached = node_hash(reached, sibling)
        first, last = first >> 1, last >> 1
    if last != 0 or reached != root:
        raise LedgerError(
            f"inclusion proof of entry {index} in a tree of {size}: expected root {root.hex()}, "
            f"got {reached.hex()}; the entry is not the one the signed tree head covers"
        )


def check_consistency(
    old_size: int, old_root: bytes, size: int, root: bytes, path: Sequence[bytes]
) -> None:
    """Check that the tree of `size` begins with the tree of `old_size`.

    Raises:
        LedgerError: the proof does not show it: history was rewritten, or the proof is wrong.
    """
    if not 0 <= old_size <= size:
        raise LedgerError(
            f"consistency proof: expected an old size from 0 to {size}, got {old_size}; "
            "the log has shrunk"
        )
    if old_size in {0, size}:
        expected = EMPTY_ROOT if old_size == 0 else root
        if path or old_root != expected:
            raise LedgerError(
                f"consistency proof from {old_size} to {size}: expected old root "
                f"{expected.hex()} and no hashes, got {old_root.hex()} and {len(path)} hash(es)"
            )
        return
    # Where the old tree is a perfect subtree its root starts the proof and is left out of it.
    hashes = [old_root, *path] if old_size & (old_size - 1) == 0 else list(path)
    first, last = old_size - 1, size - 1
    while first % 2 == 1:
        first, last = first >> 1, last >> 1
    old_reached = reached = hashes[0] if hashes else EMPTY_ROOT
    for sibling in hashes[1:]:
        if last == 0:
            raise LedgerError(f"consistency proof from {old_size} to {size}: too many hashes")
        if first % 2 == 1 or first == last:
            old_reached = node_hash(sibling, old_reached)
            reached = node_hash(sibling, reached)
            while first % 2 == 0 and first != 0:
                first, last = first >> 1, last >> 1
        else:
            reached = node_hash(reached, sibling)
        first, last = first >> 1, last >> 1
    if last != 0 or old_reached != old_root or reached != root:
        raise LedgerError(
            f"consistency proof from {old_size} to {size}: expected roots {old_root.hex()} and "
            f"{root.hex()}, got {old_reached.hex()} and {reached.hex()}; one of the two tree heads "
            "belongs to a rewritten log: keep both as evidence"
        )


def _split(size: int) -> int:
    """Return the largest power of two below `size` (which is at least 2)."""
    return 1 << (size - 1).bit_length() - 1
