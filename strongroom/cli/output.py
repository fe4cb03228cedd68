"""How a command answers: one JSON document, or text; and how it says that it failed.

The answer goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import Block
from strongroom.cli.render import coloured, plain, printable
from strongroom.errors import StrongroomError


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What a command found.

    Attributes:
        document: what `--json` prints.
        blocks: the same for a person.
        failure: set where the command did its work and the finding itself is a failure.
    """

    document: JsonObject
    blocks: tuple[Block, ...]
    failure: StrongroomError | None = None


def answer(reply: Reply, *, as_json: bool) -> None:
    """Print `reply` on standard output, and its failure, if any, on standard error."""
    if as_json:
        failure = {} if reply.failure is None else failure_document(reply.failure)
        write_json({**failure, **reply.document})
        return
    _write(for_stream(reply.blocks, terminal=sys.stdout.isatty()))
    if reply.failure is not None:
        write_failure(reply.failure)


def for_stream(blocks: Sequence[Block], *, terminal: bool) -> str:
    """Return `blocks` as a terminal shows them, or as a pipe carries them."""
    if not terminal:
        return plain(blocks)
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    return coloured(blocks, width=width, colour="NO_COLOR" not in os.environ)


def write_json(document: JsonObject) -> None:
    """Print one JSON document, in ASCII, so that no locale can break it."""
    _write(json.dumps(jsonable(document), indent=2, allow_nan=False) + "\n")


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has gone, as `head` does; what was asked for is done all the same. What is
        # still buffered must not fail again when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_failure(error: StrongroomError) -> None:
    """Say on standard error what went wrong."""
    sys.stderr.write(f"error: {printable(str(error))}\n")


def failure_document(error: StrongroomError) -> JsonObject:
    """Return what `--json` says of an error: class, message, exit code and each fact of it."""
    facts = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    return {
        "error": type(error).__name__,
        "message": str(error),
        "exit_code": error.exit_code,
        **facts,
    }


def jsonable(value: Any) -> Any:  # noqa: ANN401 -- JSON is whatever it is
    """Return `value` as JSON holds it; a number that is not finite becomes its name as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and type(value).__str__ is object.__str__:
        return {
            field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in value]
    return str(value)
