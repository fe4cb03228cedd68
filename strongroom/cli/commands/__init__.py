"""What the commands do: each parses, makes one call, and presents."""
