"""What the documents tell people to type exists with those options, and does what they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from strongroom.cli.main import COMMANDS, GROUPS
from strongroom.errors import PolicyError
from tests.support.command_line import CommandLine
from tests.support.trained_store import RUN

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


def as_here(line: str) -> list[str]:
    """Return a documented command line for the store of the tests: its run, its steps."""
    for theirs, ours in {
        "try-1/10": f"{RUN}/2",
        "try-1/20": f"{RUN}/4",
        "try-1/40": f"{RUN}/4",
        "nightly-7/1200": f"{RUN}/4",
        "try-1": str(RUN),
        "nightly-7": str(RUN),
        "prove 12": "prove 2",
    }.items():
        line = line.replace(theirs, ours)
    words = shlex.split(line)[1:]
    return words[: words.index(">")] if ">" in words else words


def test_what_the_page_of_the_command_shows_works(
    store: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "how-to" / "use-the-command.md"
    lines = [
        line
        for line in command_lines(page)
        if line.split()[1]
        in {"ls", "show", "lineage", "audit", "verify", "evaluate", "ledger", "export"}
        and "$" not in line
    ]
    assert len(lines) > 10
    for line in lines:
        ran = store(*as_here(line))
        assert ran.code == 0, f"{line}: {ran.err}"
    assert (tmp_path / "report.html").is_file()


def test_what_the_page_of_promotion_shows_works_in_its_order(
    store: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = f"{RUN}/4"
    for words in (["verify", checkpoint], ["evaluate", checkpoint]):
        assert store(*words).code == 0
    for person in ("reviewer-2", "reviewer-3"):
        assert store("keys", "add", person).code == 0
    lines = command_lines(ROOT / "docs" / "how-to" / "promote-a-checkpoint.md")
    assert len(lines) > 6
    for line in lines:
        # The page rejects before it promotes, and says that a rejection blocks.
        expected = PolicyError.exit_code if "promote" in line and "production" in line else 0
        ran = store(*as_here(line))
        assert ran.code == expected, f"{line}: {ran.out}{ran.err}"
    assert store("approve", checkpoint, "--stage", "production", "--as", "reviewer-3").code == 0
    assert store("promote", checkpoint, "--stage", "production").code == 0
