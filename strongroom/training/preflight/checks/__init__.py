"""The checks of the preflight: each takes a case and yields what it finds."""
