"""The checkpoint format: layout, manifest, staging, writing and reading."""
