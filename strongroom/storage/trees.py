"""Content-addressed folders of input files: datasets, tokenizers, base models.

A tree is known by the digest of its tree document, which lists every file with size and SHA-256:

    inputs/<kind>/<hex>/<file>       the files
    inputs/<kind>/<hex>/tree.json    the tree document; created last: it commits the tree

Law: `fetch_tree(s, k, put_tree(s, k, folder), cache)` holds the same names and bytes as `folder`.
Files pass through in blocks; none is held in memory whole.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.errors import (
    ConflictError,
    FormatError,
    InputError,
    IntegrityError,
    ObjectMissingError,
)
from strongroom.names import Digest
from strongroom.storage.base import Storage, check_key
from strongroom.storage.os_errors import os_errors_named

logger = logging.getLogger(__name__)

INPUTS = "inputs"
FORMAT = "strongroom.tree/1"
TREE_FILE = "tree.json"

TreeKind = Literal["datasets", "tokenizers", "models"]

_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeFile:
    """One file of a tree; `name` is its path below the folder, with `/`."""

    name: str
    num_bytes: int
    sha256: Digest


def tree_folder(kind: TreeKind, digest: Digest) -> str:
    """`inputs/<kind>/<hex>`: where a tree stands in a store."""
    return f"{INPUTS}/{kind}/{digest.hex}"


def put_tree(storage: Storage, kind: TreeKind, source: Path) -> Digest:
    """Store the files of folder `source`, unless the same tree is stored already.

    An earlier put that was cut short is completed: what it stored is compared and kept.

    Raises:
        InputError: not a folder, no files in it, or a name that cannot be a key.
        IntegrityError: a file changed while it was read, or an object that stands there differs.
    """
    files = tuple(_measured(source, name) for name in _names(source))
    document = canonical.dumps(_to_json(files))
    digest = Digest.of(document)
    folder = tree_folder(kind, digest)
    tree_key = f"{folder}/{TREE_FILE}"
    if storage.stat(tree_key) is None:
        for file in files:
            _put_file(storage, f"{folder}/{file.name}", source / file.name, file)
        try:
            storage.create(tree_key, document)
        except ConflictError:
            logger.info("tree was committed by another writer kind=%s digest=%s", kind, digest)
        else:
            num_bytes = sum(file.num_bytes for file in files)
            logger.info("tree committed kind=%s digest=%s bytes=%d", kind, digest, num_bytes)
    read_tree(storage, kind, digest)  # what commits the tree is what was meant
    return digest


def read_tree(storage: Storage, kind: TreeKind, digest: Digest) -> tuple[TreeFile, ...]:
    """Return the files of a committed tree, in order of name.

    Raises:
        ObjectMissingError: no such tree is committed.
        IntegrityError: the tree document is not the one of that digest.
        FormatError: it is of a format version that this release does not know.
    """
    key = f"{tree_folder(kind, digest)}/{TREE_FILE}"
    try:
        data = storage.read(key)
    except ObjectMissingError as error:
        raise ObjectMissingError(
            f"{storage.url}: holds no committed tree {kind}/{digest}; put it again, or check that "
            "this is the store it was put into"
        ) from error
    if Digest.of(data) != digest:
        raise IntegrityError(
            "tree document differs", file=key, expected=str(digest), got=str(Digest.of(data))
        )
    return _from_json(canonical.loads(data, what=key), where=key)


def fetch_tree(
    storage: Storage, kind: TreeKind, digest: Digest, cache: Path, *, verify: bool = False
) -> Path:
    """Return the folder `cache/<kind>/<hex>` with the files of a tree, fetched if need be.

    A fetched copy is checked in full before it appears under that name. A copy that is there is
    checked by names and sizes, or in full if `verify`; one that fails is fetched anew.

    Raises:
        ObjectMissingError: no such tree is committed, or one of its files is gone.
        IntegrityError: a stored file differs from the tree document.
        StorageError: the cache cannot be written; StorageFullError where its disk is full.
    """
    files = read_tree(storage, kind, digest)
    target = cache.resolve() / kind / digest.hex
    if target.exists():
        fault = _fault(target, files, in_full=verify)
        if fault is None:
            return target
        logger.warning("cached tree dropped path=%s fault=%s", target, fault)
        _drop(target)
    temp = target.parent / f".fetching-{uuid4().hex}"
    try:
        for file in files:
            _fetch_file(storage, f"{tree_folder(kind, digest)}/{file.name}", temp / file.name, file)
        with os_errors_named("write", target):
            _appear(temp, target)
    finally:
        if temp.exists():
            shutil.rmtree(temp)
    logger.info("tree fetched kind=%s digest=%s path=%s", kind, digest, target)
    return target


def _names(source: Path) -> list[str]:
    """Return the names of all files in `source`, sorted; links to files count as files."""
    if not source.is_dir():
        raise InputError(f"tree {source}: expected a folder; check the path")
    names = []
    for folder, subfolders, files in os.walk(source):
        here = Path(folder)
        linked = [name for name in subfolders if (here / name).is_symlink()]
        odd = [name for name in files if not (here / name).is_file()]
        if linked or odd:
            raise InputError(
                f"tree {source}: expected files and folders only, got a link to a folder or a "
                f"special file: {here / (linked + odd)[0]}; replace it by what it stands for"
            )
        names += [(here / name).relative_to(source).as_posix() for name in files]
    if not names:
        raise InputError(f"tree {source}: expected at least one file, got an empty folder")
    if TREE_FILE in names:
        raise InputError(f"tree {source}: the name {TREE_FILE} is reserved; rename that file")
    return sorted(check_key(name) for name in names)


def _measured(source: Path, name: str) -> TreeFile:
    sha256, num_bytes = hashlib.sha256(), 0
    for block in _blocks_of_path(source / name):
        sha256.update(block)
        num_bytes += len(block)
    return TreeFile(name=name, num_bytes=num_bytes, sha256=Digest(sha256.hexdigest()))


def _put_file(storage: Storage, key: str, path: Path, file: TreeFile) -> None:
    if storage.stat(key) is None:
        try:
            with storage.create_stream(key) as writer:
                # Within the stream: a file that changed meanwhile leaves no object.
                for block in _checked(_blocks_of_path(path), file, where=str(path)):
                    writer.write(block)
        except ConflictError:
            logger.info("file was stored by another writer key=%s", key)
        else:
            return
    for _ in _checked(_blocks_of_object(storage, key), file, where=key):
        pass  # an earlier or another put stored it: it must be the same


def _fetch_file(storage: Storage, key: str, path: Path, file: TreeFile) -> None:
    with os_errors_named("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as target:
            for block in _checked(_blocks_of_object(storage, key), file, where=key):
                target.write(block)
            target.flush()
            os.fsync(target.fileno())


def _checked(blocks: Iterator[bytes], file: TreeFile, *, where: str) -> Iterator[bytes]:
    """Pass `blocks` on; raise IntegrityError at their end if they are not those of `file`."""
    sha256, num_bytes = hashlib.sha256(), 0
    for block in blocks:
        sha256.update(block)
        num_bytes += len(block)
        yield block
    got = TreeFile(name=file.name, num_bytes=num_bytes, sha256=Digest(sha256.hexdigest()))
    if got != file:
        raise IntegrityError(
            "file differs from the tree document",
            file=where,
            expected=f"{file.num_bytes} bytes with {file.sha256}",
            got=f"{got.num_bytes} bytes with {got.sha256}",
        )


def _blocks_of_path(path: Path) -> Iterator[bytes]:
    with os_errors_named("read", path), path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _blocks_of_object(storage: Storage, key: str) -> Iterator[bytes]:
    info = storage.stat(key)
    if info is None:
        raise ObjectMissingError(f"{storage.url}: {key} is gone; put the tree again")
    for offset in range(0, info.num_bytes, _BLOCK_BYTES):
        num_bytes = min(_BLOCK_BYTES, info.num_bytes - offset)
        yield storage.read(key, offset=offset, num_bytes=num_bytes)


def _fault(folder: Path, files: tuple[TreeFile, ...], *, in_full: bool) -> str | None:
    """Return what is wrong with a cached copy, or None."""
    found = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    differing = found.keys() ^ {file.name for file in files}
    if differing:
        return f"missing or extra files: {', '.join(sorted(differing))}"
    for file in files:
        if found[file.name].stat().st_size != file.num_bytes:
            return f"{file.name}: expected {file.num_bytes} bytes"
        if in_full and _measured(folder, file.name) != file:
            return f"{file.name}: expected {file.sha256}"
    return None


def _appear(temp: Path, target: Path) -> None:
    """Give a complete copy its name, unless another process was faster with the same."""
    try:
        temp.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _drop(target: Path) -> None:
    """Take a copy away in one step, so that no process finds half of it."""
    dropped = target.parent / f".dropped-{uuid4().hex}"
    try:
        target.rename(dropped)
    except FileNotFoundError:
        return  # another process dropped it
    shutil.rmtree(dropped)


def _to_json(files: tuple[TreeFile, ...]) -> JsonObject:
    return {
        "format": FORMAT,
        "files": [
            {"name": file.name, "num_bytes": file.num_bytes, "sha256": str(file.sha256)}
            for file in files
        ],
    }


def _from_json(document: JsonObject, *, where: str) -> tuple[TreeFile, ...]:
    if document.get("format") != FORMAT:
        raise FormatError(
            f"{where}: expected format {FORMAT!r}, got {document.get('format')!r}; use a release "
            "of strongroom that knows it"
        )
    try:
        return tuple(_file_from_json(item) for item in document["files"])
    except (KeyError, TypeError, InputError) as error:
        raise FormatError(f"{where}: a field is missing or malformed: {error!r}") from error


def _file_from_json(item: dict[str, Any]) -> TreeFile:
    # The name becomes a path in the cache: it must not lead out of it.
    return TreeFile(
        name=check_key(item["name"]),
        num_bytes=item["num_bytes"],
        sha256=Digest.parse(item["sha256"]),
    )
