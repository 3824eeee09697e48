"""From the data set to batches: order, positions, samples, loader workers, streams."""
