"""Bytes: the storage protocol, its implementations, content-addressed trees, and the store."""
