"""`strongroom keys`: who may sign, and with which key."""

from __future__ import annotations

from typing import Annotated

import typer

from strongroom.cli.blocks import Line
from strongroom.cli.output import Reply
from strongroom.cli.settings import Settings
from strongroom.cli.views.keys import holder_document, holder_table


def add(
    settings: Settings,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A pseudonym, not a person's name.")],
) -> Reply:
    """Make a signing key for a person who will approve or reject promotions."""
    folder = settings.key_folder()
    signer = folder.add_person(name)
    holder = folder.keyring().holder(signer.key_id)
    return Reply(
        document=holder_document(holder),
        blocks=(
            Line.of(f"{name} now has a key: {signer.key_id}", "good"),
            Line.of(
                f"The private key lies in {folder.path}; whoever can read it can sign as {name}."
            ),
        ),
    )


def ls(settings: Settings) -> Reply:
    """List everyone whose signature is trusted."""
    folder = settings.key_folder()
    holders = sorted(folder.keyring(), key=lambda holder: (holder.role, holder.name))
    return Reply(
        document={"keys": str(folder.path), "holders": [holder_document(item) for item in holders]},
        blocks=(holder_table(holders, where=str(folder.path)),),
    )
