"""What the gates of tests/gpu share: the device, and runs on it in processes of their own.

SEEDBED_GPU_TESTS_DEVICE=cpu tries the gates where there is no GPU.
SEEDBED_GPU_TESTS_PROCESSES is the number of processes of the first gate (20).
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from seedbed import launch
from tests.golden import runs

DEVICE = os.environ.get("SEEDBED_GPU_TESTS_DEVICE", "cuda")
PROCESSES = int(os.environ.get("SEEDBED_GPU_TESTS_PROCESSES", "20"))
STEPS = 60
MODELS = list(runs.EXPERIMENTS)
NO_GPU = torch.version.cuda is None or not torch.cuda.is_available()
GATE = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and NO_GPU, reason="torch sees no NVIDIA GPU"),
]
ON_CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE != "cuda" or NO_GPU, reason="torch sees no NVIDIA GPU"),
]


def settings(model: str, *overrides: str) -> Any:
    """Return the resolved configuration of a short run on the device, with dropout."""
    words = ("determinism=strict", f"trainer.device={DEVICE}", f"trainer.max_steps={STEPS}")
    return runs.configuration(model, *words, "model.dropout=0.2", *overrides)


def prepared(folder: Path, model: str, *overrides: str) -> tuple[list[str], dict[str, str]]:
    """Make a run folder; return the command and the environment that train in it."""
    config = settings(model, *overrides)
    launch.create_run_folder(folder, config)
    return launch.worker_command(config, folder), launch.training_environment(config)


def fingerprint_rows(folder: Path, model: str, *overrides: str) -> runs.FingerprintRows:
    """Train in a process of its own; return the fingerprints."""
    return trained(folder, *prepared(folder, model, *overrides))


def trained(folder: Path, command: list[str], environment: dict[str, str]) -> runs.FingerprintRows:
    """Run a command that trains in a folder; return the fingerprints of all steps."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = runs.fingerprint_rows(folder)
    assert len(rows) == STEPS
    return rows
