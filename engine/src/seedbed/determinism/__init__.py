"""Determinism presets: `backends` has the flags, `preset` applies them and reads them back."""

from seedbed.determinism.preset import apply as apply
from seedbed.determinism.preset import asked_flags as asked_flags
from seedbed.determinism.preset import differences as differences
from seedbed.determinism.preset import environment_variables as environment_variables
from seedbed.determinism.preset import in_force as in_force
from seedbed.determinism.preset import require_in_force as require_in_force
