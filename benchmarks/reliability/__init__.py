"""Whether a run survives what happens to it, tried out in every way; see docs/reliability.md."""
