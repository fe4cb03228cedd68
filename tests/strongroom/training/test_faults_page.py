"""The page on faults shows what there is: its example, its codes, its fields."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from pathlib import Path

import yaml

from strongroom import errors
from strongroom.checkpoint.attempts import AttemptRecord
from strongroom.training.config import LaunchConfig, parse_config

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "how-to" / "survive-faults.md").read_text(encoding="utf-8")
CODES = {
    kind.exit_code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.StrongroomError)
}


def test_the_example_is_right_and_names_every_field_of_a_launch() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    document = {
        "model": {"source": "tiny"},
        "data": {"sources": [{"uri": "rows.jsonl"}]},
        **yaml.safe_load(example),
    }
    config = parse_config(document, source="page")
    assert set(document["launch"]) == {field.name for field in fields(LaunchConfig)}
    # What it says of defaults is so.
    defaults = asdict(LaunchConfig())
    said = asdict(config.launch)
    assert {name: said[name] for name in said if name != "min_world_size"} == {
        name: defaults[name] for name in defaults if name != "min_world_size"
    }
    assert config.train.max_nonfinite_steps == 3
    assert config.train.on_nonfinite == "rollback"


def test_every_code_is_that_of_an_error() -> None:
    codes = {int(code) for code in re.findall(r"\((\d\d)\)", PAGE)} | {75}
    assert codes == {11, 31, 51, 60, 61, 62, 65, 66, 75}
    assert codes <= set(CODES)
    assert CODES[51].retryable  # type: ignore[attr-defined]


def test_every_field_of_an_attempt_is_explained() -> None:
    table = PAGE[PAGE.index("## What is recorded") :]
    told = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert told == {field.name for field in fields(AttemptRecord)} - {"run", "attempt", "started"}
