from __future__ import annotations

from pathlib import Path

import pytest

from strongroom import errors
from strongroom.cli.exit_codes import error_classes, exit_codes
from strongroom.errors import StrongroomError
from tests.support.command_line import CommandLine

PAGE = Path(__file__).parents[3] / "docs" / "errors.md"


def test_every_code_means_one_thing() -> None:
    codes = [item.code for item in exit_codes()]
    assert len(codes) == len(set(codes))
    assert codes == sorted(codes)


def test_every_error_class_is_in_the_table() -> None:
    written = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, StrongroomError)
    }
    assert set(error_classes()) == written - {StrongroomError}
    assert {item.name for item in exit_codes() if item.name} == {
        kind.__name__ for kind in error_classes()
    }


def test_the_page_of_the_documentation_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran = CommandLine(capsys)("errors", "--markdown")
    assert ran.code == 0
    assert PAGE.read_text(encoding="utf-8") == ran.out, (
        "write it again: strongroom errors --markdown > docs/errors.md"
    )


def test_the_table_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    found = CommandLine(capsys)("errors", "--json").document["exit_codes"]
    assert {"code": 20, "name": "IntegrityError"}.items() <= next(
        item for item in found if item["code"] == 20
    ).items()
