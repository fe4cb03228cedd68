"""Training: configuration, strategies, the loop, resuming, launching."""
