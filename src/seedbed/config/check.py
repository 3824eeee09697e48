"""The schema of the configuration, and every check of it.

Checked twice: by `train.py` before anything is written, and by the training process, whose only
input is the file. Parts that belong to a class that users choose (a data set's, a model's, an
optimizer's arguments) are open; the class checks them itself.
"""

import difflib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seedbed.errors import InputError
from seedbed.record import STREAMS

MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Rule:
    """What a value must be, in words and as a test, and what to do when it is not."""

    expected: str
    holds: Callable[[Any], bool]
    advice: str


def _integer(low: int, high: int | None, advice: str, optional: bool = False) -> Rule:
    limits = f">= {low}" if high is None else f"from {low} to {high}"

    def holds(value: Any) -> bool:
        if value is None:
            return optional
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and value >= low and (high is None or value <= high)

    return Rule(f"an integer {limits}{' or null' if optional else ''}", holds, advice)


def _number(low: float, high: float, advice: str, optional: bool = False) -> Rule:
    def holds(value: Any) -> bool:
        if value is None:
            return optional
        return (
            isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        )

    words = f"a number from {low:g} to {high:g}" if high < 1e300 else f"a number >= {low:g}"
    return Rule(f"{words}{' or null' if optional else ''}", holds, advice)


def _choice(*options: Any) -> Rule:
    words = ", ".join("null" if option is None else str(option).lower() for option in options)

    def holds(value: Any) -> bool:
        return any(
            value is option or (value == option and type(value) is type(option))
            for option in options
        )

    return Rule(f"one of {words}", holds, f"try {str(options[0]).lower()}")


def _device(value: Any) -> bool:
    return bool(re.fullmatch("auto|cpu|mps|cuda(:[0-9]{1,2})?", str(value)))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list | ListConfig) and all(_is_text(name) for name in value)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list | ListConfig) and all(type(n) is int and n >= 1 for n in value)


def _are_variables(value: Any) -> bool:
    """Return whether a mapping can be environment variables: the system takes no others."""
    return isinstance(value, Mapping) and all(
        re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name))
        and not isinstance(text, Mapping | list | ListConfig)
        and "\0" not in str(text)
        for name, text in value.items()
    )


def _is_hash_seed(value: Any) -> bool:
    """Return whether Python starts with a value as PYTHONHASHSEED."""
    text = str(value)
    return (
        value is None
        or text == "random"
        or (bool(re.fullmatch("[0-9]{1,10}", text)) and int(text) < 1 << 32)
    )


_FLAG = _choice(True, False)
_OPTIONAL_FLAG = _choice(True, False, None)
_TEXT = Rule("text", _is_text, "name it")
_TARGET = Rule("the dotted name of a class", _is_text, "see docs/extending.md")
_SEED = _integer(0, MAX_SEED, "try seed=0")
_DEVICE = Rule("auto, cpu, cuda, cuda:N or mps", _device, "try trainer.device=auto")


_SHAPE = Rule("a list of integers >= 1", _is_shape, "try [1,28,28]")

# Every key that belongs to Seedbed itself.
RULES: dict[str, Rule] = {
    "seed": _integer(0, MAX_SEED, "try seed=0", optional=True),
    **{f"seeds.{stream}": _SEED for stream in STREAMS},
    "objective": _TEXT,
    "data.name": _TEXT,
    "data.batch_size": _integer(1, None, "try data.batch_size=64"),
    "data.eval_batch_size": _integer(1, None, "try data.eval_batch_size=500"),
    "data.num_workers": _integer(0, 1024, "try data.num_workers=0"),
    "data.persistent_workers": _FLAG,
    "data.prefetch_factor": _integer(1, None, "try data.prefetch_factor=2"),
    "data.start_method": _choice("fork", "spawn", "forkserver"),
    "data.loading_threads": _choice(1, "all"),
    "data.input_shape": _SHAPE,
    "data.outputs": _integer(1, None, "set it to the number of classes, or of values"),
    "data.task.name": _TEXT,
    "data.train._target_": _TARGET,
    "data.validation._target_": _TARGET,
    "data.task.label_smoothing": _number(0, 1, "try data.task.label_smoothing=0.1"),
    "model.name": _TEXT,
    "model._target_": _TARGET,
    "model.input_shape": _SHAPE,
    "model.accepts": Rule("a list of kinds of data", _is_list_of_names, "try [image]"),
    "model.hidden_size": _integer(1, None, "try model.hidden_size=128"),
    "model.layers": _integer(1, None, "try model.layers=1"),
    "model.dropout": _number(0, 1, "try model.dropout=0.1"),
    "optimizer.name": _TEXT,
    "optimizer._target_": _TARGET,
    "optimizer.lr": _number(0, 1e308, "try optimizer.lr=0.006"),
    "schedule.name": _TEXT,
    "schedule.warmup_fraction": _number(0, 1, "try schedule.warmup_fraction=0.25"),
    "schedule.final_fraction": _number(0, 1, "try schedule.final_fraction=0"),
    "determinism.name": _TEXT,
    "determinism.seeding": _FLAG,
    "determinism.on_nondeterministic": _choice("error", "warn", "allow"),
    "determinism.fill_uninitialized_memory": _FLAG,
    "determinism.inductor_deterministic": _FLAG,
    "determinism.cudnn.enabled": _OPTIONAL_FLAG,
    "determinism.cudnn.benchmark": _OPTIONAL_FLAG,
    "determinism.cudnn.deterministic": _OPTIONAL_FLAG,
    "determinism.cudnn.allow_tf32": _OPTIONAL_FLAG,
    "determinism.float32_matmul_precision": _choice("highest", "high", "medium", None),
    "determinism.reduced_precision_reduction.float16": _OPTIONAL_FLAG,
    "determinism.reduced_precision_reduction.bfloat16": _OPTIONAL_FLAG,
    "determinism.attention.flash": _OPTIONAL_FLAG,
    "determinism.attention.memory_efficient": _OPTIONAL_FLAG,
    "determinism.attention.math": _OPTIONAL_FLAG,
    "determinism.attention.cudnn": _OPTIONAL_FLAG,
    "determinism.mkldnn.enabled": _OPTIONAL_FLAG,
    "determinism.mkldnn.deterministic": _OPTIONAL_FLAG,
    "determinism.channels_last": _FLAG,
    "determinism.threads": _integer(1, 1024, "try determinism.threads=2"),
    "determinism.interop_threads": _integer(1, 1024, "try determinism.interop_threads=1"),
    "determinism.cpu_capability": _choice("DEFAULT", "AVX2", "AVX512", None),
    "determinism.mkl_branch": _choice("COMPATIBLE", "AUTO", "AVX2", "AVX512", "OFF", None),
    "determinism.avx": _OPTIONAL_FLAG,
    "determinism.device": _DEVICE,
    "determinism.env": Rule(
        "environment variables with a text or null each", _are_variables, "see configs/determinism/"
    ),
    "determinism.env.PYTHONHASHSEED": Rule(
        "an integer from 0 to 4294967295, random or null", _is_hash_seed, "try 0"
    ),
    "determinism.fingerprint_every_steps": _integer(0, None, "try 1"),
    "trainer.device": _DEVICE,
    "trainer.max_epochs": _integer(1, None, "try trainer.max_epochs=16"),
    "trainer.max_steps": _integer(1, None, "try trainer.max_steps=null", optional=True),
    "trainer.precision": _choice("float32", "bfloat16"),
    "trainer.compile": _FLAG,
    "trainer.gradient_clip_norm": _number(0, 1e308, "try null", optional=True),
    "trainer.log_every_steps": _integer(0, None, "try trainer.log_every_steps=20"),
    "trainer.validate_every_epochs": _integer(0, None, "try trainer.validate_every_epochs=1"),
    "trainer.checkpoint_every_steps": _integer(0, None, "try trainer.checkpoint_every_steps=200"),
    "trainer.early_stopping_patience": _integer(1, None, "try null", optional=True),
    "trainer.processes": _integer(1, None, "try trainer.processes=1"),
    "trainer.shards": _integer(1, None, "try trainer.shards=1"),
    "trainer.reduce": _choice("tree", "allreduce"),
    "trainer.distributed_timeout_seconds": _integer(
        1, 86400, "try trainer.distributed_timeout_seconds=60"
    ),
    "fingerprint.every_steps": _integer(0, None, "try fingerprint.every_steps=1"),
    "files": Rule("a list of paths", _is_list_of_names, "try [] or [weights.pt]"),
    "trusted_packages": Rule("a list of packages", _is_list_of_names, "see configs/config.yaml"),
}
# Sections whose other keys are arguments of a class that the user chooses.
OPEN_SECTIONS = (
    *("data", "model", "optimizer", "logger"),
    *("determinism.env", "files", "trusted_packages"),
)
# Keys that a chosen class may or may not have; the others must be there.
OPTIONAL_KEYS = (
    "data.loading_threads",
    "data.input_shape",
    "data.outputs",
    "data.task.label_smoothing",
    "model.accepts",
    "model.input_shape",
    "model.hidden_size",
    "model.layers",
    "model.dropout",
    "determinism.env.PYTHONHASHSEED",
    "determinism.avx",  # records from before it have none
    "files",  # likewise
)
TASKS = ("classification", "regression")  # others come with a `_target_`


def resolve(composed: DictConfig) -> DictConfig:
    """Return the configuration with its seed drawn if it is null, and nothing left to look up."""
    config = OmegaConf.create(OmegaConf.to_container(composed))
    assert isinstance(config, DictConfig)
    try:
        if config.get("seed", 0) is None:
            config.seed = secrets.randbits(63)
        OmegaConf.resolve(config)
        plain = OmegaConf.to_container(config, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "configuration"
        reason = str(error).splitlines()[0]
        raise InputError(f"{key}: expected a value, got {reason}; set it") from None
    return OmegaConf.create(plain)  # type: ignore[return-value]


def check(config: DictConfig) -> None:
    """Raise InputError for the first thing in a resolved configuration that cannot be."""
    for key, rule in RULES.items():
        value = OmegaConf.select(config, key, default=_MISSING)
        if value is _MISSING:
            if key not in OPTIONAL_KEYS:
                raise InputError(f"{key}: expected {rule.expected}, got nothing; {rule.advice}")
        elif not rule.holds(value):
            raise InputError(f"{key}: expected {rule.expected}, got {_show(value)}; {rule.advice}")
    _check_known(OmegaConf.to_container(config))  # type: ignore[arg-type]
    _check_targets(config)
    _check_combination(config)
    if config.get("logger"):
        from seedbed import loggers  # a part that can be deleted

        loggers.check(config.logger)


_MISSING: Any = object()


def _show(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, str) else str(value)


def nearest(name: str, names: Sequence[str]) -> str:
    """Return `did you mean X`-style advice: the known name most like an unknown one.

    Of dotted names, those in the same section come first, and are compared by their last parts.
    """
    section, _, last = name.rpartition(".")
    beside = {
        known.rpartition(".")[2]: known
        for known in reversed(names)
        if not section or known.rpartition(".")[0] == section
    }
    close = difflib.get_close_matches(last, beside, n=1, cutoff=0.6)
    elsewhere = [known for known in names if known not in beside.values()]
    found = [beside[part] for part in close] or difflib.get_close_matches(name, elsewhere, n=1)
    return f"did you mean {found[0]}" if found else "see `python train.py --cfg job`"


def _check_known(tree: Mapping[str, Any], prefix: str = "") -> None:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in OPEN_SECTIONS or key in RULES:
            continue
        if isinstance(value, Mapping) and any(rule.startswith(f"{key}.") for rule in RULES):
            _check_known(value, f"{key}.")
            continue
        raise InputError(f"{key}: expected a known key, got a new one; {nearest(key, list(RULES))}")


def _check_targets(config: DictConfig) -> None:
    trusted = tuple(config.trusted_packages)

    def walk(tree: Any, key: str) -> None:
        if isinstance(tree, Mapping):
            target = tree.get("_target_")
            if target is not None and not is_trusted(str(target), trusted):
                raise InputError(
                    f"{key}._target_: expected a class from trusted_packages "
                    f"({', '.join(trusted)}), got {target}; add its package to trusted_packages"
                )
            for name, value in tree.items():
                walk(value, f"{key}.{name}" if key else str(name))
        elif isinstance(tree, list):
            for index, value in enumerate(tree):
                walk(value, f"{key}[{index}]")

    walk(OmegaConf.to_container(config), "")


def is_trusted(target: str, trusted: Sequence[str]) -> bool:
    """Return whether a dotted name is one of those trusted, or lies in a trusted package."""
    return target in trusted or any(target.startswith(f"{package}.") for package in trusted)


def _check_combination(config: DictConfig) -> None:
    accepts = config.model.get("accepts")
    kind = config.data.get("kind")
    if accepts is not None and kind is not None and kind not in accepts:
        raise InputError(
            f"model: expected a model for data of kind {kind} (data={config.data.name}), got "
            f"{config.model.name}, which takes {' or '.join(accepts)}; try model=lstm"
        )
    task = config.data.task
    if "_target_" not in task and task.name not in TASKS:
        raise InputError(
            f"data.task.name: expected one of {', '.join(TASKS)}, or a task with a _target_, got "
            f"{_show(task.name)}; see docs/extending.md"
        )
    check_shards(config.trainer.shards, config.trainer.processes, config.data.batch_size)
    if config.determinism.on_nondeterministic == "error" and config.fingerprint.every_steps == 0:
        raise InputError(
            "fingerprint.every_steps: expected an integer >= 1 where bits are promised, got 0; "
            "try fingerprint.every_steps=100 or determinism=seeded"
        )


def check_shards(shards: int, processes: int, batch_size: int) -> None:
    """Raise InputError unless a batch can be cut into shards, and processes can share them."""
    for key, value in (("processes", processes), ("shards", shards)):
        lower = 1 << (value.bit_length() - 1)
        if value != lower:
            raise InputError(
                f"trainer.{key}: expected a power of two, whose sums pair up, got {value}; "
                f"try trainer.{key}={lower}"
            )
    if shards < processes:
        raise InputError(
            f"trainer.shards: expected at least one for each of {processes} processes, got "
            f"{shards}; try trainer.shards={processes}"
        )
    if batch_size % shards:
        raise InputError(
            f"trainer.shards: expected a divisor of data.batch_size ({batch_size}), got {shards}; "
            f"try data.batch_size={max(batch_size - batch_size % shards, shards)}"
        )
