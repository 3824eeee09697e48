"""Applying a preset in a process that is already running, not started by Seedbed."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seedbed.determinism import apply, differences
from seedbed.errors import InputError

# configs/determinism, here and when installed
_PRESETS = Path(__file__).parent / "presets"
# Libraries read these on first use, so they can still be set before that.
_READ_LATE = ("CUBLAS_", "NCCL_")


def read_preset(name: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return all settings of a preset, with `settings` replacing some."""
    known = sorted(path.stem for path in _PRESETS.glob("*.yaml"))
    if name not in known:
        raise InputError(f"preset: expected one of {', '.join(known)}, got {name!r}")
    preset: Any = OmegaConf.load(_PRESETS / f"{name}.yaml")
    for key, value in (settings or {}).items():
        if key not in preset:
            raise InputError(
                f"{key}: expected a key of configs/determinism/{name}.yaml"
            )
        preset[key] = (
            OmegaConf.merge(preset[key], value) if isinstance(value, Mapping) else value
        )
    resolved: Any = OmegaConf.to_container(
        OmegaConf.create({"determinism": preset}), resolve=True
    )
    return dict(resolved["determinism"])


def apply_preset(name: str, **settings: Any) -> list[str]:
    """Apply the settings of a preset that can still be set, and read them back.

    Call it before models are built and data is loaded. It does not seed: see
    `seedbed.loading`.

    Args:
        name: strict, seeded, fast or portable.
        settings: replacements for the preset's settings, such as `threads=4`.

    Returns:
        A line for each setting that is not in force, and for each variable that had to
        be set before Python started; also issued as one warning. Empty if the preset is
        in force.

    Raises:
        InputError: there is no such preset or setting.
    """
    import torch

    preset = read_preset(name, settings)
    apply(preset)
    variables = {key: None if v is None else str(v) for key, v in preset["env"].items()}
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        late = {
            key: v for key, v in variables.items() if key.startswith(_READ_LATE) and v
        }
        os.environ.update(late)
    lines = differences(preset)
    if lines:
        missed = [(key, v) for key, v in variables.items() if os.environ.get(key) != v]
        # `env` needs these first
        words = [f"-u {key}" for key, v in missed if v is None]
        words += [f"{key}={v}" for key, v in missed if v is not None]
        start = f"; start Python under: env {' '.join(words)}" if words else ""
        first = f"{lines[0]} ..." if len(lines) > 1 else lines[0]
        text = (
            f"determinism={name}: {len(lines)} settings are not in force:"
            f" {first}{start}"
        )
        warnings.warn(text, stacklevel=2)
    return lines
