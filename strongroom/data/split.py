"""Split: which rows are held out, so that nothing trained on gives them away.

Rows that share an overlap key form a group, and a group never comes apart. Groups are ranked by
SHA-256 of seed and row digest, so neither the order of the rows nor a clock decides; every source
gives its share, and every beginning of the held-out list has the sources in about that proportion,
because evaluation may read only so many rows.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from strongroom.data.rows import Message, Row
from strongroom.errors import DataError

MIN_RESPONSE_LETTERS = 20
"""Shorter responses ('Yes.', 'Paris') are shared by chance, and say nothing of a leak."""

_ONE_I = str.maketrans("İIı", "iii")


def fold(text: str) -> str:
    """Return the letters and digits of `text` alone, without case and accents.

    Coarse on purpose, down to one letter for the four Turkish i: folding too much only keeps two
    rows on one side, it never drops a row.
    """
    # Before casefold, which makes two characters of the dotted capital.
    folded = unicodedata.normalize("NFKC", text).translate(_ONE_I).casefold()
    return "".join(c for c in unicodedata.normalize("NFD", folded) if c.isalnum())


def overlap_keys(messages: Iterable[Message]) -> frozenset[str]:
    """Return the keys of a row: what the user says before the first answer, and each long answer.

    A model trained on either has seen part of what it would be judged on.
    """
    opening: list[str] = []
    keys: set[str] = set()
    answered = False
    for message in messages:
        if message.role == "assistant":
            answered = True
            response = fold(message.content)
            if len(response) >= MIN_RESPONSE_LETTERS:
                keys.add(f"response {response}")
        elif message.role == "user" and not answered:
            opening.append(fold(message.content) or message.content)
    return frozenset(keys | {"prompt " + " ".join(opening)})


def choose_held_out(
    rows: Sequence[Row],
    sources: Sequence[int],
    *,
    fraction: float,
    max_rows: int,
    seed: int,
) -> list[int]:
    """Choose the rows to hold out.

    Args:
        rows: all rows, at least one, without exact duplicates.
        sources: for each row, the number of the source it came from.
        fraction: the part of each source's rows to hold out.
        max_rows: never more than this, over all sources.
        seed: of the ranking.

    Returns:
        Indices into `rows`, in the order in which evaluation reads them.

    Raises:
        DataError: no group can be held out and leave something to train on.
    """
    rank = {i: hashlib.sha256(f"{seed} {row.id}".encode()).digest() for i, row in enumerate(rows)}
    groups = sorted(_groups(rows), key=lambda group: min(rank[i] for i in group))
    quotas = _quotas(Counter(sources), min(max_rows, max(1, round(fraction * len(rows)))))
    chosen: list[int] = []
    for group in groups:
        source = sources[group[0]]
        if len(group) <= quotas[source]:
            quotas[source] -= len(group)
            chosen += group
    if not chosen:
        # Every group is larger than its source's share: the smallest one has to do.
        chosen = min(groups, key=len)
    if len(chosen) == len(rows) or len(chosen) > max_rows:
        raise DataError(
            "held-out split",
            [
                f"{len(rows)} rows fall into {len(groups)} group(s) that share prompts or long "
                f"responses; at least two are needed, one of them of at most {max_rows} rows; "
                "add other conversations, or raise data.max_held_out_rows"
            ],
        )
    return _interleaved(chosen, sources, rank)


def _groups(rows: Sequence[Row]) -> list[list[int]]:
    """Return the connected components of rows under shared keys, members in order."""
    parent = list(range(len(rows)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first_with: dict[str, int] = {}
    for index, row in enumerate(rows):
        for key in overlap_keys(row.messages):
            other = first_with.setdefault(key, index)
            low, high = sorted((root(other), root(index)))
            parent[high] = low
    members: dict[int, list[int]] = defaultdict(list)
    for index in range(len(rows)):
        members[root(index)].append(index)
    return list(members.values())


def _quotas(num_rows: Counter[int], total: int) -> dict[int, int]:
    """Share `total` out in proportion; the smallest source first, so that it gets at least one."""
    quotas: dict[int, int] = {}
    rows_left = num_rows.total()
    for source, count in sorted(num_rows.items(), key=lambda item: (item[1], item[0])):
        quotas[source] = min(total, max(1, round(total * count / rows_left)))
        total -= quotas[source]
        rows_left -= count
    return quotas


def _interleaved(
    chosen: Sequence[int], sources: Sequence[int], rank: dict[int, bytes]
) -> list[int]:
    by_source: dict[int, list[int]] = defaultdict(list)
    for index in sorted(chosen, key=rank.__getitem__):
        by_source[sources[index]].append(index)
    placed = [
        ((place + 0.5) / len(indices), source, index)
        for source, indices in by_source.items()
        for place, index in enumerate(indices)
    ]
    return [index for _, _, index in sorted(placed)]
