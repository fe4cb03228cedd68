"""Arguments that several commands take, each described once."""

from __future__ import annotations

from typing import Annotated

import typer

CHECKPOINT_HELP = (
    "RUN/STEP, RUN@latest, RUN@verified, @staging, @production, or the first digits of its id."
)

CheckpointArgument = Annotated[str, typer.Argument(metavar="CKPT", help=CHECKPOINT_HELP)]
CheckpointsArgument = Annotated[list[str], typer.Argument(metavar="CKPT", help=CHECKPOINT_HELP)]
StageOption = Annotated[
    str, typer.Option("--stage", metavar="STAGE", help="The stage: staging or production.")
]
PersonOption = Annotated[
    str,
    typer.Option(
        "--as",
        envvar="STRONGROOM_PERSON",
        metavar="NAME",
        help="The pseudonym under which you act; `strongroom keys ls` lists them.",
    ),
]
