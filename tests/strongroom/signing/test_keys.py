from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from strongroom.errors import (
    ConflictError,
    FormatError,
    ObjectMissingError,
    SignatureError,
    StorageDeniedError,
)
from strongroom.signing.keys import Signer, file_error, key_id_of, verify_signature


def test_a_signature_verifies_under_its_key_alone() -> None:
    signer, other = Signer.generate(), Signer.generate()
    signature = signer.sign(b"weights")
    verify_signature(signer.public_bytes, b"weights", signature)
    with pytest.raises(SignatureError, match=other.key_id):
        verify_signature(other.public_bytes, b"weights", signature)


@pytest.mark.parametrize("signature", [b"", b"short", bytes(64), bytes(65)])
def test_what_is_no_signature_is_refused(signature: bytes) -> None:
    with pytest.raises(SignatureError):
        verify_signature(Signer.generate().public_bytes, b"weights", signature)


def test_a_key_id_is_made_from_the_public_key() -> None:
    signer = Signer.generate()
    digest = hashlib.sha256(signer.public_bytes).hexdigest()
    assert signer.key_id == f"ed25519-{digest[:16]}" == key_id_of(signer.public_bytes)


def test_a_key_survives_its_file(tmp_path: Path) -> None:
    signer = Signer.generate()
    file = tmp_path / "key.pem"
    signer.save(file)
    assert Signer.load(file).public_bytes == signer.public_bytes
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["key.pem"]


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    signer = Signer.generate()
    signer.save(file)
    with pytest.raises(ConflictError, match="never overwritten"):
        Signer.generate().save(file)
    assert Signer.load(file).key_id == signer.key_id
    assert [entry.name for entry in tmp_path.iterdir()] == ["key.pem"]


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ObjectMissingError, match=r"absent\.pem"):
        Signer.load(tmp_path / "absent.pem")


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\n"])
def test_a_broken_key_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(content)
    with pytest.raises(FormatError, match=r"key\.pem"):
        Signer.load(file)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    file = tmp_path / "key.pem"
    file.write_bytes(
        X25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(FormatError, match="expected an Ed25519 key"):
        Signer.load(file)


def test_a_signer_never_shows_its_key() -> None:
    signer = Signer.generate()
    assert repr(signer) == f"Signer({signer.key_id})"


def test_a_denied_folder_says_so() -> None:
    error = file_error(PermissionError(13, "Permission denied"), Path("keys"))
    assert isinstance(error, StorageDeniedError)
    assert "keys" in str(error)
