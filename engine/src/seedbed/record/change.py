"""One thing that is not the same in two records, and whether it can alter a bit of a run."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

# Settings of how the work is done, which change no bit of what comes of it.
NEUTRAL_KEYS = (
    "data.num_workers",
    "data.persistent_workers",
    "data.prefetch_factor",
    "data.start_method",
    "trainer.processes",
    "trainer.distributed_timeout_seconds",
    "trusted_packages",
    "tags",
    "notes",
    "logger.*",
    "callbacks.*",
)
# What is recorded of the environment but cannot reach a training process's arithmetic: names of
# places, sizes of the machine (threads are part of the preset), what composes configurations.
NEUTRAL_ENVIRONMENT = (
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


@dataclass(frozen=True)
class Change:
    """A setting, an entry of the environment or a file that is not the same in two records.

    Attributes:
        before, now: its value in the first record (A, or the checkpoint's) and in the second; None
            where it is absent.
        alters_bits: whether it can alter a bit of a run.
        kind: configuration, environment or code.
    """

    key: str
    before: Any
    now: Any
    alters_bits: bool = True
    kind: str = "configuration"

    def __str__(self) -> str:
        return f"{self.key} {self.before} -> {self.now}"


def matches(key: str, patterns: Iterable[str]) -> bool:
    """Return whether a key fits one of some patterns of the shell."""
    return any(fnmatchcase(key, pattern) for pattern in patterns)
