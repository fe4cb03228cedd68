"""A store: a storage with `strongroom.json` at its root.

Opening never makes one, so that a wrong URL or an unmounted disk is not taken for an empty store.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.clock import now_utc
from strongroom.errors import (
    ConflictError,
    FormatError,
    InputError,
    ObjectMissingError,
    StorageError,
    StoreMissingError,
)
from strongroom.storage.base import Storage
from strongroom.storage.local import LocalStorage

logger = logging.getLogger(__name__)

FORMAT = "strongroom.store/1"
STORE_FILE = "strongroom.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """One store, open.

    Attributes:
        store_id: 32 hex digits, made once with the store.
        url: opens the same store in any process.
        capabilities: what its storage can do, as found when it was made; empty in a store made
            before they were asked.
    """

    storage: Storage
    store_id: str
    url: str
    capabilities: JsonObject = field(default_factory=dict)


@runtime_checkable
class Probing(Protocol):
    """A storage that can find out what it is able to do."""

    def capabilities(self) -> JsonObject:
        """Try it out, and leave nothing behind.

        Raises:
            StorageError: it cannot hold a store.
        """
        ...


def open_storage(url: str) -> Storage:
    """Return the storage at a path, a `file:///path` or an `s3://bucket/prefix?...`.

    Nothing is read or written yet.

    Raises:
        InputError: not such a URL.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme == "s3":
        # boto3 costs a fifth of a second: only who uses S3 pays it.
        from strongroom.storage.s3 import S3Settings, S3Storage

        return S3Storage(S3Settings.from_url(url))
    if scheme == "file":
        return LocalStorage(_path_of(url))
    if scheme or not url.strip():
        raise InputError(
            f"store URL with scheme {scheme!r}: expected a path, file:///path or "
            "s3://bucket/prefix?endpoint_url=..."
        )
    return LocalStorage(Path(url))


def create_store(url: str) -> Store:
    """Make a new store.

    Raises:
        ConflictError: there is one.
        StorageError: the endpoint overwrites where it is told to create.
    """
    return make_store(open_storage(url))


def open_store(url: str) -> Store:
    """Open the store at `url`.

    Raises:
        StoreMissingError: there is none.
        FormatError: it is of a format version that this release does not know.
    """
    return read_store(open_storage(url))


def open_or_create_store(url: str) -> Store:
    """Open the store at `url`; make it if there is none. Of many who try at once, one makes it."""
    storage = open_storage(url)
    with suppress(StoreMissingError):
        return read_store(storage)
    try:
        return make_store(storage)
    except ConflictError:
        return read_store(storage)


def read_store(storage: Storage) -> Store:
    """Open the store that `storage` holds; see `open_store`."""
    try:
        data = storage.read(STORE_FILE)
    except ObjectMissingError as error:
        raise StoreMissingError(
            f"{storage.url}: there is no strongroom store here (no {STORE_FILE}); check the URL, "
            "or start a run with it: `strongroom train` makes a new store"
        ) from error
    document = canonical.loads(data, what=f"{storage.url}/{STORE_FILE}")
    capabilities = document.get("capabilities", {})
    if (
        document.get("format") != FORMAT
        or not isinstance(document.get("store_id"), str)
        or not isinstance(capabilities, dict)
    ):
        raise FormatError(
            f"{storage.url}/{STORE_FILE}: expected format {FORMAT!r} with a store_id, got "
            f"{document.get('format')!r}; use a release of strongroom that knows it"
        )
    return Store(
        storage=storage,
        store_id=document["store_id"],
        url=storage.url,
        capabilities=capabilities,
    )


def make_store(storage: Storage) -> Store:
    """Make a store in `storage`; see `create_store`."""
    if storage.stat(STORE_FILE) is not None:  # nothing need be tried out
        raise ConflictError(
            f"{storage.url}: expected no {STORE_FILE}; there is a store here already; open it"
        )
    capabilities = storage.capabilities() if isinstance(storage, Probing) else {}
    capabilities["conditional_create"] = True  # as is tried next
    document: JsonObject = {
        "format": FORMAT,
        "store_id": uuid4().hex,
        "created": now_utc(),
        "capabilities": capabilities,
    }
    data = canonical.dumps(document)
    storage.create(STORE_FILE, data)
    _probe_conditional_create(storage, data)
    store = Store(
        storage=storage,
        store_id=document["store_id"],
        url=storage.url,
        capabilities=capabilities,
    )
    logger.info(
        "store created url=%s store_id=%s capabilities=%s", store.url, store.store_id, capabilities
    )
    return store


def _probe_conditional_create(storage: Storage, data: bytes) -> None:
    """Create once more what was just created: an endpoint that lets this pass loses checkpoints."""
    try:
        storage.create(STORE_FILE, data)
    except ConflictError:
        return
    storage.delete(STORE_FILE)
    raise StorageError(
        f"{storage.url}: expected a second create of one key to be refused, but it overwrote the "
        "object: this endpoint ignores 'If-None-Match: *' and cannot hold a store; use another"
    )


def _path_of(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment or not parts.path:
        raise InputError(f"store URL {url}: expected file:///absolute/path, without a query")
    return Path(unquote(parts.path))
