"""Ed25519 keys: make, keep, sign, verify.

A private key lies in a PEM file (PKCS#8, no password) of mode 600 that is created once and never
overwritten. A key is named by its key id, which is computed from the public key, so a key id
cannot be claimed for another key.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from strongroom.errors import (
    ConflictError,
    FormatError,
    ObjectMissingError,
    SignatureError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
)

PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


def key_id_of(public_key: bytes) -> str:
    """Return `ed25519-` and the first 16 hex digits of the SHA-256 of the raw public key."""
    return f"ed25519-{hashlib.sha256(public_key).hexdigest()[:16]}"


def verify_signature(public_key: bytes, data: bytes, signature: bytes) -> None:
    """Check one Ed25519 signature (RFC 8032).

    Args:
        public_key: raw, 32 bytes.
        data: what was signed.
        signature: raw, 64 bytes.

    Raises:
        SignatureError: it is not this key's signature of this data.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
    except (InvalidSignature, ValueError) as error:
        raise SignatureError(
            f"the signature does not verify under key {key_id_of(public_key)}: what was signed, "
            "the signature or the key was changed; do not rely on it"
        ) from error


class Signer:
    """A private key that signs; it never shows itself."""

    __slots__ = ("_key", "key_id", "public_bytes")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_bytes: Final[bytes] = key.public_key().public_bytes_raw()
        self.key_id: Final[str] = key_id_of(self.public_bytes)

    @classmethod
    def generate(cls) -> Signer:
        """Make a new key from the system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Signer:
        """Read a private key.

        Raises:
            ObjectMissingError: there is no such file.
            FormatError: the file is not an Ed25519 private key in PEM without a password.
        """
        try:
            pem = path.read_bytes()
        except FileNotFoundError as error:
            raise ObjectMissingError(f"private key {path}: no such file") from error
        except OSError as error:
            raise file_error(error, path) from error
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise FormatError(
                f"private key {path}: expected PEM (PKCS#8) without a password, "
                f"got something else: {error}; restore the file from a copy"
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise FormatError(
                f"private key {path}: expected an Ed25519 key, got {type(key).__name__}"
            )
        return cls(key)

    def save(self, path: Path) -> None:
        """Write the private key durably to a new file of mode 600.

        Raises:
            ConflictError: the file exists; it is left as it was.
        """
        pem = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        try:
            create_file(path, pem, mode=0o600)
        except FileExistsError as error:
            raise ConflictError(
                f"private key {path}: exists already; a key is never overwritten"
            ) from error
        except OSError as error:
            raise file_error(error, path) from error

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature of `data`."""
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"Signer({self.key_id})"


def create_file(path: Path, data: bytes, *, mode: int) -> None:
    """Write `data` durably to a file that must not exist; whole or not at all.

    Raises:
        OSError: as the system said it; `FileExistsError` where the file exists.
    """
    # The bytes reach the disk under another name first: a crash never leaves half a key.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_error(error: OSError, path: Path) -> StorageError:
    """Return the storage error that names what the system said about a file of keys."""
    what = f"keys at {path}: {error.strerror or error}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFullError(f"{what}; free some space and try again")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return StorageDeniedError(f"{what}; this user must be able to read and write the folder")
    return StorageError(what)
