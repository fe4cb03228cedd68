"""What a command shows, as plain data: headings, fields, tables, trees and lines.

Commands build blocks; `render` turns them into text, in one way for a terminal and in another for
a pipe. A tone says what a cell means, never which colour it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "good", "bad", "faint"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of text and what it means to the reader."""

    text: str
    tone: Tone = "plain"


NOTHING = Cell("-", "faint")
"""Stands where there is nothing to say, so that columns stay columns."""


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of what follows."""

    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """One paragraph of text."""

    cell: Cell

    @classmethod
    def of(cls, text: str, tone: Tone = "plain") -> Line:
        """Make a line of a text."""
        return cls(Cell(text, tone))


@dataclass(frozen=True, slots=True)
class Fields:
    """Names and their values, one pair a line."""

    pairs: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of a table; numbers stand to the right, and what is long wraps on a terminal."""

    title: str
    right: bool = False
    wraps: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows under columns; `empty` is said where there are no rows."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str


@dataclass(frozen=True, slots=True)
class Tree:
    """A label and what hangs below it."""

    label: Cell
    children: tuple[Tree, ...] = ()


@dataclass(frozen=True, slots=True)
class Raw:
    """Text printed as it is, for another program to read."""

    text: str


Block = Heading | Line | Fields | Table | Tree | Raw
