"""What a search asks for: a file of configs/hparams_search/, and overrides."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep
from hydra.errors import HydraException
from optuna import distributions
from optuna.distributions import BaseDistribution

from seedbed import project
from seedbed.config import compose
from seedbed.errors import InputError
from seedbed.names import did_you_mean
from seedbed.record import text

GROUP = "hparams_search"
_DIRECTIONS = ("maximize", "minimize")
_TYPES: dict[str, tuple[type, ...]] = {
    "n_trials": (int,),
    "direction": (str,),
    "seed": (int,),
    "sampler": (dict,),
    "pruner": (dict,),
    "params": (dict,),
    "overrides": (list,),
}


@dataclass(frozen=True)
class Asked:
    """A search: all but `n_trials` must be the same when it is continued."""

    n_trials: int
    direction: str
    seed: int
    params: Mapping[str, str]  # sweeps in Hydra's grammar, by key
    sampler: Mapping[str, Any] = field(
        default_factory=lambda: {"_target_": "optuna.samplers.TPESampler"}
    )
    pruner: Mapping[str, Any] = field(
        default_factory=lambda: {"_target_": "optuna.pruners.NopPruner"}
    )
    overrides: Sequence[str] = ()  # of each trial, before those of the search

    @property
    def plain(self) -> dict[str, Any]:
        """What stays the same however many trials are asked for."""
        return {key: value for key, value in asdict(self).items() if key != "n_trials"}


def read(words: Sequence[str]) -> Asked:
    """Return the search that `hparams_search=NAME` and overrides ask for."""
    compose.parse([word for word in words if not word.startswith(f"{GROUP}.params.")])
    names = [word.partition("=")[2] for word in words if word.startswith(f"{GROUP}=")]
    known = sorted(path.stem for path in (project.configs() / GROUP).glob("*.yaml"))
    if len(names) != 1 or names[0] not in known:
        got = " ".join(names) or "none"
        raise InputError(
            f"{GROUP}: expected one file of configs/{GROUP}/ ({', '.join(known)}), got"
            f" {got}"
        )
    path = project.configs() / GROUP / f"{names[0]}.yaml"
    try:
        tree = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise InputError(
            f"{path}: expected YAML, got {' '.join(str(error).split())}"
        ) from None
    tree = dict(tree) if isinstance(tree, dict) else {}
    others = []
    for word in words:
        key, _, value = word.partition("=")
        if key.startswith(f"{GROUP}."):
            _replace(tree, key.split(".", 2)[1:], value)
        elif key != GROUP:
            others.append(word)
    tree["overrides"] = [*(tree.get("overrides") or []), *others]
    return _checked(tree)


def _replace(tree: dict[str, Any], path: Sequence[str], value: str) -> None:
    name, *inner = path
    if not inner:
        tree[name] = yaml.safe_load(value)
    elif isinstance(tree.get(name), dict):
        parsed = value if name == "params" else yaml.safe_load(value)
        tree[name] = {**tree[name], inner[0]: parsed}
    else:
        raise InputError(
            f"{GROUP}.{name}: expected a section of the file, got {tree.get(name)}"
        )


def _checked(tree: Mapping[str, Any]) -> Asked:
    required = ("n_trials", "direction", "seed", "params")
    if missing := [key for key in required if tree.get(key) is None]:
        raise InputError(f"{GROUP}.{missing[0]}: expected a value, got none")
    for key, value in tree.items():
        kinds = _TYPES.get(key)
        if kinds is None:
            near = did_you_mean(key, _TYPES)
            raise InputError(
                f"{GROUP}.{key}: expected one of {', '.join(_TYPES)}, got {key}{near}"
            )
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise InputError(
                f"{GROUP}.{key}: expected {kinds[0].__name__}, got {value!r:.80}"
            )
    if tree["direction"] not in _DIRECTIONS:
        raise InputError(
            f"{GROUP}.direction: expected {' or '.join(_DIRECTIONS)}, got"
            f" {tree['direction']}"
        )
    if tree["n_trials"] < 1 or tree["seed"] < 0:
        raise InputError(f"{GROUP}: expected n_trials >= 1 and seed >= 0, got others")
    params = {key: str(value) for key, value in tree["params"].items()}
    return Asked(**{**tree, "params": params})


def distributions_of(params: Mapping[str, str]) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions of the sweeps of a search, by key."""
    return {key: _distribution(key, value) for key, value in params.items()}


def _distribution(key: str, sweep: str) -> BaseDistribution:
    """Return the distribution of `a,b,c`, choice(...), range(...) or interval(...).

    `tag(log, interval(...))` is logarithmic, and `int(interval(...))` of integers; as
    in Hydra, a range ends before its stop.
    """
    try:
        override = OverridesParser.create().parse_override(f"{key}={sweep}")
        value: Any = override.value()
        if isinstance(value, ChoiceSweep):
            words = [str(word) for word in override.sweep_string_iterator()]
            return distributions.CategoricalDistribution(words)
        if isinstance(value, RangeSweep):
            return _range(value)
        if (
            isinstance(value, IntervalSweep)
            and value.start is not None
            and value.end is not None
        ):
            is_log = "log" in value.tags
            if isinstance(value.start, int) and isinstance(value.end, int):
                return distributions.IntDistribution(value.start, value.end, log=is_log)
            return distributions.FloatDistribution(value.start, value.end, log=is_log)
        got = sweep
    except (HydraException, ValueError) as error:
        got = f"{sweep}: {' '.join(str(error).split())[:200]}"
    raise InputError(
        f"{GROUP}.params.{key}: expected choice(a,b), range(1,8,step=2),"
        f" interval(0.1,0.2) or tag(log,interval(0.001,0.1)), got {got}"
    )


def _range(value: RangeSweep) -> BaseDistribution:
    start = value.start
    stop = value.stop
    step = value.step
    if start is None or stop is None or not step > 0 or not start < stop:
        raise ValueError("start < stop and step > 0")
    if all(isinstance(number, int) for number in (start, stop, step)):
        last = range(int(start), int(stop), int(step))[-1]
        return distributions.IntDistribution(int(start), last, step=int(step))
    count = -int(-(stop - start) // step) - 1
    return distributions.FloatDistribution(start, start + count * step, step=step)


def override(key: str, value: Any) -> str:
    """Return the override that sets a key to a trial's value."""
    return f"{key}={value if isinstance(value, str) else text.show(value)}"


def folder_of(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return what `hydra.sweep.dir=` says, and the other words."""
    folder_words = [w for w in words if re.match(r"hydra\.sweep\.dir=", w)]
    others = [word for word in words if word not in folder_words]
    return (
        folder_words[-1].partition("=")[2].strip("'\"") if folder_words else None
    ), others
