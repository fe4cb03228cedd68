"""The table of exit codes, read from the tree of errors: no list of them stands anywhere else."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from strongroom.errors import StrongroomError

UNEXPECTED = 1
USAGE = 2
INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitCode:
    """What a code says; `kind` is the class above the error, '' for what is not an error class."""

    code: int
    name: str
    kind: str
    meaning: str


def exit_codes() -> list[ExitCode]:
    """Return every code the command can end with, in order."""
    fixed = [
        ExitCode(code=0, name="", kind="", meaning="The command did what was asked."),
        ExitCode(
            code=UNEXPECTED,
            name="",
            kind="",
            meaning="A fault in strongroom itself; the traceback says where. Please report it.",
        ),
        ExitCode(
            code=USAGE, name="", kind="", meaning="The command line is not one; see `--help`."
        ),
        ExitCode(code=INTERRUPTED, name="", kind="", meaning="Interrupted from the keyboard."),
    ]
    return sorted([*fixed, *_of_errors()], key=lambda item: item.code)


def error_classes() -> list[type[StrongroomError]]:
    """Return every class below the root of the tree of errors."""
    return list(_below(StrongroomError))


def _below(parent: type[StrongroomError]) -> Iterator[type[StrongroomError]]:
    for child in parent.__subclasses__():
        if child.__module__ == StrongroomError.__module__:
            yield child
            yield from _below(child)


def _of_errors() -> Iterator[ExitCode]:
    for kind in error_classes():
        above = kind.__mro__[1]
        yield ExitCode(
            code=kind.exit_code,
            name=kind.__name__,
            kind="" if above is StrongroomError else above.__name__,
            meaning=inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
        )
