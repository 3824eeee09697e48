"""Checks of what a model is given: one line that names the key, before anything is allocated."""

from collections.abc import Sequence

from seedbed.errors import InputError


def check_common(input_shape: object, outputs: object, dropout: object) -> None:
    """Raise InputError for what every model here is given, if it cannot be."""
    if not is_shape(input_shape):
        raise InputError(
            f"model.input_shape: expected a list of integers >= 1, got {input_shape}; "
            "try data.input_shape=[1,28,28]"
        )
    check_count("outputs", outputs, "set data.outputs to the number of classes, or of values")
    is_number = isinstance(dropout, int | float) and not isinstance(dropout, bool)
    if not is_number or not 0 <= dropout <= 1:  # type: ignore[operator]
        raise InputError(
            f"model.dropout: expected a number from 0 to 1, got {dropout!r}; try model.dropout=0.1"
        )


def check_count(name: str, value: object, advice: str) -> None:
    """Raise InputError unless an argument is an integer >= 1."""
    if type(value) is not int or value < 1:
        raise InputError(f"model.{name}: expected an integer >= 1, got {value!r}; {advice}")


def is_shape(value: object) -> bool:
    """Return whether a value is a list of integers >= 1."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and all(type(n) is int and n >= 1 for n in value)  # type: ignore[attr-defined]
