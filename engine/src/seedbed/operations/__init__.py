"""The operations that run in a model, where they run, and substitutes for refused ones."""
