"""The keys of a configuration, their types and ranges, as OmegaConf structured configs.

The values and their documentation are in configs/. Of a user-selected class (data set,
model, optimizer), only the keys that the engine reads are declared; the others are its
arguments.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

MAX_SEED = 2**63 - 1
# else a `_target_`
TASKS = ("classification", "binary", "multilabel", "regression", "quantile")
# of torch.compile
COMPILE_MODES = (
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)


class Rule(NamedTuple):
    """A constraint on a value beyond its type; null is exempt where the type allows
    it."""

    expected: str
    allows: Callable[[Any], object]  # whether it does


def numbers(low: float, high: float = math.inf) -> Rule:
    is_integer = isinstance(low, int)  # of 64 bits, as YAML is read
    noun, most = (
        ("an integer", min(high, MAX_SEED)) if is_integer else ("a number", high)
    )
    limits = f">= {low:g}" if high == math.inf else f"from {low} to {high}"
    return Rule(
        f"{noun} {limits}", lambda value: low <= value <= most and math.isfinite(value)
    )


def one_of(*options: object) -> Rule:
    names = (str(x).lower() if isinstance(x, bool) else str(x) for x in options)
    return Rule(f"one of {', '.join(names)}", lambda value: value in options)


def of(*names: str) -> Rule:
    return Rule(
        f"values for {', '.join(names)}", lambda flags: set(flags) == set(names)
    )


DIGEST = Rule(
    "the SHA-256 that scripts/claim.py new prints",
    re.compile("[0-9a-f]{64}").fullmatch,
)
TEXTS = Rule(
    "texts or null", lambda env: all(isinstance(x, str | None) for x in env.values())
)
Flags = dict[str, bool | None]  # null: PyTorch's default
Count = Annotated[int, numbers(1)]
Steps = Annotated[int, numbers(0)]  # 0: never
_LENGTHS = Rule(
    "numbers of samples >= 0", lambda lengths: min(lengths, default=-1) >= 0
)
Lengths = Annotated[list[int], _LENGTHS]  # one for each stream
Threads = Annotated[int, numbers(1, 1024)]
Fraction = Annotated[float, numbers(0.0, 1.0)]
NotNegative = Annotated[float, numbers(0.0)]
Seed = Annotated[int, numbers(0, MAX_SEED)]
_DEVICES = re.compile("auto|cpu|mps|cuda(:[0-9]{1,2})?")
Device = Annotated[str, Rule("auto, cpu, cuda, cuda:N or mps", _DEVICES.fullmatch)]
_TASK = f"a name of {', '.join(TASKS)}, or a task with a _target_"
Task = Annotated[
    dict[str, Any], Rule(_TASK, lambda x: "_target_" in x or x.get("name") in TASKS)
]


@dataclass
class Seeds:
    """The seed of each stream of randomness."""

    init: Seed
    order: Seed
    augment: Seed
    dropout: Seed
    data: Seed
    split: Seed


@dataclass
class Data:
    """How samples are loaded, and the data sets: `train`, `validation` and `test`.

    `dataset` has the arguments that they share.
    """

    name: str
    batch_size: Count
    eval_batch_size: Count
    num_workers: Annotated[int, numbers(0, 1024)]
    persistent_workers: bool
    prefetch_factor: Count
    start_method: Annotated[str, one_of("fork", "spawn", "forkserver")]
    dataset: dict[str, Any] | None = None
    train: dict[str, Any] = field(default_factory=dict)
    validation: dict[str, Any] = field(default_factory=dict)
    test: dict[str, Any] | None = field(default_factory=dict)
    task: Task | None = None
    sampler: dict[str, Any] | None = None
    streams: Count | None = None
    stream_lengths: Lengths | None = None
    samples_per_epoch: Count | None = None
    loading_threads: Annotated[Any, one_of(1, "all")] = 1
    collate: Any = None
    training_collate: Any = None
    statistics: Any = None
    compare_splits: bool = True

    def spec(self, split: str) -> dict[str, Any] | None:
        """Return the class and arguments of the data set of a split; None if there is
        none.

        It gets the arguments in `dataset`, its `split`, and its own keys, which win.
        """
        arguments: dict[str, Any] | None = getattr(self, split)
        if arguments is None or self.dataset is None:
            return arguments or None
        return merged({**self.dataset, "split": split}, arguments)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings merged, in which the values of the second one win."""
    both = {**base, **over}
    for key in base.keys() & over.keys():
        if isinstance(base[key], Mapping) and isinstance(over[key], Mapping):
            both[key] = merged(base[key], over[key])
    return both


@dataclass
class Chosen:
    """A user-selected class, such as a schedule; other keys are its arguments."""

    name: str
    _target_: str


@dataclass
class Optimizer(Chosen):
    """An optimizer and its peak learning rate."""

    lr: NotNegative


@dataclass
class Schedule:
    """The learning-rate schedule: a warm-up, then a fall to a fraction of the peak."""

    name: str
    warmup_fraction: Fraction
    final_fraction: Fraction
    warmup_steps: Steps | None = None  # instead of the fraction of all steps
    warmup_epochs: NotNegative | None = None


@dataclass
class Plateau:
    """Learning rates that fall when validations bring no gain, as `ReduceLROnPlateau`
    has them."""

    name: str
    warmup_fraction: Fraction
    factor: Fraction
    patience: Steps
    threshold: NotNegative
    min_factor: Fraction
    warmup_steps: Steps | None = None
    warmup_epochs: NotNegative | None = None


@dataclass
class Determinism:
    """A preset: its settings, and the environment variables of the training process."""

    name: str
    seeding: bool
    on_nondeterministic: Annotated[str, one_of("error", "warn", "allow")]
    fill_uninitialized_memory: Annotated[Any, one_of("rehearsal", True, False)]
    inductor_deterministic: bool
    cudnn: Annotated[Flags, of("enabled", "benchmark", "deterministic", "allow_tf32")]
    float32_matmul_precision: Annotated[str, one_of("highest", "high", "medium")] | None
    reduced_precision_reduction: Annotated[Flags, of("float16", "bfloat16")]
    attention: Annotated[Flags, of("flash", "memory_efficient", "math", "cudnn")]
    mkldnn: Annotated[Flags, of("enabled", "deterministic")]
    channels_last: bool
    device: Device
    threads: Threads
    interop_threads: Threads
    cpu_capability: Annotated[str, one_of("DEFAULT", "AVX2", "AVX512")] | None
    mkl_branch: (
        Annotated[str, one_of("COMPATIBLE", "AUTO", "AVX2", "AVX512", "OFF")] | None
    )
    fingerprint_every_steps: Steps
    env: Annotated[dict[str, str | None], TEXTS]
    avx: bool | None = None
    replace: bool = False  # in records from before there were replacements
    replace_except: list[str] = field(default_factory=list)


@dataclass
class Trainer:
    """Run length, device, precision and processes, and how often a run logs and
    validates."""

    device: Device
    max_epochs: Count
    max_steps: Count | None
    precision: Annotated[str, one_of("float32", "bfloat16", "float16")]
    compile: Annotated[Any, one_of(False, True, *COMPILE_MODES)]
    gradient_clip_norm: NotNegative | None
    log_every_steps: Steps
    validate_every_epochs: Steps
    checkpoint_every_steps: Steps
    early_stopping_patience: Count | None
    processes: Count
    shards: Count
    reduce: Annotated[str, one_of("tree", "allreduce")]
    distributed_timeout_seconds: Annotated[int, numbers(1, 86400)]
    monitor: str | None = None
    mode: Annotated[str, one_of("min", "max")] | None = None
    test_weights: Annotated[str, one_of("best", "last")] = "best"
    rehearse_resume: bool = True
    replay_every_steps: Steps = 0
    accumulate: Count = 1
    limit_train_batches: Count | None = None
    limit_validation_batches: Count | None = None
    limit_test_batches: Count | None = None
    overfit_batches: Count | None = None
    validate_every_steps: Steps = 0
    keep_checkpoint_every_steps: Steps = 0
    keep_best: Count = 1
    in_process: bool = False
    detect_anomaly: bool = False
    profile_steps: Steps = 0
    sharding: Annotated[str, one_of("none", "full")] = "none"
    shard_modules: list[str] | None = None
    cuda_graph: bool = False

    @property
    def slices(self) -> int:
        """The number of slices of a step: the shards of each batch that it
        accumulates."""
        return self.shards * self.accumulate


@dataclass
class Fingerprint:
    """How often fingerprints are taken; 0: never."""

    every_steps: Steps


@dataclass
class Settings:
    """The configuration of a run, resolved."""

    seed: Seed
    seeds: Seeds
    data: Data
    model: Chosen
    method: Chosen
    optimizer: Optimizer
    # Schedule | Plateau | Chosen, a union that OmegaConf does not support
    schedule: Any
    determinism: Determinism
    trainer: Trainer
    fingerprint: Fingerprint
    objective: str | None = None  # the monitored value
    files: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    notes: str | None = None
    claim: Annotated[str, DIGEST] | None = None
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    logger: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # All of it as dicts and lists, including arguments of user-selected classes.
        self.plain: dict[str, Any] = {}


def promises_bits(on_nondeterministic: object) -> bool:
    """Return whether a preset with this setting promises the same bits, regardless of
    its name."""
    return on_nondeterministic == "error"
