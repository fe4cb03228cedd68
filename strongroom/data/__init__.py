"""Rows: read, curated, judged, made into batches, and walked by an exact cursor."""
