"""What the documents tell people to type is a command with those options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from strongroom.cli.main import COMMANDS, GROUPS
from tests.support.command_line import CommandLine

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def command_lines(page: Path) -> list[str]:
    """Return every line of a fenced block that runs `strongroom`."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [
        line.removeprefix("$ ").split("  ")[0]
        for block in blocks
        for line in block.splitlines()
        if line.removeprefix("$ ").startswith("strongroom ")
    ]


LINES = sorted({line for page in PAGES for line in command_lines(page)})


@pytest.mark.parametrize("line", LINES)
def test_a_documented_command_exists_with_its_options(command_line: CommandLine, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    words = words[: words.index(">")] if ">" in words else words
    path = [word for word in words if not word.startswith("-")][: 2 if words[0] in GROUPS else 1]
    if path:
        assert path[0] in COMMANDS or path[1] in GROUPS[path[0]][1]
    shown = command_line(*path, "--help")
    assert shown.code == 0, shown.err
    for option in (word.partition("=")[0] for word in words if word.startswith("-")):
        assert re.search(rf"(^|[\s,]){re.escape(option)}\b", shown.out, re.MULTILINE), option


def test_the_documents_show_the_command_at_work() -> None:
    assert len(LINES) > 20
