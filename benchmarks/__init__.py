"""What the engine costs, measured beside what people use instead; see docs/performance.md."""
