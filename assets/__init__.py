"""The nouns of the graph, thin: each asks the engine for one thing and says what came of it."""
