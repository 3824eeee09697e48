"""Repeat and resume the first steps of a configuration to find differences and refusals."""
