from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import strongroom
from strongroom.cli import main
from strongroom.cli.output import Reply
from strongroom.cli.settings import Settings
from strongroom.errors import ConfigError, StorageFullError, StrongroomError
from tests.support.command_line import CommandLine


@pytest.fixture
def command_line(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def raising(error: BaseException) -> dict[str, object]:
    def boom(_settings: Settings) -> Reply:
        """Fail."""
        raise error

    return {"boom": boom}


def test_the_version_is_told(command_line: CommandLine) -> None:
    ran = command_line("--version")
    assert (ran.code, ran.out) == (0, f"strongroom {strongroom.__version__}\n")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_command(command_line: CommandLine, flag: str) -> None:
    ran = command_line(flag)
    assert ran.code == 0
    assert all(name in ran.out for name in (*main.COMMANDS, *main.GROUPS))


def test_every_command_takes_the_shared_options(command_line: CommandLine) -> None:
    lines = [[name] for name in main.COMMANDS]
    lines += [[group, name] for group, (_, parts) in main.GROUPS.items() for name in parts]
    for line in lines:
        shown = command_line(*line, "--help").out
        assert all(option in shown for option in ("--store", "--keys", "--cache", "--json")), line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("frobnicate",), "No such command 'frobnicate'"),
        (("error",), "Did you mean 'errors'?"),
        (("keys", "add"), "Missing argument 'NAME'"),
        (("errors", "--no-such-option"), "No such option"),
        (("errors", "surplus"), "unexpected extra argument"),
    ],
)
def test_a_wrong_command_line_is_refused_with_2(
    command_line: CommandLine, line: tuple[str, ...], said: str
) -> None:
    ran = command_line(*line)
    assert ran.code == 2
    assert said in ran.err
    assert ran.out == ""


def test_a_wrong_command_line_is_json_where_json_was_asked(command_line: CommandLine) -> None:
    ran = command_line("keys", "add", "--json")
    assert ran.code == 2
    assert ran.document == {
        "error": "UsageError",
        "message": "Missing argument 'NAME'.",
        "exit_code": 2,
    }
    assert ran.err == ""


@pytest.mark.parametrize(
    "error", [StorageFullError("no space left at runs/a; free some"), ConfigError("c", ["x: y"])]
)
def test_an_error_is_a_message_and_its_code_never_a_traceback(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, error: StrongroomError
) -> None:
    monkeypatch.setattr(main, "COMMANDS", raising(error))
    ran = command_line("boom")
    assert ran.code == error.exit_code
    assert ran.err == f"error: {error}\n"
    assert ran.out == ""


def test_an_error_is_one_json_document_where_json_was_asked(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "COMMANDS", raising(StorageFullError("no space")))
    ran = command_line("boom", "--json")
    assert ran.code == 52
    assert ran.document == {"error": "StorageFullError", "message": "no space", "exit_code": 52}
    assert ran.err == ""


def test_a_fault_of_ours_keeps_its_traceback_and_asks_for_a_report(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "COMMANDS", raising(ZeroDivisionError("by zero")))
    ran = command_line("boom", "--json")
    assert ran.code == 1
    assert "Traceback (most recent call last)" in ran.err
    assert "Please report it" in ran.err
    assert ran.document == {"error": "ZeroDivisionError", "message": "by zero", "exit_code": 1}


def test_an_interrupt_ends_with_130_and_no_traceback(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "COMMANDS", raising(KeyboardInterrupt()))
    ran = command_line("boom")
    assert (ran.code, ran.err) == (130, "interrupted\n")
    assert command_line("boom", "--json").document["exit_code"] == 130


def test_a_pipe_that_closes_early_is_not_an_error_of_ours(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "strongroom.cli.main", "errors"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, "")


@pytest.mark.parametrize("command", [["--help"], ["errors"], ["keys", "ls"]])
def test_a_light_command_loads_no_heavy_package(command: list[str], tmp_path: Path) -> None:
    loaded = loaded_packages([*command, *([] if command == ["--help"] else ["--json"])], tmp_path)
    assert not loaded & HEAVY


def test_the_watch_over_heavy_packages_can_see_one(tmp_path: Path) -> None:
    assert "pandas" in loaded_packages(["errors"], tmp_path, first="import pandas")


HEAVY = {"torch", "transformers", "peft", "great_expectations", "pandas", "datasets", "boto3"}


def loaded_packages(arguments: list[str], folder: Path, *, first: str = "") -> set[str]:
    """Return the top-level packages a process has loaded after running a command line."""
    code = (
        f"{first}\nimport json, sys, io\nfrom strongroom.cli.main import run\n"
        "out, sys.stdout = sys.stdout, io.StringIO()\n"
        f"code = run({arguments!r})\n"
        "json.dump([code, sorted({name.partition('.')[0] for name in sys.modules})], out)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(folder), "PATH": "", "STRONGROOM_KEYS": str(folder / "keys")},
    )
    code_of_run, names = json.loads(done.stdout)
    assert code_of_run == 0, done.stderr
    return set(names)
