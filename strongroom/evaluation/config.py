"""The evaluation part of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from strongroom.parsing import STRICT


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """How a checkpoint is judged, and what staging asks of it."""

    __pydantic_config__ = STRICT

    max_rows: Annotated[int, Field(ge=1)] = 64
    min_loss_improvement: float = 0.0
    """Held-out loss must be at least this much below the base model's."""
    max_bits_per_byte_increase: Annotated[float, Field(ge=0.0)] = 0.0
