"""Turn blocks into text: aligned columns for a pipe, colour and tables for a terminal.

Pure: blocks in, text out. What people wrote into a store is shown, never obeyed: control characters
are made visible, so that no comment or reason can move the cursor of whoever reads it.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from strongroom.cli.blocks import Block, Cell, Fields, Heading, Line, Raw, Table, Tone, Tree

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text
    from rich.tree import Tree as RichTree

COLUMN_GAP = "  "
NARROWEST = 32
"""A column that wraps is not made narrower than this for the sake of others."""

STYLES: dict[Tone, str] = {"plain": "", "good": "green", "bad": "bold red", "faint": "bright_black"}


def printable(text: str) -> str:
    """Return `text` with every control character but the line break spelled out."""
    return "".join(
        char
        if char == "\n" or unicodedata.category(char) not in {"Cc", "Cf", "Cs"}
        else _spelled(char)
        for char in text
    )


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


# --- for a pipe -----------------------------------------------------------------------


def plain(blocks: Sequence[Block]) -> str:
    """Return `blocks` as text without colour and without any line cut or folded."""
    parts: list[str] = []
    for block in blocks:
        if isinstance(block, Heading) and parts:
            parts.append("\n")
        if isinstance(block, Raw):
            parts.append(block.text)
        else:
            parts += [f"{line}\n" for line in _plain_lines(block)]
    return "".join(parts)


def _plain_lines(block: Heading | Line | Fields | Table | Tree) -> Iterator[str]:
    match block:
        case Heading(text):
            yield printable(text)
        case Line(cell):
            yield printable(cell.text)
        case Fields(pairs):
            width = max((len(name) for name, _ in pairs), default=0)
            for name, cell in pairs:
                yield f"  {name:<{width}}{COLUMN_GAP}{_indented(cell, width + 4)}"
        case Table():
            yield from _plain_table(block)
        case Tree(label, children):
            yield printable(label.text)
            yield from _plain_branches(children, "")


def _indented(cell: Cell, num_spaces: int) -> str:
    return printable(cell.text).replace("\n", "\n" + " " * num_spaces)


def _plain_table(table: Table) -> Iterator[str]:
    if not table.rows:
        yield table.empty
        return
    titles = [column.title.upper() for column in table.columns]
    grid = [titles, *([_on_one_line(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[index]) for row in grid) for index in range(len(titles))]
    for row in grid:
        cells = (
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(row, widths, table.columns, strict=True)
        )
        yield COLUMN_GAP.join(cells).rstrip()


def _on_one_line(cell: Cell) -> str:
    return printable(" ".join(cell.text.splitlines()))


def _plain_branches(branches: Sequence[Tree], indent: str) -> Iterator[str]:
    for index, branch in enumerate(branches):
        last = index == len(branches) - 1
        yield f"{indent}{'`-- ' if last else '|-- '}{printable(branch.label.text)}"
        yield from _plain_branches(branch.children, indent + ("    " if last else "|   "))


# --- for a terminal -------------------------------------------------------------------


def coloured(blocks: Sequence[Block], *, width: int, colour: bool = True) -> str:
    """Return `blocks` as text for a terminal of `width` columns."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=True, no_color=not colour, highlight=False
    )
    for index, block in enumerate(blocks):
        if isinstance(block, Heading) and index:
            console.print()
        if isinstance(block, Raw):
            out.write(block.text)
        else:
            console.print(_renderable(block), soft_wrap=isinstance(block, Line))
    return out.getvalue()


def _renderable(block: Heading | Line | Fields | Table | Tree) -> RenderableType:
    match block:
        case Heading(text):
            return _text(Cell(text), style="bold")
        case Line(cell):
            return _text(cell)
        case Fields(pairs):
            return _rich_fields(pairs)
        case Table():
            return _rich_table(block) if block.rows else _text(Cell(block.empty, "faint"))
        case Tree():
            return _rich_tree(block)


def _text(cell: Cell, style: str | None = None) -> Text:
    from rich.text import Text

    return Text(printable(cell.text), style=STYLES[cell.tone] if style is None else style)


def _rich_fields(pairs: Sequence[tuple[str, Cell]]) -> RenderableType:
    from rich.table import Table as Grid

    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bright_black", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, cell in pairs:
        grid.add_row(f"  {name}", _text(cell))
    return grid


def _rich_table(table: Table) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid

    grid = Grid(box=SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(table.columns):
        longest = max(len(row[index].text) for row in table.rows)
        grid.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            min_width=min(longest, NARROWEST) if column.wraps else None,
            overflow="fold" if column.wraps else "ellipsis",
        )
    for row in table.rows:
        grid.add_row(*(_text(cell) for cell in row))
    return grid


def _rich_tree(tree: Tree) -> RichTree:
    from rich.tree import Tree as RichTree

    top = RichTree(_text(tree.label), guide_style="bright_black")
    for child in tree.children:
        top.children.append(_rich_tree(child))
    return top
