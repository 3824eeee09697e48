"""Reading a sweep into groups of runs that differ only in seeds; a data fold counts as a seed."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from seedbed import record
from seedbed.errors import InputError, printable
from seedbed.record import change, untrusted
from seedbed.sweeps import statistics

_IS_SEED = re.compile(r"seed|seeds\..*|.*\.seeds?|data\.(.+\.)?fold")

Seeds = tuple[tuple[str, Any], ...]  # key and value, sorted


@dataclass(frozen=True)
class SweepRun:
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

    @property
    def weights(self) -> str:
        """The fingerprint of the final weights; empty if the record has none."""
        return str(self.summary.get("fingerprints", {}).get("weights", ""))

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        with suppress(InputError):
            return record.read_json(self.folder / "environment.json")
        return {}


@dataclass(frozen=True)
class Group:
    """Finished runs of one configuration; `varied` distinguishes it from the other groups."""

    varied: Mapping[str, Any]
    runs: Sequence[SweepRun]

    @property
    def label(self) -> str:
        """The varied settings, as in `model=lstm, optimizer.lr=0.1`; empty for a single group."""
        return printable(", ".join(pairs(self.varied))).replace("\n", " ")

    @property
    def metric(self) -> str:
        return self.runs[0].metric

    @property
    def higher_is_better(self) -> bool | None:
        """Whether a higher value of the metric is better; None if unknown."""
        summary, name = self.runs[0].summary, self.metric.partition("_")[2]
        recorded = summary.get("higher_is_better") if name == summary.get("metric_name") else None
        return recorded if isinstance(recorded, bool) else {"loss": False}.get(name)

    @cached_property
    def values(self) -> dict[Seeds, float]:
        return self.by_seeds(self.metric)

    def by_seeds(self, metric: str) -> dict[Seeds, float]:
        """Return a metric by seeds; with several seeds and folds, the mean over a seed's folds.

        A seed that lacks folds is left out: its mean would be over other samples.
        """
        table: dict[Seeds, list[float]] = {}
        for run in self.runs:
            table.setdefault(run.seeds, []).append(run.metrics[metric])
        values = {seeds: fmean(each) for seeds, each in table.items()}
        folds: dict[Seeds, dict[Seeds, float]] = {}
        for seeds, value in values.items():
            whole = _without_fold(seeds)
            folds.setdefault(whole, {})[tuple(p for p in seeds if p not in whole)] = value
        if not 1 < len(folds) < len(values):
            return values
        complete = max((each.keys() for each in folds.values()), key=len)
        return {k: fmean(each.values()) for k, each in folds.items() if each.keys() == complete}

    @property
    def means(self) -> dict[str, float]:
        shared = [n for n in self.runs[0].metrics if all(n in run.metrics for run in self.runs)]
        return {name: fmean(self.by_seeds(name).values()) for name in shared}

    @cached_property
    def is_independent(self) -> bool:
        """Whether no two runs share the seeds of some streams, but not of others."""
        seeds = [dict(each) for each in self.values]
        numbers = {len({each.get(key) for each in seeds}) for key in set().union(*seeds)}
        return numbers <= {1, len(seeds)}

    @cached_property
    def summary(self) -> statistics.Estimate:
        estimate = statistics.mean_of([*self.values.values()])
        return estimate if self.is_independent else replace(estimate, interval=None)

    def notes(self) -> list[str]:
        """Return caveats on the group's mean."""
        notes, prefix = [], f"{self.label}: " if self.label else ""
        if not self.is_independent:
            notes.append("runs share the seeds of some streams: no interval, no difference")
        imported = [run.environment.get("imported_files") for run in self.runs]
        files = [each.items() for each in imported if isinstance(each, dict)]
        versions = {(name, str(digest)) for each in files for name, digest in each}
        if len({name for name, _ in versions}) < len(versions):
            notes.append("runs had different code: compare.py names the files")
        seeds = len({_without_fold(run.seeds) for run in self.runs})
        if len(self.values) < seeds:
            notes.append(f"{seeds - len(self.values)} of {seeds} seeds lack folds: left out")
        if len(self.values) > 1 and len({run.weights for run in self.runs} - {""}) == 1:
            notes.append("all seeds gave the same weights: they change nothing")
        return [prefix + note for note in notes]


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder: every run in it, and the groups of those without a problem."""

    folder: Path
    runs: Sequence[SweepRun]
    groups: Sequence[Group]

    @property
    def ranks(self) -> list[int | None]:
        """The rank of each of several groups, from 1; None if it is unknown what is better."""
        kinds = {(group.metric, group.higher_is_better) for group in self.groups}
        higher = self.groups[0].higher_is_better if len(kinds) == 1 < len(self.groups) else None
        if higher is None:
            return [None for _ in self.groups]
        means = [-group.summary.mean if higher else group.summary.mean for group in self.groups]
        return [1 + sum(other < mean for other in means) for mean in means]


def read(folder: Path, metric: str | None = None, only: Sequence[str] = ()) -> Sweep:
    """Read a sweep; runs that failed, were interrupted or cannot be read keep the reason.

    `only` has settings of the groups to read, such as `optimizer.lr=0.004`.
    """
    number = {path: path.name.partition("_")[0] for path in record.runs_below(folder)}
    paths = sorted(number, key=lambda p: (int(number[p]) if number[p].isdecimal() else 0, p))
    runs = [read_run(path, folder) for path in paths]
    plan = record.read_json(folder / record.SWEEP) if record.is_sweep(folder) else {}
    jobs, varied = plan.get("jobs"), plan.get("varied")
    # Users may name the folders of jobs themselves, without their numbers.
    planned = jobs if isinstance(jobs, dict) and len(runs) < len(jobs) else {}
    for n, job in planned.items():
        if isinstance(job, list) and isinstance(varied, list) and n not in number.values():
            own = [word for word in map(str, job) if word.partition("=")[0] in varied]
            runs.append(SweepRun(f"{n}_{','.join(own)}", folder, "no record"))
    if not runs or record.is_run(folder):
        raise InputError(f"{folder}: expected a folder of runs, got none in it")
    known = sorted({name for run in runs for name in run.metrics})
    if metric is not None and metric not in known:
        raise InputError(f"--metric: expected one of {', '.join(known)}, got {metric}")
    for setting in only:
        runs = [run for run in runs if not run.settings or setting in pairs(run.settings)]
        if not any(run.settings for run in runs):
            raise InputError(f"--only: expected KEY=VALUE of runs in {folder}, got {setting}")
    return sweep_of(folder, runs, metric)


def read_run(folder: Path, sweep: Path) -> SweepRun:
    """Read a run: settings that can alter bits, and seeds, also those passed to classes."""
    name = str(folder.relative_to(sweep))
    try:
        tree, summary = untrusted.read_dict(folder), record.read_summary(folder)
    except InputError as error:
        return SweepRun(name, folder, f"unreadable: {error}")
    status, reason = str(summary.get("status")), str(summary.get("error") or "").partition("\n")[0]
    failure = {"finished": "", "running": "running, or killed"}.get(status, f"{status} {reason}")
    metrics, hashes = summary.get("metrics"), summary.get("fingerprints")
    if not isinstance(metrics, dict) or not isinstance(hashes, dict):
        return SweepRun(name, folder, failure or "unreadable: summary.json lacks entries")
    settings, seeds = dict[str, Any](), dict[str, Any]()
    for key, value in record.flatten({**tree, "logger": None}).items():
        several = value if isinstance(value, list) else [value]
        if _IS_SEED.fullmatch(key) and all(isinstance(each, int) for each in several):
            seeds[key] = tuple(value) if isinstance(value, list) else value
        elif ".statistics." in key and not key.startswith("data.statistics."):
            continue  # of the training samples of each fold
        elif not change.matches(key, change.NEUTRAL_KEYS):
            settings[key] = value
    return SweepRun(name, folder, failure, settings, tuple(sorted(seeds.items())), summary)


def sweep_of(folder: Path, runs: Sequence[SweepRun], metric: str | None = None) -> Sweep:
    """Divide runs into groups.

    One group reports the monitored metric on the test set, if there is one. Several are there to
    choose from, so they report it on validation data: the test value of a group that was chosen by
    test values is biased. Only the best group shows its test values.
    """
    several = len({repr(run.identity) for run in runs if not run.failure}) > 1
    phase = "validation" if several else "test"
    shown = []
    for run in runs:
        name = run.summary.get("metric_name")
        has_it = isinstance(run.summary.get("metrics", {}).get(f"{phase}_{name}"), int | float)
        monitored = f"{phase if has_it else 'validation'}_{name}"
        shown.append(replace(run, metric=metric or monitored, shows_test=True))
    sweep = _grouped(folder, shown)
    if not several or (metric and is_test(metric)):
        return sweep
    ranked = zip(sweep.groups, sweep.ranks, strict=True)
    best = [group.runs[0].identity for group, rank in ranked if rank == 1]
    return _grouped(folder, [replace(run, shows_test=run.identity in best) for run in shown])


def _grouped(folder: Path, runs: Sequence[SweepRun]) -> Sweep:
    table: dict[str, list[SweepRun]] = {}
    for run in runs:
        if not run.problem:
            table.setdefault(repr(run.identity), []).append(run)
    keys = varying([members[0].settings for members in table.values()])
    return Sweep(folder, runs, [Group(settings_of(keys, m[0]), m) for m in table.values()])


def settings_of(keys: Sequence[str], run: SweepRun) -> dict[str, Any]:
    return {key: run.settings.get(key) for key in keys}


def varying(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys in which configurations differ; `model.name` represents all of `model`."""
    known = dict.fromkeys(key for each in settings for key in each)
    keys = [key for key in known if len({repr(each.get(key)) for each in settings}) > 1]
    named = {key[: -len(".name")] for key in keys if key.count(".") == 1 and key[-5:] == ".name"}
    # Environment variables follow from other settings of a preset.
    short = [k for k in keys if k.split(".")[0] not in named and ".env." not in k]
    short += [f"{section}.name" for section in sorted(named)]
    long, brief = ({repr([each.get(k) for k in ks]) for each in settings} for ks in (keys, short))
    return short if len(brief) == len(long) else keys


def _without_fold(seeds: Seeds) -> Seeds:
    return tuple(pair for pair in seeds if not pair[0].endswith("fold"))


def pairs(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as in a command: `model=lstm`, `optimizer.lr=0.1`."""
    return [f"{key.removesuffix('.name')}={value}" for key, value in settings.items()]


def is_test(metric: str) -> bool:
    return metric.startswith(("test_", "last_test_"))
