"""From the first step that differs to the operation: that step replayed twice, under a trace."""
