"""Data sets, and the loader that makes batches of them."""
