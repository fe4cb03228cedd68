"""A store with one trained run, made once; each test gets a copy to do with as it likes.

The fixtures `trained_store` and `custody` are there for every test (tests/conftest.py).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strongroom.custody.context import Custody
from strongroom.custody.inputs import prepare
from strongroom.custody.train import follow_training
from strongroom.names import RunKey
from strongroom.training.config import load_config
from strongroom.training.launching.spec import Launch
from strongroom.training.launching.torchrun import launch
from tests.support.tiny_recipe import make_tiny_recipe

RUN = RunKey("small-talk")
STEPS = (2, 4)
AUTHOR = "leyla"


@pytest.fixture(scope="session")
def trained_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `store`, `keys` and `cache` of a finished run on one rank."""
    folder = Path(tmp_path_factory.mktemp("trained"))
    recipe = make_tiny_recipe(folder, steps=STEPS[-1], every_steps=STEPS[0])
    opened = open_custody(folder, create=True)
    record = prepare(opened, RUN, load_config(recipe), base_dir=folder, author=AUTHOR)
    spec = Launch.of(record, store_url=opened.store.url, keys=opened.keys.path, cache=opened.cache)
    for _event in follow_training(opened, record, launch(spec)):
        pass
    return folder


@pytest.fixture
def custody(trained_store: Path, tmp_path: Path) -> Custody:
    """A copy of the trained store, not yet verified."""
    for name in ("store", "keys"):
        shutil.copytree(trained_store / name, tmp_path / name)
    (tmp_path / "cache").symlink_to(trained_store / "cache")
    return open_custody(tmp_path)


def open_custody(folder: Path, *, create: bool = False) -> Custody:
    return Custody.open(
        str(folder / "store"), keys=folder / "keys", cache=folder / "cache", create=create
    )
