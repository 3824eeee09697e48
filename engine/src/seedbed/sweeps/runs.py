"""The parts of a run folder that a report on a sweep needs."""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from seedbed import config, record
from seedbed.errors import InputError
from seedbed.record import change, untrusted

_IS_SEED = re.compile(r"seed|seeds\..*|.*\.seeds?|data\.(.+\.)?fold")
# Of environment.json: code, versions and hardware; if equal, equal seeds give equal weights.
_ORIGIN = ("imported_files", "versions", "cpu", "gpu", "flags")

Seeds = tuple[tuple[str, Any], ...]  # key and value, sorted


@dataclass(frozen=True)
class Run:
    """The parts of a run folder that a report needs."""

    name: str  # the folder, relative to the sweep's
    folder: Path
    failure: str = ""  # why the run did not finish, or cannot be read
    settings: Mapping[str, Any] = field(default_factory=dict)  # without seeds or neutral keys
    seeds: Seeds = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    metric: str = ""  # the final metric to report
    shows_test: bool = True  # whether test values are among the metrics

    @property
    def identity(self) -> list[tuple[str, Any]]:
        """The settings in which the runs of a group are equal."""
        return sorted(self.settings.items())

    @property
    def problem(self) -> str:
        """Why the run is left out; empty if it counts."""
        return self.failure or f"has no finite {self.metric}" * (self.metric not in self.metrics)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """All finite final metrics that the report may show."""
        final = self.summary.get("metrics", {}).items()
        shown = {name: value for name, value in final if self.shows_test or not is_test(name)}
        numbers = {name: float(v) for name, v in shown.items() if isinstance(v, int | float)}
        return {name: value for name, value in numbers.items() if math.isfinite(value)}

    def monitored(self, phase: str) -> str:
        """Return the final metric that the run followed, on a split if the run has it."""
        name = f"{phase}_{self.summary.get('metric_name')}"
        has_it = isinstance(self.summary.get("metrics", {}).get(name), int | float)
        return name if has_it else f"validation_{self.summary.get('metric_name')}"

    @property
    def weights(self) -> str:
        """The fingerprint of the final weights; empty if the record has none."""
        return str(self.summary.get("fingerprints", {}).get("weights", ""))

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        with suppress(InputError):
            return record.read_json(self.folder / "environment.json")
        return {}

    def promise(self) -> str | None:
        """Return a string that is equal for runs that must have equal weights; None: no promise."""
        if not config.promises_bits(self.settings.get("determinism.on_nondeterministic")):
            return None
        own = [self.identity, self.seeds, record.altered(self.summary)]
        return json.dumps([*own, *map(self.environment.get, _ORIGIN)], default=str)


def pairs(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as in a command: `model=lstm`, `optimizer.lr=0.1`."""
    return [f"{key.removesuffix('.name')}={value}" for key, value in settings.items()]


def is_test(metric: str) -> bool:
    return metric.startswith(("test_", "last_test_"))


def read_run(folder: Path, sweep: Path) -> Run:
    name = str(folder.relative_to(sweep))
    try:
        tree = untrusted.read_dict(folder)
        summary = record.read_summary(folder)
    except InputError as error:
        return Run(name, folder, f"unreadable: {error}")
    status, reason = str(summary.get("status")), str(summary.get("error") or "").partition("\n")[0]
    failure = {"finished": "", "running": "running, or killed"}.get(status, f"{status} {reason}")
    metrics, hashes = summary.get("metrics"), summary.get("fingerprints")
    if not isinstance(metrics, dict) or not isinstance(hashes, dict):
        return Run(name, folder, failure or "unreadable: summary.json lacks entries")
    settings, seeds = _without_seeds(record.flatten({**tree, "logger": None}))
    return Run(name, folder, failure, settings, seeds, summary)


def _without_seeds(flat: Mapping[str, Any]) -> tuple[dict[str, Any], Seeds]:
    """Split a flat configuration into settings and seeds, also those passed to classes.

    Left out are keys that change no bit, and statistics of the training samples of each fold.
    """
    settings: dict[str, Any] = {}
    seeds: dict[str, Any] = {}
    for key, value in flat.items():
        several = value if isinstance(value, list) else [value]
        if _IS_SEED.fullmatch(key) and all(isinstance(each, int) for each in several):
            seeds[key] = tuple(value) if isinstance(value, list) else value
        elif ".statistics." in key and not key.startswith("data.statistics."):
            continue
        elif not change.matches(key, change.NEUTRAL_KEYS):
            settings[key] = value
    return settings, tuple(sorted(seeds.items()))
