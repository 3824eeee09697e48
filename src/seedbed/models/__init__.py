"""Models: a class each, built from the shape of the inputs and the number of outputs."""
