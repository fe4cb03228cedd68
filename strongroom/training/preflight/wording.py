"""How bytes, seconds and counts are said to a person."""

from __future__ import annotations

_BYTES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_COUNTS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
_SPANS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
_LARGE = 999.5
"""From here on a number has more than three digits before its point."""


def in_bytes(num_bytes: float) -> str:
    """Return a size in its largest unit: `1.5 GB`."""
    return _in_units(num_bytes, _BYTES, "bytes")


def in_seconds(seconds: float) -> str:
    """Return a duration in its largest unit: `4 h`, `0.2 s`."""
    return _in_units(seconds, _SPANS, "s")


def in_count(count: float) -> str:
    """Return a number of things: `8.03 billion`, `4096`."""
    return _in_units(count, _COUNTS, "").rstrip()


def _in_units(value: float, units: tuple[tuple[float, str], ...], smallest: str) -> str:
    for size, unit in units:
        if value >= size:
            return f"{_digits(value / size)} {unit}"
    return f"{_digits(value)} {smallest}"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < _LARGE else f"{value:.0f}"
