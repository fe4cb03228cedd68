"""The outside world, configured for Dagster: the store, the recipe of a run, the launcher."""
