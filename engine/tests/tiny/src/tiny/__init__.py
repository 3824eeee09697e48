"""The package of the project that the engine's tests train."""
