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
_DESCRIPTIONS = ("_target_", "_partial_", "name", "accepts")
# Where all arguments come from the configuration, so that whatever is wrong is wrong there.
_LIBRARIES = ("torch.", "torchvision.")


def build(spec: Mapping[str, Any], key: str, *args: Any) -> Any:
    """Import what `spec._target_` names, and call it with the other entries, nested ones built.

    With `_partial_: true` it is not called: the entries are bound to it. A spec that names no
    class, or not its arguments, is an InputError. What goes wrong inside another class than
    PyTorch's keeps its traceback, with a note of the key.

    Args:
        key: where the spec stands in the configuration.
        args: positional arguments, such as the parameters for an optimizer.
    """
    if not isinstance(spec, Mapping) or "_target_" not in spec:
        raise InputError(f"{key}: expected a mapping with a _target_, got {spec}")
    target = resolve(str(spec["_target_"]), key)
    arguments = {
        name: _nested(value, f"{key}.{name}")
        for name, value in spec.items()
        if name not in _DESCRIPTIONS
    }
    if offline.is_asked_for() and arguments.get("download"):
        arguments["download"] = False  # and what is not there is missing
    is_partial = bool(spec.get("_partial_"))
    try:
        # Its own, not that of what it wraps: a wrapper may take more, and that is what is called.
        signature = inspect.signature(target, follow_wrapped=False)
        (signature.bind_partial if is_partial else signature.bind)(*args, **arguments)
    except TypeError as error:
        name, takes = getattr(target, "__name__", target), ", ".join(signature.parameters)
        got = str(error).removeprefix("got ")
        got += "".join(did_you_mean(each, signature.parameters) for each in arguments)
        raise InputError(f"{key}: expected arguments of {name} ({takes}), got {got}") from None
    except ValueError:  # written in C: it has none
        pass
    if is_partial:
        return partial(target, **arguments) if arguments else target
    try:
        return target(*args, **arguments)
    except InputError:
        raise
    except Exception as error:
        if str(spec["_target_"]).startswith(_LIBRARIES):
            raise InputError(
                f"{key}: expected arguments that {target.__name__} takes, got {one_line(error)}"
            ) from error
        error.add_note(f"(while building {key}: {spec['_target_']})")
        raise


def resolve(target: str, key: str) -> Any:
    """Import the class or function of a dotted name; an error in its module keeps its traceback."""
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
    named = getattr(module, name, None)
    if not callable(named):
        raise InputError(f"{expected}, which {module_name} lacks{did_you_mean(name, dir(module))}")
    return named


def _nested(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value, key)
        return {name: _nested(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_nested(item, f"{key}[{i}]") for i, item in enumerate(value)]
    return value
