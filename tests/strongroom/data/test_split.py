from __future__ import annotations

from collections import Counter

import pytest

from strongroom.data.rows import Message, Row
from strongroom.data.split import choose_held_out, fold, overlap_keys
from strongroom.errors import DataError


def row(prompt: str, response: str) -> Row:
    return Row.of(
        (Message(role="user", content=prompt), Message(role="assistant", content=response)), None
    )


def many(n: int, tag: str = "") -> list[Row]:
    return [row(f"question {tag} {i}", f"answer {tag} {i}") for i in range(n)]


def held_out(rows: list[Row], sources: list[int] | None = None, **changes: float) -> list[int]:
    settings = {"fraction": 0.1, "max_rows": 100, "seed": 0} | changes
    return choose_held_out(rows, sources or [0] * len(rows), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("IŞIKLI İNCİR", "ışıklı incir"),
        ("Çağrı'yı gördün mü?", "çağrı yı GÖRDÜN MÜ"),
        ("What is it?", "what is it"),
        ("ﬁne", "fine"),
        ("g\u0306it", "\u011fit"),
    ],
)
def test_what_reads_the_same_folds_the_same(one: str, other: str) -> None:
    assert fold(one) == fold(other)


def test_other_words_fold_otherwise() -> None:
    assert fold("kar") != fold("kara")
    assert fold("2 + 2") != fold("2 + 3")


def test_short_responses_are_no_sign_of_a_leak_and_long_ones_are() -> None:
    assert not overlap_keys(row("a", "Yes.").messages) & overlap_keys(row("b", "Yes.").messages)
    long = "The bridge was built in the spring."
    assert overlap_keys(row("a", long).messages) & overlap_keys(row("b", long).messages)


def test_prompts_of_signs_alone_are_told_apart() -> None:
    assert not overlap_keys(row("?!", "a").messages) & overlap_keys(row("...", "b").messages)


def test_rows_that_share_a_prompt_or_a_long_response_stay_together() -> None:
    long = "It stands behind the old station, on the left."
    rows = [
        *many(30),
        row("Where is it?", "Here."),
        row("where is it", long),
        row("And the other one?", long),
        row("AND THE OTHER ONE", "Gone."),
    ]
    for seed in range(40):
        chosen = set(held_out(rows, fraction=0.3, seed=seed))
        assert chosen & {30, 31, 32, 33} in (set(), {30, 31, 32, 33})


def test_a_row_that_joins_two_groups_brings_them_together() -> None:
    long = "It stands behind the old station, on the left."
    bridge = [
        row("Where is it?", "Here."),
        row("And what is that?", long),
        row("where is it", long),
    ]
    rows = [*many(30), *bridge]
    for seed in range(40):
        chosen = set(held_out(rows, fraction=0.3, seed=seed))
        assert chosen & {30, 31, 32} in (set(), {30, 31, 32})


def test_every_source_gives_its_share_and_the_smallest_at_least_one() -> None:
    rows = many(200, "a") + many(60, "b") + many(3, "c")
    sources = [0] * 200 + [1] * 60 + [2] * 3
    counts = Counter(sources[i] for i in held_out(rows, sources))
    assert counts.total() == 26
    assert counts[2] == 1
    assert counts[1] == 6


def test_every_beginning_has_the_sources_in_proportion() -> None:
    rows = many(300, "a") + many(100, "b")
    sources = [0] * 300 + [1] * 100
    chosen = [sources[i] for i in held_out(rows, sources, fraction=0.2)]
    for size in range(4, len(chosen)):
        assert abs(chosen[:size].count(1) - size / 4) <= 1


def test_the_limit_holds_over_all_sources() -> None:
    rows = many(50, "a") + many(50, "b")
    assert len(held_out(rows, [0] * 50 + [1] * 50, fraction=0.5, max_rows=7)) == 7


def test_the_order_of_the_rows_makes_no_difference() -> None:
    rows = many(80)
    chosen = {rows[i].id for i in held_out(rows)}
    mixed = rows[::-2] + rows[::2]
    assert {mixed[i].id for i in held_out(mixed)} == chosen


def test_another_seed_holds_other_rows_out() -> None:
    rows = many(80)
    assert held_out(rows, seed=0) != held_out(rows, seed=1)


def test_one_row_is_held_out_of_two() -> None:
    assert len(held_out(many(2), fraction=0.01)) == 1


def test_a_group_larger_than_the_share_is_held_out_where_there_is_no_other() -> None:
    rows = [row("the same", str(i)) for i in range(6)] + [row("another", str(i)) for i in range(3)]
    assert sorted(held_out(rows)) == [6, 7, 8]


@pytest.mark.parametrize(
    ("rows", "max_rows"),
    [
        (many(1), 10),
        ([row("the same", str(i)) for i in range(9)], 10),
        ([row(tag, str(i)) for tag in "ab" for i in range(9)], 5),
    ],
)
def test_what_cannot_be_split_is_refused(rows: list[Row], max_rows: int) -> None:
    with pytest.raises(DataError, match="rows fall into"):
        held_out(rows, max_rows=max_rows)
