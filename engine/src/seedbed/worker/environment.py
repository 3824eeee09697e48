"""What a run ran on: versions, processor, devices, flags in force, code and data."""

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from seedbed import __version__, determinism, project
from seedbed.config import targets_of
from seedbed.determinism import backends
from seedbed.training.shards import Shards

# Variables that can change results, beside those that the preset sets.
_PREFIXES = (
    "ATEN_", "CUBLAS", "CUDA_", "CUDNN_", "DNNL_", "GLIBC_", "GOMP_", "KMP_", "MKL_", "NCCL_",
    "NPY_", "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHONHASHSEED", "PYTORCH_", "TORCH",
    "XLA_",
)  # fmt: skip

# What every run stands on, and what decodes and transforms images; as packages and distributions.
CORE = {
    "torch": "torch", "torchvision": "torchvision", "numpy": "numpy", "PIL": "pillow",
    "hydra": "hydra-core", "omegaconf": "omegaconf",
}  # fmt: skip
_SECTIONS = ("data", "model", "method", "optimizer", "schedule", "metrics", "callbacks")

# What tells processors apart in /proc/cpuinfo, on x86-64 and on Arm.
_CPUINFO = {
    "model": ("model name",),
    "vendor": ("vendor_id", "CPU implementer"),
    "family": ("cpu family", "CPU architecture"),
    "model_number": ("model", "CPU part"),
    "stepping": ("stepping", "CPU revision"),
    "variant": ("CPU variant",),
    "cache": ("cache size",),
}
_CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12", "nvidia-cublas-cu11")


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
            if name.startswith(_PREFIXES) and name != backends.INDUCTOR_VARIABLE  # a flag
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


def versions() -> dict[str, str | None]:
    """Return the versions of Python and the core packages, and of CUDA that torch was built for."""
    return {
        "python": platform.python_version(),
        "seedbed": __version__,
        **{name: version(name) for name in CORE.values()},
        "torch_git": torch.version.git_version,
        "cuda": torch.version.cuda,
    }


def more_versions(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the versions of the other distributions that classes of a run come from.

    These are the distributions of the classes that the configuration names, and those that the
    modules of these classes, and other modules that are not installed, import. To be called when
    the classes are imported.
    """
    targets = {target for name in _SECTIONS for _, target in targets_of(settings.get(name), name)}
    modules = {target.rpartition(".")[0] for target in targets}
    used = {target.partition(".")[0] for target in targets}
    for name, module in list(sys.modules.items()):
        is_own = not name.startswith("seedbed.") and not _is_installed(module)
        if is_own or name in modules:
            used |= set(_imported(module))
    others = used - CORE.keys() - sys.stdlib_module_names - {"seedbed"}
    installed = {name for name in others if _is_installed(sys.modules.get(name))}
    if not installed:
        return {}
    found = _distributions(tuple(sys.path))
    return {each: version(each) for name in sorted(installed) for each in found.get(name, ())}


def _imported(module: ModuleType) -> Iterator[str]:
    """Yield the packages that the names of a module come from."""
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            yield value.__name__.partition(".")[0]
        else:
            what = value if isinstance(value, type | FunctionType) else type(value)
            yield str(what.__module__).partition(".")[0]


def _is_installed(module: ModuleType | None) -> bool:
    """Return whether a module is one of Python's, or of a distribution that was installed."""
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return not isinstance(file, str) or project.is_installed(file)


@cache
def _distributions(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Return the distributions of each package on a path; the search takes a tenth of a second."""
    return metadata.packages_distributions()


def version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def gpu_versions() -> dict[str, str | None]:
    """Return the versions of the GPU libraries that torch came with, and of the driver."""
    nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return {
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "nccl": ".".join(map(str, nccl)),
        "triton": version("triton"),
        # One wheel for each CUDA, and one name without it from CUDA 13 on.
        "cublas": next(filter(None, map(version, _CUBLAS)), None),
        "driver": _driver(),
    }


def cpu() -> dict[str, Any]:
    """Return what tells processors apart, the instruction set in use, and the threads in force."""
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return {
        **processor(),
        "features": " ".join(sorted(name for name, value in found.items() if value is True)),
        "l1d_bytes": found.get("l1d_cache_size"),
        "l2_bytes": found.get("l2_cache_size"),
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


def processor(path: Path = Path("/proc/cpuinfo")) -> dict[str, str | None]:
    """Return what the kernel says of the first processor; clouds give many kinds one name."""
    try:
        text = path.read_text().partition("\n\n")[0]
    except OSError:  # not Linux
        text = ""
    lines = dict(re.findall(r"^([^\t:]+?)\s*:\s*(.*)$", text, re.MULTILINE))
    known = ((key, name) for key, names in _CPUINFO.items() for name in names)
    found = {key: lines[name] for key, name in known if name in lines}
    return {"model": platform.processor(), **found}


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module\D*([\d.]+)", text)
    return found.group(1) if found else None
