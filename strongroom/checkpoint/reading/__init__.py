"""Reads a checkpoint by its manifest: planned ranges, each byte checked before it is used."""
