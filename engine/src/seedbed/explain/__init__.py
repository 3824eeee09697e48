"""From the first step that differs to the operation: that step replayed twice, under a trace."""

from seedbed.explain.explain import of_runs as of_runs
