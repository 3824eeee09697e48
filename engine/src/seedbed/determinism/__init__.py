"""Determinism presets: `backends` has the flags, `preset` applies them and reads them back."""

from seedbed.determinism.preset import (
    apply,
    asked_flags,
    differences,
    environment_variables,
    in_force,
    require_in_force,
)

__all__ = [
    "apply",
    "asked_flags",
    "differences",
    "environment_variables",
    "in_force",
    "require_in_force",
]
