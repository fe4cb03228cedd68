"""What to launch, wherever it is launched: which run of which store, spread how, watched how.

Never imports torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from strongroom.checkpoint.run_record import RunRecord
from strongroom.names import RunKey
from strongroom.parsing import parse, to_json
from strongroom.training.config import LaunchConfig, RunConfig, parse_config
from strongroom.training.placement import Placement
from strongroom.training.preflight.config import PreflightConfig
from strongroom.training.tracking.config import TrackingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSettings:
    """What a launch may choose without its being another run; the same on every rank."""

    placement: Placement
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    preflight: PreflightConfig = field(default_factory=PreflightConfig)

    @classmethod
    def of(cls, config: RunConfig) -> LaunchSettings:
        """Return what a configuration says of it."""
        return cls(
            placement=config.train.placement,
            launch=config.launch,
            tracking=config.tracking,
            preflight=config.preflight,
        )

    def to_text(self) -> str:
        """Return it as an argument of a command."""
        return json.dumps(to_json(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> LaunchSettings:
        """Read what `to_text` wrote.

        Raises:
            ConfigError: it is something else.
        """
        return parse(cls, json.loads(text), source="--settings")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What to start.

    Attributes:
        keys: the keys folder; the training signs its ledger entries as the service.
        cache: a folder for verified copies of the run's inputs.
        fresh_start: begin anew even though the run has checkpoints, none of which can be used.
        grace_s: seconds between SIGTERM and SIGKILL.
        quiet: log warnings only; what is reported stays the same.
    """

    store_url: str
    run: RunKey
    keys: Path
    cache: Path
    settings: LaunchSettings
    fresh_start: bool = False
    grace_s: float = 120.0
    quiet: bool = False

    @classmethod
    def of(  # noqa: PLR0913 -- the fields that a record does not hold
        cls,
        record: RunRecord,
        *,
        store_url: str,
        keys: Path,
        cache: Path,
        settings: LaunchSettings | None = None,
        fresh_start: bool = False,
        grace_s: float = 120.0,
    ) -> Launch:
        """Return the launch of a run; `settings` are those of its record if not given."""
        config = parse_config(record.config, source=f"run {record.run}")
        return cls(
            store_url=store_url,
            run=record.run,
            keys=keys,
            cache=cache,
            settings=LaunchSettings.of(config) if settings is None else settings,
            fresh_start=fresh_start,
            grace_s=grace_s,
        )

    @property
    def placement(self) -> Placement:
        """How the work is spread."""
        return self.settings.placement

    def arguments(self) -> list[str]:
        """Return the arguments of `python -m strongroom.training`, the same for every rank."""
        return [
            *("--store", self.store_url),
            *("--run-key", str(self.run)),  # torchrun takes `--run` for one of its own
            *("--keys", str(self.keys)),
            *("--cache", str(self.cache)),
            *("--settings", self.settings.to_text()),
            *(["--fresh-start"] if self.fresh_start else []),
            *(["--quiet"] if self.quiet else []),
        ]

    def environment(self) -> dict[str, str]:
        """Return what the environment of every rank must hold, on whichever machine."""
        return {
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": str(self.placement.threads_per_rank),
            # Ranks share the cores: one that waits must not keep a core busy.
            "OMP_WAIT_POLICY": "PASSIVE",
        }
