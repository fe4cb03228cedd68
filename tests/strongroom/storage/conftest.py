"""The `storage` fixture: every implementation in turn, empty, for the contract tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from strongroom.storage import s3_bucket
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import MemoryStorage
from strongroom.storage.s3 import S3Settings, S3Storage

AnyStorage = LocalStorage | MemoryStorage | S3Storage


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once: how long to wait is not what these tests are about."""
    monkeypatch.setattr(s3_bucket, "_LONGEST_PAUSE_S", 0.0)


@pytest.fixture(params=["local", "memory", "s3", pytest.param("ceph", marks=pytest.mark.ceph)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AnyStorage:
    if request.param == "local":
        return LocalStorage(tmp_path / "store")
    if request.param == "memory":
        return MemoryStorage()
    url = request.getfixturevalue("ceph_url" if request.param == "ceph" else "s3_url")
    return S3Storage(S3Settings.from_url(url))
