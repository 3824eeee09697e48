"""Find the first operation that differs, by tracing two replays of the first differing
step."""
