"""A small project whose lines tests/edits.py edits: a model, a data set, an optimizer, a task."""
