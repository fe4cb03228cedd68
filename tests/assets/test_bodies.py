"""Assets are thin: they call the engine and say what came of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from resources.store import ROOT

MAX_BODY_LINES = 15
FOLDERS = ("assets", "resources", "jobs", "pipelines")
ASSET_FILES = sorted((ROOT / "assets").glob("*.py"))


def asset_functions(path: Path) -> list[ast.FunctionDef]:
    functions = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    return [
        function
        for function in functions
        if any("asset" in ast.unparse(decorator) for decorator in function.decorator_list)
    ]


def test_every_asset_body_is_short() -> None:
    lengths = {
        function.name: (function.body[-1].end_lineno or 0) - function.body[0].lineno + 1
        for path in ASSET_FILES
        for function in asset_functions(path)
    }

    assert len(lengths) == 8
    assert {name: lines for name, lines in lengths.items() if lines > MAX_BODY_LINES} == {}


def test_the_composition_root_is_short() -> None:
    assert len((ROOT / "pipelines" / "definitions.py").read_text().splitlines()) <= 50


@pytest.mark.parametrize("folder", FOLDERS)
def test_annotations_are_not_postponed(folder: str) -> None:
    # Dagster reads the annotations of assets, resources and schedules as objects.
    for path in sorted((ROOT / folder).glob("*.py")):
        assert "from __future__ import annotations" not in path.read_text(), path


def test_definitions_are_built_in_one_place() -> None:
    builders = [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).glob("*.py"))
        if "Definitions(" in path.read_text()
    ]

    assert builders == [ROOT / "pipelines" / "definitions.py"]
