"""What a run will need before it is begun: memory, computation, time. Arithmetic alone."""
