"""Saves while training goes on: staging, and the thread or process that writes."""
