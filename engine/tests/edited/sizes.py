"""Numbers that the model has from another module."""

WIDTH = 4


def gain(count: int) -> float:
    return 1.5 * count
