"""What a launch is told, and that every rank is told all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from strongroom.errors import ConfigError
from strongroom.names import RunKey
from strongroom.training.__main__ import _parser
from strongroom.training.config import LaunchConfig, parse_config
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.placement import Placement
from strongroom.training.preflight.config import PreflightConfig
from strongroom.training.tracking.config import TrackingConfig

CONFIG = parse_config(
    {
        "model": {"source": "tiny"},
        "data": {"sources": [{"uri": "rows.jsonl"}]},
        "train": {
            "steps": 4,
            "batch_rows": 8,
            "learning_rate": 0.1,
            "world_size": 4,
            "replicas": 2,
            "micro_batch_rows": 1,
        },
        "launch": {"max_restarts": 7, "hang_timeout_s": 12.5, "min_world_size": 2},
        "tracking": {"tensorboard": True, "folder": "/tmp/with space"},  # noqa: S108 -- never made
        "preflight": {"numbers": {"allreduce_ms": 3.0}, "ignore": ["fabric"]},
    },
    source="test",
)
PLACEMENT = Placement(strategy="fsdp2", world_size=4, replicas=2, micro_batch_rows=1)


def test_settings_are_all_that_a_configuration_says_besides_what_the_run_is() -> None:
    assert LaunchSettings.of(CONFIG) == LaunchSettings(
        placement=PLACEMENT,
        launch=CONFIG.launch,
        tracking=CONFIG.tracking,
        preflight=CONFIG.preflight,
    )
    assert CONFIG.launch == LaunchConfig(max_restarts=7, hang_timeout_s=12.5, min_world_size=2)
    assert CONFIG.preflight.numbers == {"allreduce_ms": 3.0}


@pytest.mark.parametrize(
    "settings",
    [
        LaunchSettings.of(CONFIG),
        LaunchSettings(placement=Placement(strategy="zero3", world_size=1)),
        LaunchSettings(
            placement=PLACEMENT,
            tracking=TrackingConfig(tensorboard=True),
            preflight=PreflightConfig(ignore=("fabric",)),
        ),
    ],
    ids=["configured", "defaults", "ignoring"],
)
def test_settings_arrive_at_a_rank_as_they_were_given(settings: LaunchSettings) -> None:
    assert LaunchSettings.from_text(settings.to_text()) == settings


@pytest.mark.parametrize("text", ['{"placement": {}}', '{"placement": 3}', "[]", "{}"])
def test_settings_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--settings"):
        LaunchSettings.from_text(text)


@pytest.mark.parametrize("is_fresh_start", [True, False])
@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_rank_reads_from_its_arguments_what_was_launched(
    *, is_fresh_start: bool, is_quiet: bool
) -> None:
    spec = Launch(
        store_url="s3://bucket/prefix?endpoint_url=http://x:1",
        run=RunKey("nightly-7"),
        keys=Path("/keys of ours"),
        cache=Path("/cache"),
        settings=LaunchSettings.of(CONFIG),
        fresh_start=is_fresh_start,
        quiet=is_quiet,
    )
    given = _parser().parse_args(spec.arguments())
    assert (given.store, given.run_key) == (spec.store_url, spec.run)
    assert (given.keys, given.cache) == (spec.keys, spec.cache)
    assert given.settings == spec.settings
    assert (given.fresh_start, given.quiet) == (is_fresh_start, is_quiet)
    assert spec.placement == PLACEMENT
    assert spec.environment()["OMP_NUM_THREADS"] == "1"
