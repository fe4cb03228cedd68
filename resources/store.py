"""The store, the keys that sign what is done to it, and a cache: one setting for every asset."""

from pathlib import Path

import dagster as dg
from pydantic import Field

from strongroom.custody.context import Custody

ROOT = Path(__file__).resolve().parent.parent
"""The Dagster folders run from the repository, so its local defaults may stand in it."""


class StoreResource(dg.ConfigurableResource):
    """Opens the store. A field left empty is read from the environment when a run needs it."""

    store_url: str = Field(
        default="",
        description="Folder, file:///FOLDER or s3://BUCKET/PREFIX. "
        "Empty: STRONGROOM_STORE, or .strongroom/store in the repository.",
    )
    keys_folder: str = Field(
        default="",
        description="Folder of signing keys. Empty: STRONGROOM_KEYS, or ~/.config/strongroom/keys.",
    )
    cache_folder: str = Field(
        default="",
        description="Folder of verified copies. Empty: STRONGROOM_CACHE, or ~/.cache/strongroom.",
    )
    person: str = Field(
        default="",
        description="Pseudonym of who asks for a run and so may not approve it. "
        "Empty: STRONGROOM_PERSON, or 'operator'.",
    )

    @property
    def author(self) -> str:
        """The pseudonym that a new run is recorded under."""
        return _setting(self.person, "STRONGROOM_PERSON", "operator")

    @property
    def location(self) -> str:
        """The URL of the store."""
        return _setting(self.store_url, "STRONGROOM_STORE", str(ROOT / ".strongroom" / "store"))

    def custody(self, *, create: bool = False) -> Custody:
        """Open the store with its keys; with `create`, make it where there is none.

        Raises:
            StoreMissingError: there is no store and `create` is false.
            StorageError: the storage cannot be reached.
        """
        keys = _setting(self.keys_folder, "STRONGROOM_KEYS", "~/.config/strongroom/keys")
        cache = _setting(self.cache_folder, "STRONGROOM_CACHE", "~/.cache/strongroom")
        return Custody.open(
            self.location,
            keys=Path(keys).expanduser(),
            cache=Path(cache).expanduser(),
            create=create,
        )


def _setting(value: str, variable: str, default: str) -> str:
    # An EnvVar given to a field would make the run fail where the variable is not set.
    return value or dg.EnvVar(variable).get_value() or default
