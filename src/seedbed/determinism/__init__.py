"""Determinism presets: the only file that touches backend flags."""

from seedbed.determinism.flags import (
    INDUCTOR_VARIABLE,
    Flag,
    apply,
    asked_flags,
    computes_bfloat16,
    differences,
    environment_variables,
    flags,
    in_force,
    leave_recurrent_unfilled,
)
from seedbed.determinism.running import apply_preset, read_preset

__all__ = [
    "INDUCTOR_VARIABLE",
    "Flag",
    "apply",
    "apply_preset",
    "asked_flags",
    "computes_bfloat16",
    "differences",
    "environment_variables",
    "flags",
    "in_force",
    "leave_recurrent_unfilled",
    "read_preset",
]
