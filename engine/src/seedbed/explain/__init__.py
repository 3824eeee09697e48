"""From the first step that differs to the operation: that step replayed twice, under a trace."""

from seedbed.explain.explain import (
    Side,
    left_out,
    of_replay,
    of_runs,
    run_traces,
    trace_both,
)

__all__ = ["Side", "left_out", "of_replay", "of_runs", "run_traces", "trace_both"]
