"""How times, sizes and numbers are said to people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from strongroom.errors import InputError
from strongroom.governance.review import instant

ABSENT = "not recorded"
"""What stands where a thing is absent; never a blank."""


def moment(time: str) -> str:
    """Say an RFC 3339 time: `31 January 2026, 08:15 UTC`; other text is said as it is."""
    try:
        read = instant(time)
    except InputError:
        return time
    return f"{read.day} {read:%B %Y, %H:%M} UTC"


def brief(time: str) -> str:
    """Say an RFC 3339 time, in UTC, where room is short: `2026-01-31 08:15`."""
    try:
        return f"{instant(time):%Y-%m-%d %H:%M}"
    except InputError:
        return time


def who(actor: str) -> str:
    """Say an actor: a person's pseudonym, or `service` and the start of its key id."""
    kind, _, name = actor.partition(":")
    return f"service {name.removeprefix('ed25519-')[:8]}" if kind == "service" else name or actor


def size(num_bytes: int) -> str:
    """Say a size in decimal units: `12.3 MB`."""
    value, unit = float(num_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 1000:  # noqa: PLR2004 -- decimal units
            break
        value, unit = value / 1000, larger
    return f"{num_bytes:,} bytes" if unit == "bytes" else f"{value:.1f} {unit}"


def figure(value: float, decimals: int = 4) -> str:
    """Say a measured number, also one that is not finite."""
    if not math.isfinite(value):
        return "not a finite number"
    return f"{value:.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def listed(items: Sequence[str]) -> str:
    """Say a list: `a, b and c`."""
    if len(items) < 2:  # noqa: PLR2004 -- nothing to join
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Say a number of things: `1 file`, `2 files`, `1,200 entries`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
