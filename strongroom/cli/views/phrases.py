"""How ages, times and facts are said in a column."""

from __future__ import annotations

from datetime import datetime

from strongroom.canonical import JsonObject

SPANS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
DIGEST_START = "sha256:"


def age(then: str, now: str) -> str:
    """Return how long before `now` `then` was, in its largest unit, e.g. `5m`; both RFC 3339."""
    seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(then)).total_seconds()
    for unit, length in SPANS:
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return "0s"


def to_second(time: str) -> str:
    """Return an RFC 3339 time as `2026-01-31 08:15:00Z`."""
    return f"{time[:10]} {time[11:19]}Z"


def metric_in_words(name: str) -> str:
    """Return the name of a metric: `pause_s` is `pause (s)`."""
    words = name.replace("_", " ")
    return f"{words[:-2]} (s)" if words.endswith(" s") else words


def key_in_words(key_id: str) -> str:
    """Return the first digits of a key id, as much as tells keys apart at a glance."""
    return key_id.removeprefix("ed25519-")[:8]


def facts_in_words(facts: JsonObject) -> str:
    """Return `name=value` pairs; digests are shortened, what is null is left out."""
    return " ".join(
        f"{name}={_short(value)}" for name, value in facts.items() if value not in (None, [])
    )


def _short(value: object) -> str:
    if isinstance(value, str) and value.startswith(DIGEST_START):
        return value.removeprefix(DIGEST_START)[:12]
    if isinstance(value, list):
        return "; ".join(_short(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
