"""Training: the loop, a step over all shards, evaluation, state and checkpoints."""
