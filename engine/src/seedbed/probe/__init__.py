"""Repeat the first steps of a configuration: what differs, is refused, or draws unseeded."""
