"""Holders of keys, as a table and as JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import Cell, Column, Table

if TYPE_CHECKING:
    from strongroom.signing.keyring import Holder


def holder_table(holders: Sequence[Holder], *, where: str) -> Table:
    """Return one row for each holder."""
    return Table(
        columns=(Column(title="name"), Column(title="role"), Column(title="key")),
        rows=tuple(
            (Cell(holder.name), Cell(str(holder.role)), Cell(holder.key_id)) for holder in holders
        ),
        empty=f"There are no keys in {where}; make one with: strongroom keys add NAME",
    )


def holder_document(holder: Holder) -> JsonObject:
    """Return what may be told of a holder: everything but the private key."""
    return {
        "name": holder.name,
        "role": str(holder.role),
        "key_id": holder.key_id,
        "public_key": base64.b64encode(holder.public_key).decode(),
    }
