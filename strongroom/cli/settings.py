"""What every command is told: which store, whose keys, where to cache, and how to answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongroom.errors import InputError

if TYPE_CHECKING:
    from strongroom.custody.context import Custody
    from strongroom.signing.keyring import KeyFolder

DEFAULT_KEYS = "~/.config/strongroom/keys"
DEFAULT_CACHE = "~/.cache/strongroom"

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="STRONGROOM_STORE",
        metavar="URL",
        help="The store: a folder, file:///FOLDER or s3://BUCKET/PREFIX.",
    ),
]
KeysOption = Annotated[
    Path,
    typer.Option(
        "--keys",
        envvar="STRONGROOM_KEYS",
        metavar="FOLDER",
        help="Signing keys and who holds them.",
    ),
]
CacheOption = Annotated[
    Path,
    typer.Option(
        "--cache",
        envvar="STRONGROOM_CACHE",
        metavar="FOLDER",
        help="Verified copies of inputs; deleting it loses nothing.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Answer with one JSON document on standard output.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log every change of state on standard error.")
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The options that every command shares."""

    store: str | None
    keys: Path
    cache: Path
    json: bool
    verbose: bool

    def custody(self, *, create: bool = False) -> Custody:
        """Open the store with these keys; with `create`, make it where there is none.

        Raises:
            InputError: no store was named.
            StoreMissingError: there is no store and `create` is false.
        """
        from strongroom.custody.context import Custody

        if self.store is None:
            raise InputError(
                "no store was named: give --store URL or set STRONGROOM_STORE, "
                "to a folder, file:///FOLDER or s3://BUCKET/PREFIX"
            )
        return Custody.open(
            self.store, keys=self.keys.expanduser(), cache=self.cache.expanduser(), create=create
        )

    def key_folder(self) -> KeyFolder:
        """Return the folder of keys; it needs no store."""
        from strongroom.signing.keyring import KeyFolder

        return KeyFolder(self.keys.expanduser())
