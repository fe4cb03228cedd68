"""`strongroom errors`: what every exit code means."""

from __future__ import annotations

from typing import Annotated

import typer

from strongroom.cli.blocks import Raw
from strongroom.cli.exit_codes import exit_codes
from strongroom.cli.output import Reply
from strongroom.cli.settings import Settings
from strongroom.cli.views.errors import exit_code_page, exit_code_table


def errors(
    _settings: Settings,
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page that stands in docs/errors.md.")
    ] = False,
) -> Reply:
    """Print what every exit code means."""
    codes = exit_codes()
    return Reply(
        document={"exit_codes": codes},
        blocks=(Raw(exit_code_page(codes)) if markdown else exit_code_table(codes),),
    )
