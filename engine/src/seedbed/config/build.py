"""From a `_target_` in the configuration to an object."""

import importlib
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from seedbed import offline
from seedbed.errors import InputError, one_line
from seedbed.names import did_you_mean

# Keys beside `_target_` that describe a choice and are no arguments of it.
_DESCRIPTIONS = ("_target_", "_partial_", "name", "accepts", "requires")
# Where all arguments come from the configuration, so that whatever is wrong is wrong there.
_LIBRARIES = ("torch.", "torchvision.")


def build(spec: Mapping[str, Any], key: str, *args: Any) -> Any:
    """Import what `spec._target_` names, and call it with the other entries, nested ones built.

    Args:
        key: where the spec stands in the configuration, for messages.
        args: positional arguments, such as the parameters for an optimizer.

    Raises:
        InputError: the spec names no class, or not its arguments. What goes wrong inside another
        class than PyTorch's keeps its traceback, with a note of the key.
    """
    if not isinstance(spec, Mapping) or "_target_" not in spec:
        raise InputError(f"{key}: expected a mapping with a _target_, got {spec}; see configs/")
    target, arguments = _described(spec, key)
    if offline.is_asked_for() and arguments.get("download"):
        arguments["download"] = False  # and what is not there is missing
    try:
        # Its own, not that of what it wraps: a wrapper may take more, and that is what is called.
        inspect.signature(target, follow_wrapped=False).bind(*args, **arguments)
    except TypeError as error:
        raise _misfit(target, key, error) from None
    except ValueError:  # written in C: it has none
        pass
    try:
        return target(*args, **arguments)
    except InputError:
        raise
    except Exception as error:
        if str(spec["_target_"]).startswith(_LIBRARIES):
            raise InputError(
                f"{key}: expected arguments that {target.__name__} takes, got others "
                f"({one_line(error)})"
            ) from error
        error.add_note(f"(while {key} was built, which is {spec['_target_']})")
        raise


def unbuilt(spec: Mapping[str, Any], key: str) -> Any:
    """Return what `spec._target_` names without calling it, with the other entries bound."""
    target, arguments = _described(spec, key)
    try:
        inspect.signature(target).bind_partial(**arguments)
    except TypeError as error:
        raise _misfit(target, key, error) from None
    return partial(target, **arguments) if arguments else target


def resolve(target: str, key: str) -> Any:
    """Import the class or function of a dotted name.

    Raises:
        InputError: there is none. What goes wrong while its module is imported keeps its traceback.
    """
    module_name, _, name = target.rpartition(".")
    expected = f"{key}._target_: expected a class that can be imported, got {target}"
    if not module_name:
        raise InputError(f"{expected}, which names no module")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InputError(f"{expected} ({error}); check its spelling, or install it") from None
    if not hasattr(module, name):
        raise InputError(f"{expected}, which {module_name} lacks{did_you_mean(name, dir(module))}")
    found = getattr(module, name)
    if not callable(found):
        raise InputError(f"{expected}, which is a {type(found).__name__}")
    return found


def _described(spec: Mapping[str, Any], key: str) -> tuple[Any, dict[str, Any]]:
    """Return what a spec names, and its arguments with nested targets built."""
    arguments = {
        name: _build_nested(value, f"{key}.{name}")
        for name, value in spec.items()
        if name not in _DESCRIPTIONS
    }
    return resolve(str(spec["_target_"]), key), arguments


def _build_nested(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return (unbuilt if value.get("_partial_") else build)(value, key)
        return {name: _build_nested(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_build_nested(item, f"{key}[{i}]") for i, item in enumerate(value)]
    return value


def _misfit(target: Any, key: str, error: TypeError) -> InputError:
    takes = ", ".join(inspect.signature(target, follow_wrapped=False).parameters)
    name = getattr(target, "__name__", str(target))
    return InputError(f"{key}: expected the arguments of {name} ({takes}), got others ({error})")
