"""The preflight part of a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator, Field

from strongroom.parsing import STRICT
from strongroom.training.preflight.numbers import NUMBERS
from strongroom.training.preflight.rules import RULES

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0.0)]


def _known_checks(names: tuple[str, ...]) -> tuple[str, ...]:
    _refuse_unknown(names, RULES, "check")
    return names


def _known_numbers(numbers: dict[str, float]) -> dict[str, float]:
    _refuse_unknown(numbers, NUMBERS, "number")
    return numbers


def _refuse_unknown(names: Iterable[str], known: Mapping[str, object], what: str) -> None:
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"there is no {what} {', '.join(unknown)}; `strongroom doctor --rules` lists them: "
            f"{', '.join(known)}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PreflightConfig:
    """What the preflight compares with; no part of what the run is."""

    __pydantic_config__ = STRICT

    ignore: Annotated[tuple[str, ...], AfterValidator(_known_checks)] = ()
    """Names of checks whose finding does not stop a launch; it is shown all the same."""
    numbers: Annotated[
        dict[str, Annotated[float, Field(ge=0.0)]], AfterValidator(_known_numbers)
    ] = field(default_factory=dict)
    """Thresholds of the rules that are to be others, by name (`strongroom doctor --rules`)."""
    reference_batch_tokens: Positive | None = None
    """Tokens of a step in the run that the learning rate was chosen for."""
    reference_learning_rate: PositiveFloat | None = None
    keep_days: Positive = 30
    """For how long checkpoints are to be kept."""
    keep_checkpoints: Positive | None = None
    """Most checkpoints of the run that stand in the store at once; None: all of them."""
    step_s: PositiveFloat | None = None
    """Seconds of a step, where they are known; None: as measured of the run, or estimated."""
    upload_bytes_per_s: PositiveFloat | None = None
    """Bytes a second that all ranks together write into the store; None: not known."""
