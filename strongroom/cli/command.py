"""Make a function a command: it takes settings and its own arguments, and returns a reply.

The shared options are added here, once; so is the answering. A command's body is therefore
parse -> one call -> present, and an ordinary function to whoever tests it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from strongroom.cli.output import Reply, answer
from strongroom.cli.settings import (
    DEFAULT_CACHE,
    DEFAULT_KEYS,
    CacheOption,
    JsonOption,
    KeysOption,
    Settings,
    StoreOption,
    VerboseOption,
)

SHARED_OPTIONS: dict[str, tuple[Any, Any]] = {
    "store": (StoreOption, None),
    "keys": (KeysOption, Path(DEFAULT_KEYS)),
    "cache": (CacheOption, Path(DEFAULT_CACHE)),
    "json": (JsonOption, False),
    "verbose": (VerboseOption, False),
}


_WITH_VALUE = {"--store", "--keys", "--cache"}
_FLAGS = {"--json", "--verbose", "-v"}


def add_command(app: typer.Typer, name: str, body: Callable[..., Reply]) -> None:
    """Register `body`, a function of `(settings, own arguments...)`, as the command `name`."""

    @functools.wraps(body)
    def run(**arguments: Any) -> None:  # noqa: ANN401 -- what typer has parsed
        settings = Settings(**{option: arguments.pop(option) for option in SHARED_OPTIONS})
        log_to_stderr(verbose=settings.verbose)
        reply = body(settings, **arguments)
        answer(reply, as_json=settings.json)
        if reply.failure is not None:
            raise typer.Exit(reply.failure.exit_code)

    parameters = [*_own_parameters(body), *_shared_parameters()]
    # typer reads both of these.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    app.command(name)(run)


def _own_parameters(body: Callable[..., Reply]) -> list[inspect.Parameter]:
    _settings, *own = inspect.signature(body, eval_str=True).parameters.values()
    return [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own]


def _shared_parameters() -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            option, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
        )
        for option, (annotation, default) in SHARED_OPTIONS.items()
    ]


def shared_options_last(arguments: Sequence[str]) -> list[str]:
    """Move shared options that stand before the command behind it, where they are parsed.

    `strongroom --store URL ls` is what users of restic and kubectl write.
    """
    rest = list(arguments)
    moved: list[str] = []
    while rest and (option := rest[0].partition("=")[0]) in _FLAGS | _WITH_VALUE:
        num_words = 2 if option in _WITH_VALUE and "=" not in rest[0] else 1
        moved += rest[:num_words]
        del rest[:num_words]
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *moved, *rest[end:]]


def log_to_stderr(*, verbose: bool) -> None:
    """Send the engine's log to standard error: warnings, or every change of state."""
    handler = logging.StreamHandler(sys.stderr)
    # Some packages set a level of their own; of them only warnings are wanted.
    handler.addFilter(lambda record: _is_ours(record) or record.levelno >= logging.WARNING)
    logging.basicConfig(
        handlers=[handler], format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.getLogger("strongroom").setLevel(logging.INFO if verbose else logging.WARNING)
    if not verbose and not sys.warnoptions:
        # Python warnings are for who writes code against a package, not for who runs a command.
        warnings.simplefilter("ignore")


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "strongroom"
