"""From the first step that differs to the operation: that step replayed twice, under a trace."""

from seedbed.explain.explain import of_replay, of_runs

__all__ = ["of_replay", "of_runs"]
