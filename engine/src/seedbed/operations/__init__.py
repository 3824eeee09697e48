"""What operations run in a model, where, and what a refused one is replaced by."""
