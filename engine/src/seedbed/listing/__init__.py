"""Finding runs: rows of their values, which of them are asked for, tags and notes, and
a page."""
