from __future__ import annotations

from pathlib import Path

import pytest

from resources.recipe import DEFAULT_CONFIG, Recipe
from resources.store import ROOT
from strongroom.errors import ConfigError

TINY = """
model: {source: model, dtype: float32}
data: {sources: [{uri: rows.jsonl}]}
train: {steps: 4, batch_rows: 4, learning_rate: 0.01}
"""


def test_the_recipe_is_read_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    recipe = Recipe(config_path=str(path))

    assert recipe.load().train.steps == 4
    assert recipe.base_dir == tmp_path


def test_a_relative_path_starts_at_the_repository() -> None:
    assert Recipe().path == ROOT / DEFAULT_CONFIG
    assert Recipe().load().train.steps > 0


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(TINY.replace("steps: 4", "steps: 0").replace("0.01", "7"))

    with pytest.raises(ConfigError) as raised:
        Recipe(config_path=str(path)).load()

    assert len(raised.value.faults) == 2
