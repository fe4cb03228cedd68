"""Arguments that several commands take, each described once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from strongroom.names import RunKey

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
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run", metavar="KEY", help="The run's key; the configuration's file name if not given."
    ),
]


def run_key(given: str | None, config: Path) -> RunKey:
    """Return the key that `--run` gives, else the one that the configuration's file name gives.

    The same file stands for the same run.

    Raises:
        InputError: it is none, or the name has nothing a key could be made of.
    """
    if given is not None:
        return RunKey.parse(given)
    return RunKey.parse(re.sub(r"[^a-z0-9._-]+", "-", config.stem.lower()).strip("-._")[:63])
