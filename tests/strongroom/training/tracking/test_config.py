from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from strongroom.errors import ConfigError
from strongroom.parsing import parse
from strongroom.training.config import parse_config
from strongroom.training.tracking.config import TrackingConfig, WandbConfig
from strongroom.training.tracking.series import SERIES

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "watch-a-run.md"


def run_config(**tracking: object) -> dict[str, object]:
    return {
        "model": {"source": "tiny"},
        "data": {"sources": [{"uri": "rows.jsonl"}]},
        "train": {"steps": 5, "batch_rows": 4, "learning_rate": 0.1},
        **({"tracking": tracking} if tracking else {}),
    }


def test_nothing_is_tracked_unless_it_is_asked_for() -> None:
    assert parse_config(run_config(), source="test").tracking == TrackingConfig()
    assert TrackingConfig() == TrackingConfig(
        tensorboard=False, wandb=None, folder=None, peak_tflops_per_rank=None
    )
    assert WandbConfig(project="tests").mode == "offline"


def test_how_a_run_is_tracked_is_no_part_of_what_it_is() -> None:
    tracked = run_config(tensorboard=True, wandb={"project": "x"}, peak_tflops_per_rank=1.5)
    plain = parse_config(run_config(), source="test")
    assert parse_config(tracked, source="test").digest == plain.digest


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"peak_tflops_per_rank": 0}, "peak_tflops_per_rank"),
        ({"wandb": {}}, "project"),
        ({"wandb": {"project": ""}}, "project"),
        ({"wandb": {"project": "team/project"}}, "project"),
        ({"wandb": {"project": "x" * 129}}, "project"),
        ({"wandb": {"project": "x", "mode": "disabled"}}, "mode"),
        ({"wandb": {"project": "x", "api_key": "secret"}}, "api_key"),
    ],
)
def test_what_is_wrong_is_named(document: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        parse(TrackingConfig, document, source="test")


def test_the_example_of_the_page_is_right() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    tracking = parse_config(run_config() | yaml.safe_load(example), source="page").tracking
    assert tracking == TrackingConfig(
        tensorboard=True,
        wandb=WandbConfig(project="support", group="nightly", entity="my-team"),
        folder="/shared/tracking",
        peak_tflops_per_rank=989.4,
    )


def test_the_page_explains_every_series_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z]+/[a-z_]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(name for fields in SERIES.values() for name in fields.values())
