"""An experiment template whose runs are reproducible bit for bit."""

__version__ = "0.1.0"
