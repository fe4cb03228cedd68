"""How attempts of a run are started, followed, and started again: here, or on a cluster."""
