"""Which operations, of PyTorch or of a model, are deterministic here, and which draw unseeded."""
