"""Classes and functions that a configuration names: building them, and finding them in
settings."""

import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any

import yaml

from seedbed import offline, project
from seedbed.errors import InputError, one_line
from seedbed.names import did_you_mean

# It names the choice of a file, and is an argument only of a class that takes it.
_NAME = "name"
# All their arguments come from the configuration, so it is to blame for their
# exceptions.
_LIBRARIES = ("torch.", "torchvision.")
# keys that hold a function's name
_FUNCTIONS = ("data.collate", "data.training_collate")


def build(spec: Mapping[str, Any], key: str, *args: Any) -> Any:
    """Call `spec._target_` with the other entries as arguments; nested specs are built
    first.

    With `_partial_: true` it is not called but returned, with the arguments bound.
    Raises InputError if the spec names no class or the wrong arguments, or if torch or
    torchvision rejects them. An exception inside any other class keeps its traceback,
    with a note of the key.

    `key` is that of the spec; `args` come first, such as the parameters for an
    optimizer.
    """
    if not isinstance(spec, Mapping) or "_target_" not in spec:
        raise InputError(f"{key}: expected a mapping with a _target_, got {spec}")
    target = resolve(str(spec["_target_"]), key)
    signature = _signature_of(target)
    arguments = _arguments_of(spec, key, signature)
    is_partial = bool(spec.get("_partial_"))
    if signature:
        bind = signature.bind_partial if is_partial else signature.bind
        try:
            bind(*args, **arguments)
        except TypeError as error:
            raise _other_arguments(error, key, target, signature, arguments) from None
    if is_partial:
        return partial(target, **arguments) if arguments else target
    try:
        return target(*args, **arguments)
    except InputError:
        raise
    except Exception as error:
        if offline.is_refusal(error):
            raise InputError(
                f"{key}: expected a record that needs no address, got one for which "
                f"{target.__name__} opens some; {offline.ADVICE}"
            ) from error
        if str(spec["_target_"]).startswith(_LIBRARIES):
            raise InputError(
                f"{key}: expected arguments that {target.__name__} takes, got"
                f" {one_line(error)}"
            ) from error
        error.add_note(f"(while building {key}: {spec['_target_']})")
        raise


def _signature_of(target: Any) -> inspect.Signature | None:
    """Return the signature of a class or function; None if it is implemented in C.

    A wrapper is called, so its signature counts: it may take more than what it wraps.
    """
    try:
        return inspect.signature(target, follow_wrapped=False)
    except ValueError:
        return None


def _arguments_of(
    spec: Mapping[str, Any], key: str, signature: inspect.Signature | None
) -> dict[str, Any]:
    """Return the arguments of a spec, in which nested specs are built."""
    is_argument = _takes_name(signature, is_nested="." in key)
    arguments = {
        name: _nested(value, f"{key}.{name}")
        for name, value in spec.items()
        if name not in ("_target_", "_partial_") and (name != _NAME or is_argument)
    }
    if offline.is_asked_for() and arguments.get("download"):
        arguments["download"] = False  # missing files are then an error
    return arguments


def _takes_name(signature: inspect.Signature | None, is_nested: bool) -> bool:
    """Return whether `name` is an argument.

    A nested spec is rarely the copy of a file, so there `**kwargs` takes its name, too.
    """
    if signature is None:
        return is_nested
    takes_all = any(
        parameter.kind is parameter.VAR_KEYWORD
        for parameter in signature.parameters.values()
    )
    return _NAME in signature.parameters or (is_nested and takes_all)


def _other_arguments(
    error: TypeError,
    key: str,
    target: Any,
    signature: inspect.Signature,
    arguments: Mapping[str, Any],
) -> InputError:
    """Return an error for arguments that a class does not take; it suggests the nearest
    one."""
    takes = dict(signature.parameters)
    name = getattr(target, "__name__", target)
    near = {argument: did_you_mean(argument, takes) for argument in arguments}
    got = next((k + v for k, v in near.items() if v), str(error).removeprefix("got "))
    expected = f"{key}: expected arguments of {name} ({', '.join(takes)})"
    return InputError(f"{expected}, got {got}")


def resolve(target: str, key: str) -> Any:
    """Import a class or function by its dotted name; errors inside its module
    propagate."""
    module_name, _, name = target.rpartition(".")
    expected = f"{key}._target_: expected a class that can be imported, got {target}"
    if not module_name:
        raise InputError(f"{expected}, which names no module")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            f"{expected} ({error}); check its spelling, or install it"
        ) from None
    named = getattr(module, name, None)
    if not callable(named):
        raise InputError(
            f"{expected}, which {module_name} lacks{did_you_mean(name, dir(module))}"
        )
    return named


def _nested(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value, key)
        return {name: _nested(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_nested(item, f"{key}[{i}]") for i, item in enumerate(value)]
    return value


def targets_of(tree: Any) -> Iterator[tuple[str, str]]:
    """Yield key and dotted name of each class or function in settings (plain dicts and
    lists)."""
    for key, name, value in entries(tree):
        is_function = key in _FUNCTIONS and value is not None
        if not isinstance(value, Mapping | list) and (
            name == "_target_" or is_function
        ):
            yield key, str(value)


def known_keys() -> set[str]:
    """Return the groups of configs/ and the keys in its files, for suggesting the
    nearest one."""
    keys = {key for tree in project_files() for key, *_ in entries(tree)}
    return {key for key in keys if not key.startswith("defaults.")}


def project_files() -> Iterator[Mapping[str, Any]]:
    """Yield the part of a configuration that each YAML file of configs/ sets; skip
    broken files."""
    configs = project.configs()
    for name in glob("**/*.yaml", root_dir=configs, recursive=True):  # follows symlinks
        path = configs / name
        group = Path(name).parts[0]
        with suppress(OSError, ValueError, yaml.YAMLError):
            if isinstance(tree := yaml.safe_load(path.read_bytes()), dict):
                is_whole = group == "experiment" or path.parent == configs
                yield tree if is_whole else {group: tree}


def entries(tree: Any, key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield dotted path, name and value of everything in nested mappings and lists."""
    if isinstance(tree, list):
        tree = dict(enumerate(tree))
    for name, value in tree.items() if isinstance(tree, Mapping) else ():
        path = f"{key}.{name}" if key else str(name)
        yield path, str(name), value
        yield from entries(value, path)
