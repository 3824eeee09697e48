"""Reading a sweep into groups of runs that differ only in seeds; a data fold counts as a seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from seedbed import record
from seedbed.errors import InputError, printable
from seedbed.sweeps import statistics
from seedbed.sweeps.runs import Run, Seeds, is_test, pairs, read_run


@dataclass(frozen=True)
class Group:
    """Finished runs of one configuration; `varied` distinguishes it from the other groups."""

    varied: Mapping[str, Any]
    runs: Sequence[Run]

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
    runs: Sequence[Run]
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
    for n, job in jobs.items() if isinstance(jobs, dict) else ():
        if isinstance(job, list) and isinstance(varied, list) and n not in number.values():
            own = [word for word in map(str, job) if word.partition("=")[0] in varied]
            runs.append(Run(f"{n}_{','.join(own)}", folder, "no record"))
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


def sweep_of(folder: Path, runs: Sequence[Run], metric: str | None = None) -> Sweep:
    """Divide runs into groups.

    One group reports the monitored metric on the test set, if there is one. Several are there to
    choose from, so they report it on validation data: the test value of a group that was chosen by
    test values is biased. Only the best group shows its test values.
    """
    several = len({repr(run.identity) for run in runs if not run.failure}) > 1
    phase = "validation" if several else "test"
    runs = [replace(r, metric=metric or r.monitored(phase), shows_test=True) for r in runs]
    sweep = _grouped(folder, runs)
    if not several or (metric and is_test(metric)):
        return sweep
    ranked = zip(sweep.groups, sweep.ranks, strict=True)
    best = [group.runs[0].identity for group, rank in ranked if rank == 1]
    return _grouped(folder, [replace(run, shows_test=run.identity in best) for run in runs])


def _grouped(folder: Path, runs: Sequence[Run]) -> Sweep:
    table: dict[str, list[Run]] = {}
    for run in runs:
        if not run.problem:
            table.setdefault(repr(run.identity), []).append(run)
    keys = varying([members[0].settings for members in table.values()])
    return Sweep(folder, runs, [Group(_some(keys, m[0]), m) for m in table.values()])


def shared(a: Sweep, b: Sweep, metric: str | None = None) -> tuple[Sweep, Sweep, list[str]]:
    """Return two sweeps without the groups that only one of them has, and notes that name those.

    Groups correspond if they have equal values of all keys that vary within either sweep.
    """
    keys = [*dict.fromkeys(key for sweep in (a, b) for g in sweep.groups for key in g.varied)]

    def label(run: Run) -> str:
        return Group(_some(keys, run), [run]).label

    names = [[label(group.runs[0]) for group in sweep.groups] for sweep in (a, b)]
    both = {*names[0]} & {*names[1]}
    if not both:
        x, y = ("; ".join(each) or "none" for each in names)
        raise InputError(f"{b.folder}: expected a group of A ({x}), got {y}")
    notes = [f"left out, because only A has it: {x}" for x in names[0] if x not in both]
    notes += [f"left out, because only B has it: {x}" for x in names[1] if x not in both]
    kept = []
    for sweep in (a, b):
        runs = [run for run in sweep.runs if run.failure or label(run) in both]
        again = sweep_of(sweep.folder, runs, metric)  # the metric depends on the number of groups
        groups = [replace(group, varied=_some(keys, group.runs[0])) for group in again.groups]
        kept.append(replace(again, groups=groups))
    return kept[0], kept[1], notes


def _some(keys: Sequence[str], run: Run) -> dict[str, Any]:
    return {key: run.settings.get(key) for key in keys}


def varying(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys in which configurations differ; `model.name` represents all of `model`.

    Environment variables are left out, because they follow from other settings of a preset.
    """
    known = dict.fromkeys(key for each in settings for key in each)
    keys = [key for key in known if len({repr(each.get(key)) for each in settings}) > 1]
    named = {key[: -len(".name")] for key in keys if key.count(".") == 1 and key[-5:] == ".name"}
    short = [k for k in keys if k.split(".")[0] not in named and ".env." not in k]
    short += [f"{section}.name" for section in sorted(named)]
    long, brief = ({repr([each.get(k) for k in ks]) for each in settings} for ks in (keys, short))
    return short if len(brief) == len(long) else keys


def _without_fold(seeds: Seeds) -> Seeds:
    return tuple(pair for pair in seeds if not pair[0].endswith("fold"))
