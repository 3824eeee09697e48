"""The keys of a configuration, their types and ranges, as OmegaConf's structured configs.

The values, and what each means, stand in configs/. A section of a class that users choose (a data
set's, a model's, an optimizer's arguments) declares here what the engine itself reads of it; the
other keys are the class's own.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from seedbed.errors import InputError

MAX_SEED = 2**63 - 1
SUPERVISED = "seedbed.methods.Supervised"  # the method where a configuration names none
TASKS = ("classification", "regression")  # others come with a `_target_`


class Section:
    """A section whose keys are all declared."""

    @property
    def key(self) -> str:
        """Return where the section stands, for messages."""
        return type(self).__name__.removeprefix("Own").lower()

    def require_within(self, low: float, high: float, *names: str) -> None:
        """Raise InputError for a number out of range, which NaN is; null is a value of its own."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and low <= value <= high):
                kind = "an integer" if isinstance(value, int) else "a number"
                limits = f">= {low:g}" if high == math.inf else f"from {low} to {high}"
                key = f"{self.key}.{name}".removeprefix("settings.")
                raise InputError(f"{key}: expected {kind} {limits}, got {value}")

    def require_one_of(self, name: str, *options: object) -> None:
        """Raise InputError for a value that is none of the options."""
        value = getattr(self, name)
        if not any(value == each and type(value) is type(each) for each in options):
            known = ", ".join("null" if each is None else str(each) for each in options)
            raise InputError(f"{self.key}.{name}: expected one of {known}, got {value}")

    def require_device(self, device: str) -> None:
        """Raise InputError for a device that PyTorch would not know."""
        if not re.fullmatch("auto|cpu|mps|cuda(:[0-9]{1,2})?", device):
            raise InputError(
                f"{self.key}.device: expected auto, cpu, cuda, cuda:N or mps, got {device}"
            )


class Open(Section):
    """A section whose other keys are arguments of a class that users choose."""


@dataclass
class Seeds(Section):
    """The seed of each stream of randomness."""

    init: int
    order: int
    augment: int
    dropout: int
    data: int
    split: int


@dataclass
class Data(Open):
    """How samples are loaded; the data sets are built from `train`, `validation` and `test`."""

    name: str
    batch_size: int
    eval_batch_size: int
    num_workers: int
    persistent_workers: bool
    prefetch_factor: int
    start_method: str
    train: dict[str, Any]
    validation: dict[str, Any]
    test: dict[str, Any] | None = None
    task: Any = None
    sampler: dict[str, Any] | None = None
    streams: int | None = None
    samples_per_epoch: int | None = None
    loading_threads: Any = 1

    def __post_init__(self) -> None:
        self.require_within(1, math.inf, "batch_size", "eval_batch_size", "prefetch_factor")
        self.require_within(1, math.inf, "streams", "samples_per_epoch")
        self.require_within(0, 1024, "num_workers")
        self.require_one_of("start_method", "fork", "spawn", "forkserver")
        self.require_one_of("loading_threads", 1, "all")
        if self.task is not None and not isinstance(self.task, Mapping):
            raise InputError(
                f"data.task: expected a section, got {self.task}; write task: {{name: {TASKS[0]}}}"
            )
        if self.task and "_target_" not in self.task and self.task.get("name") not in TASKS:
            raise InputError(
                f"data.task.name: expected one of {', '.join(TASKS)}, or a task with a _target_, "
                f"got {self.task.get('name')}"
            )


@dataclass
class Model(Open):
    """The model's class; `accepts` lists the kinds of data that it is for."""

    name: str
    _target_: str
    accepts: list[str] | None = None


@dataclass
class Method(Open):
    """The method's class: what a training step is."""

    name: str = "supervised"
    _target_: str = SUPERVISED


@dataclass
class Optimizer(Open):
    """The optimizer's class and its peak learning rate."""

    name: str
    _target_: str
    lr: float

    def __post_init__(self) -> None:
        self.require_within(0, math.inf, "lr")


@dataclass
class Schedule(Section):
    """The learning rate's way from step to step, as fractions of all steps and of the peak."""

    name: str
    warmup_fraction: float
    final_fraction: float

    def __post_init__(self) -> None:
        self.require_within(0, 1, "warmup_fraction", "final_fraction")


@dataclass
class OwnSchedule(Open):
    """A schedule that is a function or class of the user's."""

    name: str
    _target_: str


# Parts of a preset; null leaves PyTorch's own value.
@dataclass
class _Cudnn:
    enabled: bool | None
    benchmark: bool | None
    deterministic: bool | None
    allow_tf32: bool | None


@dataclass
class _ReducedPrecision:
    float16: bool | None
    bfloat16: bool | None


@dataclass
class _Attention:
    flash: bool | None
    memory_efficient: bool | None
    math: bool | None
    cudnn: bool | None


@dataclass
class _Mkldnn:
    enabled: bool | None
    deterministic: bool | None


@dataclass
class Determinism(Section):
    """A preset: all of its settings, and the environment variables of the training process."""

    name: str
    seeding: bool
    on_nondeterministic: str
    fill_uninitialized_memory: bool
    inductor_deterministic: bool
    cudnn: _Cudnn
    float32_matmul_precision: str | None
    reduced_precision_reduction: _ReducedPrecision
    attention: _Attention
    mkldnn: _Mkldnn
    channels_last: bool
    device: str
    threads: int
    interop_threads: int
    cpu_capability: str | None
    mkl_branch: str | None
    fingerprint_every_steps: int
    env: dict[str, str | None]
    avx: bool | None = None

    def __post_init__(self) -> None:
        self.require_one_of("on_nondeterministic", "error", "warn", "allow")
        self.require_one_of("float32_matmul_precision", "highest", "high", "medium", None)
        self.require_one_of("cpu_capability", "DEFAULT", "AVX2", "AVX512", None)
        self.require_one_of("mkl_branch", "COMPATIBLE", "AUTO", "AVX2", "AVX512", "OFF", None)
        self.require_within(1, 1024, "threads", "interop_threads")
        self.require_within(0, math.inf, "fingerprint_every_steps")
        self.require_device(self.device)
        for name, value in self.env.items():
            is_text = value is None or (isinstance(value, str) and "\0" not in value)
            if not (is_text and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)):
                raise InputError(
                    f"determinism.env.{name}: expected a variable with a text or null, got {value}"
                )


@dataclass
class Trainer(Section):
    """How long a run trains, on what, and what it does on the way."""

    device: str
    max_epochs: int
    max_steps: int | None
    precision: str
    compile: bool
    gradient_clip_norm: float | None
    log_every_steps: int
    validate_every_epochs: int
    checkpoint_every_steps: int
    early_stopping_patience: int | None
    processes: int
    shards: int
    reduce: str
    distributed_timeout_seconds: int
    monitor: str | None = None
    mode: str | None = None
    test_weights: str = "best"
    rehearse_resume: bool = True
    replay_every_steps: int = 0

    def __post_init__(self) -> None:
        self.require_within(1, math.inf, "max_epochs", "max_steps", "early_stopping_patience")
        self.require_within(1, math.inf, "processes", "shards")
        self.require_within(0, math.inf, "log_every_steps", "validate_every_epochs")
        self.require_within(0, math.inf, "checkpoint_every_steps", "replay_every_steps")
        self.require_within(0, math.inf, "gradient_clip_norm")
        self.require_within(1, 86400, "distributed_timeout_seconds")
        self.require_one_of("precision", "float32", "bfloat16")
        self.require_one_of("mode", "min", "max", None)
        self.require_one_of("reduce", "tree", "allreduce")
        self.require_one_of("test_weights", "best", "last")
        self.require_device(self.device)


@dataclass
class Fingerprint(Section):
    """How often fingerprints are taken; 0: never."""

    every_steps: int

    def __post_init__(self) -> None:
        self.require_within(0, math.inf, "every_steps")


@dataclass
class Settings(Section):
    """The configuration of a run, resolved.

    The arguments of classes that users choose stand in the mapping alone.
    """

    seed: int
    objective: str
    seeds: Seeds
    data: Data
    model: Model
    optimizer: Optimizer
    schedule: Any
    determinism: Determinism
    trainer: Trainer
    fingerprint: Fingerprint
    method: Method = field(default_factory=Method)
    files: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    notes: str | None = None
    callbacks: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    logger: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.require_within(0, MAX_SEED, "seed")
        self.seeds.require_within(0, MAX_SEED, *vars(self.seeds))


SECTIONS: dict[str, type[Section]] = {
    each.name: each.type
    for each in fields(Settings)
    if isinstance(each.type, type) and issubclass(each.type, Section)
}


def promises_bits(on_nondeterministic: object) -> bool:
    """Return whether a preset with this setting promises the same bits, whatever its name is."""
    return on_nondeterministic == "error"
