"""The exit codes as a table, and as the page of the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from strongroom.cli.blocks import Cell, Column, Table
from strongroom.cli.exit_codes import ExitCode

PREAMBLE = """\
# Exit codes and errors

Every class of error has an exit code of its own, so a script can tell a full disk from a damaged
checkpoint without reading text. With `--json` the same is on standard output:
`{"error": class, "message": text, "exit_code": number}` and every fact the error carries.

An error is of the kind named beside it, and so of every kind above that one.

This page is what `strongroom errors --markdown` prints.

| code | error | kind of | meaning |
|---:|---|---|---|
"""


def exit_code_table(codes: Sequence[ExitCode]) -> Table:
    """Return one row for each code."""
    return Table(
        columns=(
            Column(title="code", right=True),
            Column(title="error"),
            Column(title="kind of"),
            Column(title="meaning", wraps=True),
        ),
        rows=tuple(
            (
                Cell(str(item.code)),
                Cell(item.name or "-"),
                Cell(item.kind or "-"),
                Cell(item.meaning),
            )
            for item in codes
        ),
        empty="",
    )


def exit_code_page(codes: Sequence[ExitCode]) -> str:
    """Return `docs/errors.md`."""
    rows = (
        f"| {item.code} | {_code(item.name)} | {_code(item.kind)} | {item.meaning} |\n"
        for item in codes
    )
    return PREAMBLE + "".join(rows)


def _code(name: str) -> str:
    return f"`{name}`" if name else ""
