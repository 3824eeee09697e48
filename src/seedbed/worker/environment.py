"""What a run ran on: versions, processor, devices, and the flags in force."""

import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

import torch

from seedbed import determinism
from seedbed.worker import loaded

# Variables that can change results, beside those that the preset sets.
_PREFIXES = (
    "ATEN_", "CUBLAS", "CUDA_", "CUDNN_", "DNNL_", "GLIBC_", "GOMP_", "KMP_", "MKL_", "NCCL_",
    "NPY_", "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHONHASHSEED", "PYTORCH_", "TORCH",
    "XLA_",
)  # fmt: skip


def describe(device: torch.device) -> dict[str, Any]:
    """Return everything of the environment that can change a bit, for environment.json."""
    return {
        "versions": versions() | (gpu_versions() if device.type == "cuda" else {}),
        "cpu": cpu(),
        "gpu": [gpu(device.index or 0)] if device.type == "cuda" else [],
        "device": device.type,
        "platform": platform.platform(),
        "env": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_PREFIXES) and name != determinism.INDUCTOR_VARIABLE  # a flag
        },
        "flags": determinism.in_force(),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of Python and the core packages, and of CUDA that torch was built for."""
    found: dict[str, str | None] = {"python": platform.python_version(), **loaded.versions()}
    found["torch_git"] = torch.version.git_version
    found["cuda"] = torch.version.cuda
    return found


def gpu_versions() -> dict[str, str | None]:
    """Return the versions of the GPU libraries that torch came with, and of the driver."""
    nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return {
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "nccl": ".".join(map(str, nccl)),
        "driver": _driver(),
    }


def cpu() -> dict[str, Any]:
    """Return the processor's model, the instruction set in use, and the threads in force."""
    return {
        "model": _cpu_model(),
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "byteorder": sys.byteorder,
    }


def gpu(index: int) -> dict[str, Any]:
    """Return name, number of multiprocessors and memory of a GPU."""
    found = torch.cuda.get_device_properties(index)
    return {
        "name": found.name,
        "multiprocessors": found.multi_processor_count,
        "capability": f"{found.major}.{found.minor}",
        "memory_bytes": found.total_memory,
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.processor()


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module\D*([\d.]+)", text)
    return found.group(1) if found else None
