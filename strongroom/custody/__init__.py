"""The acts of custody: each does one thing to a store, signs it and records it."""
