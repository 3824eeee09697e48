"""From a `_target_` in the configuration to an object, through the trusted packages only."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from seedbed.config import is_trusted
from seedbed.errors import InputError

# Keys beside `_target_` that describe a choice and are no arguments of it.
_DESCRIPTIONS = ("_target_", "name", "accepts", "requires")
# Where all arguments come from the configuration, so that whatever is wrong is wrong there.
_LIBRARIES = ("torch.", "torchvision.")


def build(spec: Mapping[str, Any], key: str, trusted: Sequence[str], *args: Any) -> Any:
    """Call what `spec._target_` names with the other entries; see `prepare`."""
    return prepare(spec, key, trusted, *args)()


def prepare(
    spec: Mapping[str, Any], key: str, trusted: Sequence[str], *args: Any
) -> Callable[[], Any]:
    """Import what `spec._target_` names, and build nested targets; return the call that is left.

    Args:
        key: where the spec stands in the configuration, for messages.
        args: positional arguments, such as the parameters for an optimizer.

    Raises:
        InputError: the spec names no class or not its arguments. What goes wrong inside another
        class than a library's keeps its traceback.
    """
    if not isinstance(spec, Mapping) or "_target_" not in spec:
        raise InputError(f"{key}: expected a mapping with a _target_, got {spec}; see configs/")
    target = resolve(str(spec["_target_"]), key, trusted)
    arguments = {
        name: _build_nested(value, f"{key}.{name}", trusted)
        for name, value in spec.items()
        if name not in _DESCRIPTIONS
    }
    try:
        # Its own, not that of what it wraps: a wrapper may take more, and that is what is called.
        inspect.signature(target, follow_wrapped=False).bind(*args, **arguments)
    except TypeError as error:
        raise InputError(
            f"{key}: expected the arguments of {target.__name__}, got others ({error}); see its "
            "signature"
        ) from None
    return partial(_call, target, str(spec["_target_"]), key, *args, **arguments)


def _call(target: Callable[..., Any], name: str, key: str, /, *args: Any, **arguments: Any) -> Any:
    try:
        return target(*args, **arguments)
    except InputError:
        raise
    except Exception as error:
        if not name.startswith(_LIBRARIES):
            raise
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{key}: expected arguments that {target.__name__} takes, got others "
            f"({type(error).__name__}: {reason}); see its documentation"
        ) from error


def resolve(target: str, key: str, trusted: Sequence[str]) -> Any:
    """Import the class or function of a dotted name.

    A trusted package imports others (`torch.nn` reaches `torch.hub`), so what is found must be
    *defined* in a trusted package, not just reachable through one.
    """
    module_name, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"{key}._target_: expected a class that can be imported, got {target} ({error}); "
            "check its spelling, and that its package is installed"
        ) from None
    home = f"{getattr(found, '__module__', '')}.{getattr(found, '__name__', '')}"
    # torch and torchvision have functions among their classes that download, write or execute.
    is_function = not isinstance(found, type)
    forbidden = is_function and home.startswith(("torch.", "torchvision.datasets."))
    known = is_trusted(target, trusted) and is_trusted(home, trusted)
    if not callable(found) or forbidden or not known:
        raise InputError(
            f"{key}._target_: expected a class defined in trusted_packages, got {target}, "
            f"which is {home}; add its package to trusted_packages"
        )
    return found


def _build_nested(value: Any, key: str, trusted: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value, key, trusted)
        return {name: _build_nested(item, f"{key}.{name}", trusted) for name, item in value.items()}
    if isinstance(value, list):
        return [_build_nested(item, f"{key}[{i}]", trusted) for i, item in enumerate(value)]
    return value
