"""Numbers for the Dagster UI, which plots them over time: finite ones only.

A number that is not finite is shown as text: as a number it would break the UI's JSON.
"""

import math
from collections.abc import Mapping, Sequence

import dagster as dg


def numbers(values: Mapping[str, float | None]) -> dict[str, dg.MetadataValue]:
    """Return numeric metadata; what is unknown (None) is left out."""
    return {name: _number(value) for name, value in values.items() if value is not None}


def texts(**values: object) -> dict[str, dg.MetadataValue]:
    """Return names, digests and the like as text."""
    return {name: dg.MetadataValue.text(str(value)) for name, value in values.items()}


def lines(texts: Sequence[str]) -> dg.MetadataValue:
    """Return texts as a list to read."""
    return dg.MetadataValue.md("\n".join(f"- {text}" for text in texts) or "none")


def _number(value: float) -> dg.MetadataValue:
    if isinstance(value, int):
        return dg.MetadataValue.int(value)
    if not math.isfinite(value):
        return dg.MetadataValue.text(f"not finite: {value}")
    return dg.MetadataValue.float(float(value))
