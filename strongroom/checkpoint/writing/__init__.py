"""Writes a checkpoint: pieces of tensors into shards, then the commit."""
