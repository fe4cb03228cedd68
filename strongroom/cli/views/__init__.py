"""How the commands present what they found: pure functions from data to blocks."""
