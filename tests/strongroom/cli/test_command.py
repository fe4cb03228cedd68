from __future__ import annotations

import pytest

from strongroom.cli.command import shared_options_last


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        (["ls", "--json"], ["ls", "--json"]),
        (["--store", "URL", "ls", "chat"], ["ls", "chat", "--store", "URL"]),
        (["--store=URL", "ls"], ["ls", "--store=URL"]),
        (
            ["-v", "--json", "--keys", "K", "keys", "ls"],
            ["keys", "ls", "-v", "--json", "--keys", "K"],
        ),
        (["--json", "show", "--", "-odd"], ["show", "--json", "--", "-odd"]),
        (["--version"], ["--version"]),
        (["--store"], ["--store"]),
        ([], []),
    ],
)
def test_shared_options_may_stand_before_the_command(given: list[str], parsed: list[str]) -> None:
    assert shared_options_last(given) == parsed
