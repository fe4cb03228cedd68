from __future__ import annotations

from pathlib import Path

import pytest

from strongroom.custody.context import Custody
from tests.support.command_line import CommandLine


@pytest.fixture(autouse=True)
def no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever runs the tests may have a store and keys of their own; they stay untouched."""
    for name in ("STORE", "PERSON"):
        monkeypatch.delenv(f"STRONGROOM_{name}", raising=False)
    monkeypatch.setenv("STRONGROOM_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("STRONGROOM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def command_line(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command, without a store."""
    return CommandLine(capsys)


@pytest.fixture
def store(
    custody: Custody, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command, on a copy of a trained store."""
    monkeypatch.setenv("STRONGROOM_STORE", custody.store.url)
    return command_line
