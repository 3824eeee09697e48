"""What a record holds that cannot alter a bit of a run: one list, for a resume and for compare."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

# Settings of how the work is done, which change no bit of what comes of it.
KEYS = (
    "data.num_workers",
    "data.persistent_workers",
    "data.prefetch_factor",
    "data.start_method",
    "trainer.processes",
    "trainer.distributed_timeout_seconds",
    "logger.*",
    "callbacks.*",
)
# What is recorded of the environment but cannot reach a training process's arithmetic: names of
# places, sizes of the machine (threads are part of the preset), what composes configurations.
ENVIRONMENT = (
    "cpu.cores",
    "env.CUDA_CACHE_PATH",
    "env.CUDA_HOME",
    "env.CUDA_PATH",
    "env.CUDA_VISIBLE_DEVICES",
    "env.GOMP_SPINCOUNT",
    "env.KMP_INIT_AT_FORK",
    "env.NCCL_DEBUG*",
    "env.NVIDIA_DRIVER_CAPABILITIES",
    "env.NVIDIA_REQUIRE_*",
    "env.NVIDIA_VISIBLE_DEVICES",
    "env.OMP_WAIT_POLICY",
    "env.TORCHINDUCTOR_CACHE_DIR",
    "env.TORCH_HOME",
    "gpu.*.memory_bytes",
    "processes.count",
    "versions.hydra-core",
    "versions.omegaconf",
)
# What torchrun tells its processes: another text each time.
TORCHRUN = ("env.TORCHELASTIC_*", "env.TORCH_ELASTIC_*", "env.TORCH_NCCL_ASYNC_ERROR_HANDLING")

# Rooms of the engine that a training process never imports; import-linter keeps it so.
ROOMS = ("compare", "explain", "integrations", "probe", "recorder", "sweeps", "tools")
# Folders and files of a checkout, outside src, that hold code which it never imports either.
_NOT_IMPORTED = ("configs", "docs", "scripts", "tests", "train.py")
# Of files that Python imports, or compiles into what it imports, from the checkout's root.
_SOURCES = {".py", ".pyx", ".so", ".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp"}


def matches(key: str, patterns: Iterable[str]) -> bool:
    """Return whether a key fits one of some patterns of the shell."""
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def may_be_imported(path: str) -> bool:
    """Return whether a training process can read a file of the checkout, by its path from the root.

    It imports from `src` and from the root. Everything else reaches it through config.yaml, or is
    recorded by its digest: data, and files that a model reads.
    """
    parts = PurePosixPath(path).parts
    if parts[:1] == ("src",):
        return not (parts[1:2] == ("seedbed",) and parts[2:3] and parts[2] in ROOMS)
    if path == "pyproject.toml":
        return True
    is_ours = not parts or parts[0] in _NOT_IMPORTED or parts[0].startswith(".")
    return not is_ours and PurePosixPath(path).suffix in _SOURCES
