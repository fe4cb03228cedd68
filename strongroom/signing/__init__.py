"""Keys and who holds them, and signed statements (DSSE, in-toto, signed notes)."""
