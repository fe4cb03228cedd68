"""The verification ladder: what is proved of a checkpoint, rung by rung."""
