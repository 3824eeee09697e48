"""An experiment template whose runs come back bit for bit."""

__version__ = "0.1.0"
