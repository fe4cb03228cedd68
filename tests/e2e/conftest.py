from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.main_path import MainPathRun, run_main_path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> MainPathRun:
    """The main job, run once for every test that looks at what it left."""
    run = run_main_path(Path(tmp_path_factory.mktemp("main-path")))
    assert run.exit_code == 0, run.output
    return run
