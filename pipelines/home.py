"""Where Dagster keeps what it saw: DAGSTER_HOME, made ready before any instance is opened."""

import os
import shutil
from pathlib import Path

from resources.store import ROOT

DAGSTER_YAML = "dagster.yaml"


def prepare_home() -> Path:
    """Return DAGSTER_HOME, by default `.strongroom/dagster`, set and with settings in it."""
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(ROOT / ".strongroom" / "dagster")))
    home.mkdir(parents=True, exist_ok=True)
    if not (home / DAGSTER_YAML).exists():
        shutil.copyfile(ROOT / DAGSTER_YAML, home / DAGSTER_YAML)
    return home
