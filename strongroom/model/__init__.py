"""The model: where it comes from, how it is built, its adapters and its loss."""
