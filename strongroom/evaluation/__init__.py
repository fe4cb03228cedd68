"""How good a checkpoint is: metrics and the report."""
