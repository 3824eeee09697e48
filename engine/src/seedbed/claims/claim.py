"""The file of a claim: what is claimed, and by which rule it is decided.

A claim may come from somebody else. It is data: nothing in it is executed or resolved,
and its size is bounded.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedbed.config.settings import MAX_SEED, Rule, one_of
from seedbed.errors import InputError
from seedbed.names import did_you_mean
from seedbed.record import text, untrusted
from seedbed.sweeps.groups import VALIDATION
from seedbed.sweeps.report import MOST_COMPARED

_MOST_BYTES = 64 << 10
_MOST_SEEDS = 1000
_MOST_LETTERS = 500  # of a text
MAXIMIZE, MINIMIZE = "maximize", "minimize"
FIXED, SEQUENTIAL = "fixed", "sequential"
_OPTIONAL = {"title": "", "settings": []}
_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,39}")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_METRIC = re.compile(rf"{VALIDATION}[\w.-]{{1,100}}")
_OWN = ("seed", "claim")  # keys that the commands of a claim set
_STEM = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")


@dataclass(frozen=True)
class Variant:
    """What is compared: settings, and maybe a commit of its own."""

    name: str
    settings: tuple[str, ...]  # overrides
    commit: str | None = None


@dataclass(frozen=True)
class Claim:
    """That each variant is better than the first one, and when that is decided."""

    path: Path
    title: str
    metric: str
    direction: str
    rule: str
    seeds: tuple[int, ...] | int  # a number: as many, drawn from the digest
    smallest_difference: float
    alpha: float
    settings: tuple[str, ...]  # of all variants
    variants: tuple[Variant, ...]

    @property
    def higher_is_better(self) -> bool:
        return self.direction == MAXIMIZE

    @property
    def confidence(self) -> float:
        """That of each interval: with it, all hold at once with 1 - alpha
        (Bonferroni)."""
        return 1 - self.alpha / (len(self.variants) - 1)

    def canonical(self) -> dict[str, Any]:
        """Return the content for the digest: independent of how the file is
        written."""
        return {
            "title": self.title,
            "metric": self.metric,
            "direction": self.direction,
            "rule": self.rule,
            "seeds": self.seeds if isinstance(self.seeds, int) else [*self.seeds],
            "smallest_difference": float(self.smallest_difference),
            "alpha": float(self.alpha),
            "settings": [*self.settings],
            "variants": [
                {
                    "name": variant.name,
                    "settings": [*variant.settings],
                    "commit": variant.commit,
                }
                for variant in self.variants
            ],
        }


def _is_number(value: Any, low: float, high: float) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and low <= value <= high and math.isfinite(value)


def _is_text(value: object) -> bool:
    return (
        isinstance(value, str) and value.isprintable() and len(value) <= _MOST_LETTERS
    )


def _are_seeds(value: object) -> bool:
    """Return whether a value is a number of seeds, or a list of different ones."""
    seeds: list[Any] = value if isinstance(value, list) else [value]
    if any(isinstance(seed, bool) or not isinstance(seed, int) for seed in seeds):
        return False
    if not isinstance(value, list):
        return bool(2 <= seeds[0] <= _MOST_SEEDS)
    are_different = len(set(seeds)) == len(seeds)
    are_valid = all(0 <= seed <= MAX_SEED for seed in seeds)
    return are_different and are_valid and 2 <= len(seeds) <= _MOST_SEEDS


def _are_overrides(value: object) -> bool:
    """Return whether a value is a list of overrides that a command may have beside its
    own."""
    if not isinstance(value, list) or not all(map(_is_text, value)):
        return False
    keys = [word.lstrip("+").partition("=") for word in value]
    return all(
        sign
        and key[:1] not in ("-", "~")
        and key not in _OWN
        and not key.startswith(("hydra", "logger"))
        for key, sign, _ in keys
    )


_SETTINGS = Rule(
    "a list of key=value, without seed, claim, logger and hydra", _are_overrides
)
_RULES = {
    "title": Rule(f"a text of at most {_MOST_LETTERS} characters", _is_text),
    "settings": _SETTINGS,
    "variants": Rule(
        f"2 to {MOST_COMPARED + 1} variants by name",
        lambda value: isinstance(value, dict) and 2 <= len(value) <= MOST_COMPARED + 1,
    ),
    "metric": Rule(
        "a validation value, such as validation_accuracy",
        lambda value: isinstance(value, str) and _METRIC.fullmatch(value),
    ),
    "direction": one_of(MAXIMIZE, MINIMIZE),
    "seeds": Rule(
        f"2 to {_MOST_SEEDS} different integers >= 0, or how many to draw", _are_seeds
    ),
    "rule": one_of(FIXED, SEQUENTIAL),
    "smallest_difference": Rule(
        "a number >= 0, such as 0.002", lambda value: _is_number(value, 0, math.inf)
    ),
    "alpha": Rule(
        "a number from 0.0001 to 0.5", lambda value: _is_number(value, 0.0001, 0.5)
    ),
}


def read(path: Path) -> Claim:
    """Read a claim; raise InputError for a key that is unknown, missing, or
    invalid."""
    if not _STEM.fullmatch(path.stem):  # it is part of commands
        raise InputError(
            f"{path}: expected a file name of letters, digits, '.', _ and -, got"
            f" {path.name!r:.120}"
        )
    tree = {**_OPTIONAL, **untrusted.read_yaml(path, _MOST_BYTES)}
    for key in map(str, tree):
        if key not in _RULES:
            near = did_you_mean(key, _RULES)
            raise InputError(
                f"{path}: {key:.80}: expected a known key, got a new one{near}"
            )
    for key, rule in _RULES.items():
        _require(path, key, rule, tree.get(key))
    if tree["metric"].endswith("loss") and tree["direction"] == MAXIMIZE:
        raise InputError(
            f"{path}: direction: expected {MINIMIZE} for a loss, got {MAXIMIZE}"
        )
    seeds = tree["seeds"]
    return Claim(
        path,
        tree["title"],
        tree["metric"],
        tree["direction"],
        tree["rule"],
        tuple(seeds) if isinstance(seeds, list) else seeds,
        float(tree["smallest_difference"]),
        float(tree["alpha"]),
        tuple(tree["settings"]),
        tuple(_variants(path, tree["variants"])),
    )


def _variants(path: Path, tree: Mapping[Any, Any]) -> Iterator[Variant]:
    """Yield the variants; each is a list of settings, or {commit: ..., settings:
    ...}."""
    names = Rule(
        "a name of letters, digits, _ and -", lambda given: _NAME.fullmatch(given)
    )
    commits = Rule(
        "a commit in hexadecimal digits, in quotes",
        lambda given: isinstance(given, str) and _COMMIT.fullmatch(given),
    )
    parts = Rule(
        "a list of key=value, or a mapping with commit and settings",
        lambda given: (
            isinstance(given, dict) and given.keys() <= {"commit", "settings"}
        ),
    )
    for name, value in tree.items():
        _require(path, "variants", names, str(name))
        key = f"variants.{name}"
        entry: Any = {"settings": value} if isinstance(value, list) else value
        _require(path, key, parts, entry)
        settings = entry.get("settings", [])
        _require(path, f"{key}.settings", _SETTINGS, settings)
        commit = entry.get("commit")
        if commit is not None:
            _require(path, f"{key}.commit", commits, commit)
        yield Variant(str(name), tuple(settings), commit)


def _require(path: Path, key: str, rule: Rule, value: Any) -> None:
    if not rule.allows(value):
        got = "nothing" if value is None else text.as_json(value, indent=None)
        raise InputError(f"{path}: {key}: expected {rule.expected}, got {got:.80}")
