"""Determinism presets: applying them, and reading them back; `backends` has the flags.

A preset is a YAML file in configs/determinism/. Its flags are applied before the model
is built, and again in every loader worker (spawned workers inherit none of them); then
the flags in force are read back, recorded, and compared with the preset.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from seedbed.errors import InputError
from seedbed.names import flatten

# Settings of a preset that are not backend flags: the code that uses them reads them.
_NOT_FLAGS = {
    "name",
    "seeding",
    "channels_last",
    "device",
    "fingerprint_every_steps",
    "env",
}


def environment_variables(
    preset: Mapping[str, Any], current: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a training process: the current one with the preset's
    variables."""
    environment = dict(current)
    for name, value in preset["env"].items():
        if value is not None:
            environment[name] = str(value)
        elif name in current:
            raise InputError(
                f"{name}: expected it unset under determinism={preset['name']}, got"
                f" {current[name]!r}; unset it, or set"
                f" determinism.env.{name}={current[name]}"
            )
    return environment


def apply(preset: Mapping[str, Any], threads: int | None = None) -> None:
    """Set every flag of a preset that can still be set; `threads` replaces the preset's
    number."""
    from seedbed.determinism import backends

    table = backends.flags()
    for path, value in asked_flags(preset).items():
        setter = table[path].set
        value = threads if path == "threads" and threads is not None else value
        if setter is not None and value is not None:
            with suppress(RuntimeError):
                setter(value)


def asked_flags(preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that a preset names, flattened to paths such as
    `cudnn.benchmark`."""
    flags = flatten(
        {name: value for name, value in preset.items() if name not in _NOT_FLAGS}
    )
    if flags.get("fill_uninitialized_memory") == "rehearsal":
        # a child of the rehearsal is asked for `true`
        flags["fill_uninitialized_memory"] = False
    return flags


def in_force() -> dict[str, Any]:
    """Read every flag back from the backends."""
    from seedbed.determinism import backends

    return {path: flag.get() for path, flag in backends.flags().items()}


def require_in_force(preset: Mapping[str, Any]) -> None:
    """Raise InputError if code in this process has set a flag to another value than the
    preset."""
    for line in _differing_flags(preset):
        raise InputError(f"{line}, set by user code or a library; remove that code")


def _differing_flags(preset: Mapping[str, Any]) -> list[str]:
    flags = in_force()
    return [
        f"determinism.{path}: expected {asked}, got {flags[path]} in force"
        for path, asked in asked_flags(preset).items()
        if asked is not None and flags[path] != asked
    ]


def differences(preset: Mapping[str, Any]) -> list[str]:
    """Return a line for each flag and environment variable that differs from a
    preset."""
    lines = _differing_flags(preset)
    for name, value in preset["env"].items():
        both = None if value is None else str(value), os.environ.get(name)
        if both[0] != both[1]:
            expected, got = ("unset" if each is None else each for each in both)
            lines.append(f"{name}: expected {expected} in the environment, got {got}")
    return lines
