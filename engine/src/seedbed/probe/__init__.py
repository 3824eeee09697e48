"""Repeat and resume the first steps of a configuration: what differs, and what is refused."""
