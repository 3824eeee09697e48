"""Determinism presets: the only file that touches backend flags."""

from seedbed.determinism.flags import (
    INDUCTOR_VARIABLE,
    Flag,
    apply,
    asked_flags,
    compile_for_each_shape,
    computes_bfloat16,
    differences,
    environment_variables,
    flags,
    in_force,
    leave_recurrent_unfilled,
    require_in_force,
)

__all__ = [
    "INDUCTOR_VARIABLE",
    "Flag",
    "apply",
    "asked_flags",
    "compile_for_each_shape",
    "computes_bfloat16",
    "differences",
    "environment_variables",
    "flags",
    "in_force",
    "leave_recurrent_unfilled",
    "require_in_force",
]
