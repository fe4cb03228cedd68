"""The tracking part of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from strongroom.parsing import STRICT


@dataclass(frozen=True, kw_only=True, slots=True)
class WandbConfig:
    """Where Weights & Biases keeps what is measured; the key comes from WANDB_API_KEY alone."""

    __pydantic_config__ = STRICT

    project: Annotated[str, Field(pattern=r"^[^/\\#?%:]+$", max_length=128)]
    entity: str | None = None
    group: str | None = None
    """Runs of one group are shown together."""
    mode: Literal["offline", "online"] = "offline"
    """Offline: into files, for `wandb sync`. WANDB_MODE, where it is set, has the last word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackingConfig:
    """Who is told what is measured, besides the event stream; no part of what the run is."""

    __pydantic_config__ = STRICT

    tensorboard: bool = False
    wandb: WandbConfig | None = None
    folder: str | None = None
    """Where files go, on the machine of the first rank; None: `tracking` in the cache folder."""
    peak_tflops_per_rank: Annotated[float, Field(gt=0.0)] | None = None
    """What one rank can do at most, in 10^12 FLOP/s without sparsity, for `mfu`; None: known by
    the name of its accelerator, or not at all."""
