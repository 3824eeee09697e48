"""The environment of a run: versions, processor, devices, flags in force and input files."""

import hashlib
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from seedbed import __version__, determinism, project
from seedbed.config import targets_of
from seedbed.determinism import backends
from seedbed.errors import InputError

# Environment variables that can change results, besides those that the preset sets.
_PREFIXES = (
    "ATEN_", "CUBLAS", "CUDA_", "CUDNN_", "DNNL_", "GLIBC_", "GOMP_", "KMP_", "MKL_", "NCCL_",
    "NPY_", "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHONHASHSEED", "PYTORCH_", "TORCH",
    "XLA_",
)  # fmt: skip
_SET_LATER = (backends.INDUCTOR_VARIABLE, "TORCHINDUCTOR_CACHE_DIR")  # a flag, and PyTorch's own

# Packages that every run needs, or that decode and transform images, and their distributions.
CORE = {
    "torch": "torch", "torchvision": "torchvision", "numpy": "numpy", "PIL": "pillow",
    "hydra": "hydra-core", "omegaconf": "omegaconf",
}  # fmt: skip
_WITH_FILES = ("data", "model", "method", "optimizer", "schedule")  # as arguments of classes
_SECTIONS = (*_WITH_FILES, "metrics", "callbacks")

_CHEAP_FILES, _CHEAP_BYTES, _MOST_FILES = 20_000, 256 << 20, 200_000

# Fields of /proc/cpuinfo that tell processors apart, on x86-64 and on Arm.
_CPUINFO = (
    *("vendor_id", "cpu family", "model", "stepping", "cache size"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
)
_packages = cache(metadata.packages_distributions)  # takes a tenth of a second
_CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12", "nvidia-cublas-cu11")


def describe(device: torch.device) -> dict[str, Any]:
    """Return everything in the environment that can change a bit, for environment.json."""
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "seedbed": __version__,
        **{name: version(name) for name in CORE.values()},
        "torch_git": torch.version.git_version,
        "cuda": torch.version.cuda,
    }
    gpus = []
    if device.type == "cuda":
        versions |= gpu_versions()
        properties = torch.cuda.get_device_properties(device)
        gpus.append(
            {
                "name": properties.name,
                "multiprocessors": properties.multi_processor_count,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
            }
        )
    return {
        "versions": versions,
        "cpu": cpu(),
        "gpu": gpus,
        "device": device.type,
        "platform": platform.platform(),
        "env": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_PREFIXES) and name not in _SET_LATER
        },
        "flags": determinism.in_force(),
    }


def more_versions(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the versions of the other distributions that the classes of a run use.

    These are the distributions of the classes in the configuration, and those imported by the
    modules of these classes and by modules that are not installed. Call it after the classes have
    been imported.
    """
    targets = {target for _, target in targets_of({k: settings.get(k) for k in _SECTIONS})}
    modules = {target.rpartition(".")[0] for target in targets}
    packages = {target.partition(".")[0] for target in targets}
    for name, module in list(sys.modules.items()):
        if name in modules or not (name.startswith("seedbed.") or _is_installed(module)):
            for value in list(vars(module).values()):
                kind = value if isinstance(value, type | FunctionType) else type(value)
                origin = value.__name__ if isinstance(value, ModuleType) else str(kind.__module__)
                packages.add(origin.partition(".")[0])
    others = packages - CORE.keys() - sys.stdlib_module_names - {"seedbed"}
    installed = sorted(name for name in others if _is_installed(sys.modules.get(name)))
    return {each: version(each) for name in installed for each in _distributions(name)}


def _distributions(package: str) -> Sequence[str]:
    """Return the distributions that an installed package comes from."""
    with suppress(metadata.PackageNotFoundError):
        own = metadata.distribution(package)  # most have their package's name
        if f"{package}/__init__.py" in map(str, own.files or ()):
            return [own.name]
    return _packages().get(package, ())


def _is_installed(module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return not isinstance(file, str) or project.is_installed(file)


def version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def file_digests(settings: Mapping[str, Any], stated: Sequence[str] = ()) -> dict[str, str]:
    """Return a digest of each file and folder in a configuration, by its path there.

    These are the values in `model`, `data`, `method`, `optimizer` and `schedule` that are paths of
    existing files, those in `data` that are folders, and all entries of `files`. Call it after the
    data sets have been built, which may write into their folders.

    Args:
        stated: splits whose data sets state the digests of what they read; their folders, which may
            hold other things, are left out.

    Raises:
        InputError: an entry of `files` is neither a file nor a folder with files.
    """
    data, listed = settings.get("data") or {}, settings.get("files") or ()
    values = tree_leaves([settings.get(name) for name in _WITH_FILES])
    files = {value for value in values if isinstance(value, str) and os.path.isfile(value)}
    known = tree_leaves([data.get(split) for split in stated])
    folders = {v for v in tree_leaves(data) if isinstance(v, str) and os.path.isdir(v)}
    for path in listed:
        if not os.path.isfile(path) and not any(each.is_file() for each in Path(path).rglob("*")):
            raise InputError(f"files: expected a file or a folder with files, got {path}")
    found: dict[str, str] = {}
    for path in sorted(files.union(listed, folders.difference(known))):
        try:
            is_folder = os.path.isdir(path)
            found |= _of_folder(path, path in listed) if is_folder else {path: digest_of(path)}
        except OSError as error:  # the data set may not need it
            found[path] = f"not recorded: {error.strerror}"
    return found


def digest_of(path: str) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_folder(path: str, always_contents: bool) -> dict[str, str]:
    """Return one digest of a folder's files, of their contents if that takes less than a second.

    What is hashed depends on sizes alone, not on a clock: two records must be comparable. Files and
    folders whose names begin with a dot, and bytecode, are left out: tools write them.
    """
    if project.root().resolve().is_relative_to(Path(path).resolve()):
        return {path: "not recorded: the project is in it"}  # and changes in every run
    found: list[tuple[str, int, int]] = []
    for place, folders, names in os.walk(path, followlinks=True):
        folders[:] = [name for name in folders if name[0] != "." and name != "__pycache__"]
        for name in names:
            if name[0] != "." and os.path.isfile(file := os.path.join(place, name)):
                status = os.stat(file)
                found.append((os.path.relpath(file, path), status.st_size, status.st_mtime_ns))
        if len(found) > _MOST_FILES and not always_contents:
            return {path: f"not recorded: more than {_MOST_FILES:,} files"}
    found.sort()
    is_small = len(found) <= _CHEAP_FILES and sum(each[1] for each in found) <= _CHEAP_BYTES
    if is_small or always_contents:
        contents = [(name, digest_of(os.path.join(path, name))) for name, *_ in found]
        return {path: f"{len(found)} files: {_of_text(contents)}"}
    sizes, times = [each[:2] for each in found], [each[2] for each in found]
    return {path: f"names and sizes: {_of_text(sizes)}", f"{path} (times)": _of_text(times)}


def _of_text(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def gpu_versions() -> dict[str, str | None]:
    """Return the versions of the GPU libraries that torch came with, and of the driver."""
    nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    kernel = Path("/proc/driver/nvidia/version")
    text = kernel.read_text() if kernel.is_file() else ""
    driver = re.search(r"Kernel Module\D*([\d.]+)", text)
    return {
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "nccl": ".".join(map(str, nccl)),
        "triton": version("triton"),
        # One wheel for each version of CUDA, and a name without the version from CUDA 13 on.
        "cublas": next(filter(None, map(version, _CUBLAS)), None),
        "driver": driver and driver[1],
    }


def cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """Return the processor's identity, the instruction set in use and the number of threads."""
    # The entry of the first processor; clouds use one model name for many kinds.
    text = cpuinfo.read_text().partition("\n\n")[0] if cpuinfo.is_file() else ""  # not Linux
    lines = dict(re.findall(r"^([^\t:]+?)\s*:\s*(.*)$", text, re.MULTILINE))
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return {
        "model": lines.get("model name", platform.processor()),
        "kind": ", ".join(f"{name} {lines[name]}" for name in _CPUINFO if name in lines),
        "features": " ".join(sorted(name for name, value in found.items() if value is True)),
        "l1d_bytes": found.get("l1d_cache_size"),
        "l2_bytes": found.get("l2_cache_size"),
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
