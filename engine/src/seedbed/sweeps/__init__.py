"""Sweeps of many runs: starting, resuming, reporting on and comparing them."""
