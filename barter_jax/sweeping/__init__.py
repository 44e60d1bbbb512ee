"""A grid of runs: which they are, and running them one after the other."""
