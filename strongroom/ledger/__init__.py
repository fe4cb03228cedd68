"""The append-only, tamper-evident record of what happened, and its attestations."""
