from __future__ import annotations

import re

from strongroom.cli.blocks import (
    NOTHING,
    Block,
    Cell,
    Column,
    Fields,
    Heading,
    Line,
    Raw,
    Table,
    Tree,
)
from strongroom.cli.render import coloured, plain, printable

TABLE = Table(
    columns=(Column(title="name"), Column(title="size", right=True)),
    rows=((Cell("chat/10"), Cell("9")), (Cell("chat/100", "good"), Cell("1234"))),
    empty="nothing here",
)
TREE = Tree(Cell("top"), (Tree(Cell("a"), (Tree(Cell("deep")),)), Tree(Cell("b", "bad"))))
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def test_plain_columns_are_aligned_and_numbers_stand_to_the_right() -> None:
    assert plain([TABLE]) == "NAME      SIZE\nchat/10      9\nchat/100  1234\n"


def test_a_plain_table_is_never_cut_however_long_its_cells() -> None:
    long = "x" * 500
    table = Table(columns=(Column(title="name"),), rows=((Cell(long),),), empty="")
    assert long in plain([table])


def test_a_row_of_a_plain_table_is_one_line_whatever_its_cells_hold() -> None:
    table = Table(columns=(Column(title="comment"),), rows=((Cell("two\nlines"),),), empty="")
    assert plain([table]) == "COMMENT\ntwo lines\n"


def test_a_wrapping_column_is_not_squeezed_to_nothing() -> None:
    table = Table(
        columns=(*(Column(title="x" * 30) for _ in range(3)), Column(title="facts", wraps=True)),
        rows=((*(Cell("y" * 30) for _ in range(3)), Cell("word " * 20)),),
        empty="",
    )
    assert "word word word" in ESCAPE.sub("", coloured([table], width=130))


def test_an_empty_table_says_so() -> None:
    empty = Table(columns=TABLE.columns, rows=(), empty="nothing here")
    assert plain([empty]) == "nothing here\n"
    assert "nothing here" in coloured([empty], width=80)


def test_plain_trees_are_drawn_in_ascii() -> None:
    assert plain([TREE]) == "top\n|-- a\n|   `-- deep\n`-- b\n"


def test_fields_align_and_a_value_of_several_lines_stays_under_its_name() -> None:
    fields = Fields((("id", Cell("one")), ("reasons", Cell("first\nsecond"))))
    assert plain([fields]) == "  id       one\n  reasons  first\n           second\n"


def test_headings_are_set_apart_from_what_stands_before() -> None:
    blocks: list[Block] = [Heading("A"), Line.of("x"), Heading("B"), Line.of("y")]
    assert plain(blocks) == "A\nx\n\nB\ny\n"


def test_raw_text_is_left_as_it_is() -> None:
    assert plain([Raw("| a |\n|---|\n")]) == "| a |\n|---|\n"
    assert coloured([Raw("[bold] [/]\n")], width=10) == "[bold] [/]\n"


def test_plain_text_has_no_escape_codes_and_a_terminal_has_colour() -> None:
    assert "\x1b" not in plain([TABLE, TREE])
    assert "\x1b[" in coloured([TABLE, TREE], width=80)


def test_a_terminal_shows_the_same_words_as_a_pipe() -> None:
    shown = ESCAPE.sub("", coloured([TABLE, TREE, Fields((("id", NOTHING),))], width=80))
    assert {"chat/10", "chat/100", "1234", "top", "deep", "id", "-"} <= set(shown.split())


def test_without_colour_a_terminal_gets_none() -> None:
    shown = coloured([TABLE, Line.of("bad news", "bad")], width=80, colour=False)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown)


def test_rich_markup_in_data_is_shown_and_not_obeyed() -> None:
    assert "[red]x[/red]" in ESCAPE.sub("", coloured([Line.of("[red]x[/red]")], width=80))


def test_control_characters_in_data_cannot_move_the_cursor() -> None:
    evil = "ok\x1b[2Jgone\rback\x07\u202eleft"
    assert printable(evil) == "ok\\x1b[2Jgone\\rback\\x07\\u202eleft"
    for shown in (plain([Line.of(evil)]), ESCAPE.sub("", coloured([Line.of(evil)], width=80))):
        assert not set(shown) & {"\x1b", "\r", "\x07", "\u202e"}


def test_turkish_letters_are_ordinary_text() -> None:
    assert printable("İğdır, çaya ışık") == "İğdır, çaya ışık"
