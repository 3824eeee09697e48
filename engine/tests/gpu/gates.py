"""The device of the gates and their configurations; conftest.py says what the variables are."""

import os

import pytest
import torch
from omegaconf import DictConfig

from tests.golden import runs

DEVICE = os.environ.get("SEEDBED_GPU_TESTS_DEVICE", "cuda")
PROCESSES = int(os.environ.get("SEEDBED_GPU_TESTS_PROCESSES", "20"))
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


def configuration(model: str, *overrides: str) -> DictConfig:
    """Return what trains 60 steps on the device, with dropout."""
    words = ("determinism=strict", f"trainer.device={DEVICE}", "trainer.max_steps=60")
    return runs.configuration(model, *words, "model.dropout=0.2", *overrides)
