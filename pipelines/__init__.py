"""The composition root: what Dagster loads, and one module for each pipeline."""
