"""From a `_target_` in the configuration to an object, through the trusted packages only."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from seedbed import offline
from seedbed.config import targets
from seedbed.config.trust import is_trusted
from seedbed.errors import InputError

# Keys beside `_target_` that describe a choice and are no arguments of it.
_DESCRIPTIONS = ("_target_", "name", "accepts", "requires")
# Where all arguments come from the configuration, so that whatever is wrong is wrong there.
_LIBRARIES = ("torch.", "torchvision.")
# Whose functions are not for configurations: some download, write or execute.
_CLASSES_ONLY = ("seedbed.", "torch.", "torchvision.datasets.")
_UNPICKLES = ("torchvision.datasets.lsun.",)
_LOGGERS = "seedbed.loggers."  # which send what they log to addresses


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
    if offline.is_asked_for() and arguments.get("download"):
        arguments["download"] = False  # and what is not there is missing
    # Its own, not that of what it wraps: a wrapper may take more, and that is what is called.
    signature = inspect.signature(target, follow_wrapped=False)
    targets.require_known(signature, target, key, arguments)
    targets.require_given(signature, target, key, len(args), arguments)
    try:
        signature.bind(*args, **arguments)
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
    *defined* in a trusted package, not just reachable through one, unless its own name is trusted.
    """
    if not is_trusted(target, trusted):  # importing it could execute anything
        raise _untrusted(target, key, "not in them")
    module_name, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"{key}._target_: expected a class that can be imported, got {target} ({error}); "
            "check its spelling, and that its package is installed"
        ) from None
    home = f"{getattr(found, '__module__', '')}.{getattr(found, '__name__', '')}"
    forbidden = home.startswith(_UNPICKLES) or (
        home.startswith(_CLASSES_ONLY) and not isinstance(found, type)
    )
    misplaced = home.startswith(_LOGGERS) and not key.startswith("logger.")
    known = target in trusted or is_trusted(home, trusted)
    if not callable(found) or forbidden or misplaced or not known:
        raise _untrusted(target, key, f"which is {home}")
    return found


def unbuilt(spec: Mapping[str, Any], key: str, trusted: Sequence[str]) -> Any:
    """Return what `spec._target_` names without calling it, with the other entries bound."""
    target = resolve(str(spec["_target_"]), key, trusted)
    arguments = {
        name: _build_nested(value, f"{key}.{name}", trusted)
        for name, value in spec.items()
        if name not in ("_target_", "_partial_")
    }
    try:
        inspect.signature(target).bind_partial(**arguments)
    except TypeError as error:
        raise InputError(
            f"{key}: expected arguments of {target.__name__}, got others ({error}); see its "
            "signature"
        ) from None
    return partial(target, **arguments) if arguments else target


def _untrusted(target: str, key: str, what: str) -> InputError:
    return InputError(
        f"{key}._target_: expected a class defined in trusted_packages, got {target}, {what}; add "
        "its package to trusted_packages"
    )


def _build_nested(value: Any, key: str, trusted: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return (unbuilt if value.get("_partial_") else build)(value, key, trusted)
        return {name: _build_nested(item, f"{key}.{name}", trusted) for name, item in value.items()}
    if isinstance(value, list):
        return [_build_nested(item, f"{key}[{i}]", trusted) for i, item in enumerate(value)]
    return value
