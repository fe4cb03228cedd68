"""What a rank says that cannot even begin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from strongroom.errors import TrainingError
from strongroom.training.failure import error_from
from strongroom.training.launching.torchrun import environment
from tests.support.training_run import make_training_run


def test_a_package_that_cannot_be_imported_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "packages" / "numpy"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('numpy was built for another Python')")
    run = make_training_run(tmp_path / "run", world_size=1)
    events = tmp_path / "events.jsonl"
    path = os.pathsep.join([str(broken.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "strongroom.training"),
            *run.launch().arguments(),
            *("--events", str(events)),
        ],
        env={**environment(run.launch()), "RANK": "0", "PYTHONPATH": path},
        check=False,
        timeout=120,
    )
    assert done.returncode == TrainingError.exit_code
    (told,) = (json.loads(line) for line in events.read_text(encoding="utf-8").splitlines())
    assert "rank 0 failed: ImportError: numpy was built for another" in str(error_from(told))
