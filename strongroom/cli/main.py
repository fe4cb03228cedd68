"""The `strongroom` command: its parts, and what becomes of an error.

Every error class has its own exit code (`strongroom errors`). An error strongroom raises on purpose
is a message; anything else is a fault of strongroom and keeps its traceback.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import typer

import strongroom
from strongroom.canonical import JsonObject
from strongroom.cli.command import add_command, shared_options_last
from strongroom.cli.commands import (
    audit,
    checkpoints,
    doctor,
    errors,
    evaluation,
    export,
    keys,
    ledger,
    promotion,
    train,
    verification,
)
from strongroom.cli.exit_codes import INTERRUPTED, UNEXPECTED
from strongroom.cli.output import Reply, failure_document, write_failure, write_json
from strongroom.errors import StrongroomError

COMMANDS: Mapping[str, Callable[..., Reply]] = {
    "train": train.train,
    "doctor": doctor.doctor,
    "ls": checkpoints.ls,
    "show": checkpoints.show,
    "lineage": checkpoints.lineage,
    "verify": verification.verify,
    "evaluate": evaluation.evaluate,
    "export": export.export,
    "promote": promotion.promote,
    "approve": promotion.approve,
    "reject": promotion.reject,
    "errors": errors.errors,
}

GROUPS: Mapping[str, tuple[str, Mapping[str, Callable[..., Reply]]]] = {
    "ledger": (
        "Check the ledger, read it, prove what it says.",
        {"verify": ledger.verify, "tail": ledger.tail, "prove": ledger.prove},
    ),
    "audit": ("Explain a checkpoint to a stranger.", {"report": audit.report}),
    "keys": ("Who may sign, and with which key.", {"add": keys.add, "ls": keys.ls}),
}


def build() -> typer.Typer:
    """Return the whole command."""
    app = _group("Fine-tune language models and keep every checkpoint under durable governance.")
    app.callback()(_root)
    for name, body in COMMANDS.items():
        add_command(app, name, body)
    for name, (about, bodies) in GROUPS.items():
        group = _group(about)
        for part, body in bodies.items():
            add_command(group, part, body)
        app.add_typer(group, name=name)
    return app


def _group(about: str) -> typer.Typer:
    return typer.Typer(
        help=about,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"strongroom {strongroom.__version__}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Fine-tune language models and keep every checkpoint under durable governance."""


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    as_json = "--json" in arguments
    try:
        code = typer.main.get_command(build()).main(
            args=shared_options_last(arguments), prog_name="strongroom", standalone_mode=False
        )
    except typer.TyperException as error:
        return _refuse_usage(error, as_json=as_json)
    except StrongroomError as error:
        return _fail(error, as_json=as_json)
    except Exception as error:  # noqa: BLE001 -- the last line of defence reports everything
        return _report_fault(error, as_json=as_json)
    if code == INTERRUPTED:
        _say_interrupted(as_json=as_json)
    return int(code or 0)


def _fail(error: StrongroomError, *, as_json: bool) -> int:
    if as_json:
        write_json(failure_document(error))
    else:
        write_failure(error)
    return error.exit_code


def _refuse_usage(error: typer.TyperException, *, as_json: bool) -> int:
    if as_json:
        write_json(_document("UsageError", error.format_message(), error.exit_code))
    else:
        error.show()  # type: ignore[attr-defined]
    return error.exit_code


def _report_fault(error: Exception, *, as_json: bool) -> int:
    traceback.print_exception(error)
    sys.stderr.write(
        "\nThis is a fault in strongroom, not in what you asked. Please report it with the "
        f"traceback above, the command line and the version ({strongroom.__version__}).\n"
    )
    if as_json:
        write_json(_document(type(error).__name__, str(error), UNEXPECTED))
    return UNEXPECTED


def _say_interrupted(*, as_json: bool) -> None:
    if as_json:
        write_json(_document("KeyboardInterrupt", "interrupted", INTERRUPTED))
    else:
        sys.stderr.write("interrupted\n")


def _document(kind: str, message: str, exit_code: int) -> JsonObject:
    return {"error": kind, "message": message, "exit_code": exit_code}


if __name__ == "__main__":
    main()
