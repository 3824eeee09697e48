"""Devices that cannot be there, seen without torch: before a run has a folder."""

import sys
from collections.abc import Mapping
from pathlib import Path

from seedbed.errors import InputError

# What the drivers of NVIDIA (also of its embedded boards, and on WSL) and AMD put into /dev.
_DRIVERS = ("nvidia*", "nvhost*", "nvmap", "dxg", "kfd")
_HIDDEN = ("", "-1")


def require(device: str, environment: Mapping[str, str]) -> None:
    """Raise InputError for a device that this machine cannot have.

    The training process, which asks torch, still decides whether a device can be used.

    Args:
        device: as `trainer.device` names it.
        environment: the variables of the training process.
    """
    reason = ""
    if device.startswith("cuda"):
        if environment.get("CUDA_VISIBLE_DEVICES", "0").strip() in _HIDDEN:
            reason = "CUDA_VISIBLE_DEVICES hides every GPU"
        elif sys.platform == "linux" and not _has_driver():
            reason = "no driver of a GPU is loaded"
    elif device == "mps" and sys.platform != "darwin":
        reason = "only macOS has it"
    if reason:
        raise InputError(
            f"trainer.device: expected a device that is there, got {device}, but {reason}; try "
            "trainer.device=auto"
        )


def _has_driver() -> bool:
    return any(any(Path("/dev").glob(pattern)) for pattern in _DRIVERS)
