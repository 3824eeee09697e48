"""What each key of Seedbed's own must be. Arguments of a class that users choose have no rule here:
the class checks them itself."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig, ListConfig

from seedbed.errors import InputError
from seedbed.names import STREAMS

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


def _is_text_or_null(value: Any) -> bool:
    return value is None or _is_text(value)


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list | ListConfig) and all(_is_text(name) for name in value)


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


def _is_count(value: Any) -> bool:
    """Return whether a value is an integer >= 1, or a list or mapping, which a model may take."""
    return isinstance(value, Mapping | list | ListConfig) or (type(value) is int and value >= 1)


_FLAG = _choice(True, False)
_OPTIONAL_FLAG = _choice(True, False, None)
_TEXT = Rule("text", _is_text, "name it")
_TARGET = Rule("the dotted name of a class", _is_text, "see docs/extending.md")
_SEED = _integer(0, MAX_SEED, "try seed=0")
_DEVICE = Rule("auto, cpu, cuda, cuda:N or mps", _device, "try trainer.device=auto")

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
    "data.sampler._target_": _TARGET,
    "data.streams": _integer(1, None, "try data.streams=8"),
    "data.samples_per_epoch": _integer(1, None, "try data.samples_per_epoch=10000"),
    "data.outputs": Rule("an integer >= 1", _is_count, "set it to the number of classes or values"),
    "data.task.name": _TEXT,
    "data.train._target_": _TARGET,
    "data.validation._target_": _TARGET,
    "data.task.label_smoothing": _number(0, 1, "try data.task.label_smoothing=0.1"),
    "model.name": _TEXT,
    "model._target_": _TARGET,
    "model.accepts": Rule("a list of kinds of data", _is_list_of_names, "try [image]"),
    "method.name": _TEXT,
    "method._target_": _TARGET,
    "optimizer.name": _TEXT,
    "optimizer._target_": _TARGET,
    "optimizer.lr": _number(0, 1e308, "try optimizer.lr=0.006"),
    "schedule.name": _TEXT,
    "schedule._target_": _TARGET,
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
    "trainer.precision": replace(_choice("float32", "bfloat16"), advice="try bfloat16, or float32"),
    "trainer.compile": _FLAG,
    "trainer.gradient_clip_norm": _number(0, 1e308, "try null", optional=True),
    "trainer.log_every_steps": _integer(0, None, "try trainer.log_every_steps=20"),
    "trainer.validate_every_epochs": _integer(0, None, "try trainer.validate_every_epochs=1"),
    "trainer.checkpoint_every_steps": _integer(0, None, "try trainer.checkpoint_every_steps=200"),
    "trainer.rehearse_resume": _FLAG,
    "trainer.replay_every_steps": _integer(0, None, "try trainer.replay_every_steps=1000"),
    "trainer.monitor": Rule("the name of a value or null", _is_text_or_null, "try null"),
    "trainer.mode": _choice("min", "max", None),
    "trainer.test_weights": _choice("best", "last"),
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
    *("data", "model", "method", "optimizer", "logger", "callbacks", "metrics"),
    *("determinism.env", "files", "trusted_packages"),
)
# Keys that a chosen class may or may not have; the others must be there.
OPTIONAL_KEYS = (
    "data.loading_threads",
    "data.task.name",  # a method may need no task
    "data.sampler._target_",
    "data.streams",
    "data.samples_per_epoch",
    "data.outputs",
    "data.task.label_smoothing",
    "model.accepts",
    "determinism.env.PYTHONHASHSEED",
    "determinism.avx",  # records from before it have none
    "files",  # likewise
    *("trainer.rehearse_resume", "trainer.replay_every_steps"),  # likewise
    *("schedule._target_", "method.name", "method._target_", "trainer.monitor", "trainer.mode"),
    "trainer.test_weights",  # records from before it tested the last ones
)
SUPERVISED = "seedbed.methods.Supervised"  # the method where a configuration names none
TASKS = ("classification", "regression")  # others come with a `_target_`


def require_sections(config: DictConfig) -> None:
    """Raise InputError for a section of a configuration that holds no keys, such as a list."""
    require_replayable(config)
    for key in RULES:
        place: Any = config
        *sections, _ = key.split(".")
        for number, name in enumerate(sections, 1):
            place = place.get(name)
            if place is None:  # the rules say what is missing
                break
            if not isinstance(place, DictConfig):
                got = "a list" if isinstance(place, ListConfig) else repr(place)
                section = ".".join(sections[:number])
                named = f"write task: {{name: {place if place in TASKS else 'classification'}}}"
                advice = named if section == "data.task" else "write them as configs/ has them"
                raise InputError(f"{section}: expected a section with keys, got {got}; {advice}")


def require_replayable(config: Mapping[str, Any]) -> None:
    """Raise InputError for the settings of a loop of one's own, which no command can repeat."""
    if "recorder" in config:
        raise InputError(
            "recorder: expected a run of train.py, got the record of a training loop of one's own "
            "(seedbed.Recorder), which only its own script can repeat; scripts/compare.py reads it"
        )


def promises_bits(on_nondeterministic: object) -> bool:
    """Return whether a preset with this setting promises the same bits, whatever its name is."""
    return on_nondeterministic == "error"
