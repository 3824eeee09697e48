"""A run in its training process, from the settings to a finished record."""
