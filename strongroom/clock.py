"""The only source of wall-clock time in records."""

from __future__ import annotations

from datetime import UTC, datetime


def now_utc() -> str:
    """Return the time now as RFC 3339 in UTC with milliseconds, e.g. `2026-01-31T08:15:00.123Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
