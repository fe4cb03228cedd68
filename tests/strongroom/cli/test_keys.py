from __future__ import annotations

from pathlib import Path

import pytest

from strongroom.signing.keyring import KeyFolder
from tests.support.command_line import CommandLine


@pytest.fixture
def command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    return CommandLine(capsys, ("--keys", str(tmp_path / "keys")))


def test_a_person_gets_a_key_that_signs(command_line: CommandLine, tmp_path: Path) -> None:
    ran = command_line("keys", "add", "ada", "--json")
    assert ran.code == 0
    assert ran.document["role"] == "person"
    assert ran.document["key_id"] == KeyFolder(tmp_path / "keys").person_signer("ada").key_id


def test_private_keys_are_never_printed(command_line: CommandLine) -> None:
    shown = command_line("keys", "add", "ada").out + command_line("keys", "ls", "--json").out
    assert "PRIVATE" not in shown


def test_every_holder_is_listed(command_line: CommandLine) -> None:
    command_line("keys", "add", "grace")
    command_line("keys", "add", "ada")
    ran = command_line("keys", "ls")
    assert [line.split()[:2] for line in ran.out.splitlines()] == [
        ["NAME", "ROLE"],
        ["ada", "person"],
        ["grace", "person"],
    ]


def test_an_empty_folder_says_what_to_do(command_line: CommandLine) -> None:
    ran = command_line("keys", "ls")
    assert ran.code == 0
    assert "strongroom keys add NAME" in ran.out


def test_a_second_key_for_a_person_is_refused(command_line: CommandLine) -> None:
    command_line("keys", "add", "ada")
    ran = command_line("keys", "add", "ada")
    assert ran.code == 30
    assert "'ada'" in ran.err


@pytest.mark.parametrize("name", ["Ada Lovelace", "", "../ada", "ada@example.org", "a" * 64])
def test_a_name_that_is_no_pseudonym_is_refused(command_line: CommandLine, name: str) -> None:
    ran = command_line("keys", "add", name)
    assert ran.code == 10
    assert "pseudonym" in ran.err


def test_a_damaged_keyring_is_named(command_line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "keyring.json").write_text("{", encoding="utf-8")
    ran = command_line("keys", "ls")
    assert ran.code == 24
    assert "keyring.json" in ran.err
