"""Claims: fixed before the runs, and decided from their records alone."""
