"""What a run ran on: versions, processor, devices, flags in force, code and data."""

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from seedbed import determinism, project
from seedbed.record import blobs
from seedbed.training.shards import Shards
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


def begin(device: torch.device, shards: Shards, git: Mapping[str, Any]) -> dict[str, Any]:
    """Return environment.json as it is known before data sets and model are built."""
    count = shards.processes
    return describe(device) | {
        "processes": {
            "count": count,
            "bits_depend_on_count": None if shards.order_is_fixed else count,
        },
        "git": git,
        "data_sha256": None,
        "files_sha256": {},
    }


def complete(
    found: dict[str, Any], settings: Mapping[str, Any], dataset: object, patch: bytes
) -> dict[str, Any]:
    """Return environment.json with what the classes of the run brought along.

    These are the data's digest, the versions of their distributions, and code in no record. A file
    with a digest, such as data in the checkout, is in the record as far as it can be.

    Args:
        found: what `begin` returned.
        dataset: of the training samples.
        patch: what changes the recorded commit into the code that runs.
    """
    root, git = project.root(), found["git"]
    versions = found["versions"] | loaded.more_versions(settings, root)
    recorded = blobs.recorded_files(root, git["commit"], blobs.patched_files(patch))
    if recorded is not None:  # otherwise no code is recorded, and the record says so
        lacks = git["lacks"] | loaded.unrecorded(recorded, settings, root)
        known = {Path(path).resolve() for path in found["files_sha256"]}
        lacks = {path: why for path, why in lacks.items() if (root / path).resolve() not in known}
        git = git | {"dirty": bool(patch or lacks), "lacks": lacks}
    digest = getattr(dataset, "sha256", None)
    return found | {"versions": versions, "git": git, "data_sha256": digest}


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
