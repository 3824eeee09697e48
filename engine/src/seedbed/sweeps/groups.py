"""Reading a sweep into groups of runs that differ only in seeds; a data fold counts as
a seed."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from seedbed import record
from seedbed.compare import stated
from seedbed.errors import InputError, printable, some
from seedbed.record import Origin, change, untrusted
from seedbed.sweeps import statistics
from seedbed.sweeps.plan import Plan, read_plan

_IS_SEED = re.compile(r"seed|seeds\..*|.*\.seeds?|data\.(.+\.)?fold")
_MOST_FILES = 5  # in a note
VALIDATION = "validation_"
TEST = "test_"

Seeds = Mapping[str, Any]  # values by key
_HUGE = 1e150  # the square of a larger value may be infinite


@dataclass(frozen=True)
class SweepRun:
    """The parts of a run folder that a report needs."""

    name: str  # the folder, relative to the sweep's
    folder: Path
    failure: str = ""  # why the run does not count
    config: Mapping[str, Any] = field(default_factory=dict)  # flattened, without seeds
    seeds: Seeds = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    job: str | None = None  # its number in the plan, "" if the plan has none for it

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings in which the runs of a group are equal: those that can alter
        bits."""
        neutral = change.NEUTRAL_KEYS
        return {
            key: value
            for key, value in self.config.items()
            if not change.matches(key, neutral)
        }

    @property
    def identity(self) -> str:
        return repr(sorted(self.settings.items()))

    @cached_property
    def metrics(self) -> dict[str, float]:
        """All finite metrics of the weights that count, of validation and test.

        Those whose squares would not be finite are left out, too.
        """
        entries = self.summary.get("metrics")
        values = entries.items() if isinstance(entries, Mapping) else ()
        numbers = {name: float(v) for name, v in values if isinstance(v, int | float)}
        return {name: value for name, value in numbers.items() if abs(value) < _HUGE}

    @property
    def monitored(self) -> str:
        """The validation value that the run monitored; empty if it failed before it was
        known."""
        name = self.summary.get("metric_name")
        return f"{VALIDATION}{name}" if name else ""

    @property
    def fold(self) -> str:
        """The folds of a run as text; empty if it has none."""
        return _as_text({k: v for k, v in self.seeds.items() if k.endswith("fold")})

    @property
    def seed(self) -> str:
        """The seeds of a run as text, without folds."""
        return _as_text({k: v for k, v in self.seeds.items() if not k.endswith("fold")})

    @property
    def number(self) -> str:
        """The number of the run's job, if its folder begins with it, as by default."""
        return self.name.partition("_")[0]

    def could_be(self, job: Sequence[str], of_any_seed: bool = False) -> bool:
        """Return whether this is the run of a job, as far as its record and overrides
        tell.

        Seeds and folds are compared as they are. Of other overrides, such as options of
        groups, which settings follow from them may be unknown: those of the run's
        command are compared.
        """
        if not self.config:  # unreadable
            return True
        words = set(_words(self.summary.get("command")))
        for word in job:
            key, _, value = word.lstrip("+").partition("=")
            if _IS_SEED.fullmatch(key) and re.fullmatch(r"-?\d+", value):
                if not of_any_seed and str(self.seeds.get(key)) != value:
                    return False
            elif words and word not in words and str(self.config.get(key)) != value:
                return False
        return True

    @property
    def weights(self) -> str:
        """The fingerprint of the final weights; empty if the record has none."""
        return self.fingerprint("weights")

    def fingerprint(self, name: str) -> str:
        entries = self.summary.get("fingerprints")
        return str(entries.get(name) or "") if isinstance(entries, Mapping) else ""

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        with suppress(InputError):
            return record.read_environment(self.folder)
        return {}

    @property
    def origin(self) -> Origin:
        return Origin(dict(self.config), dict(self.environment), self.folder)


@dataclass(frozen=True)
class Group:
    """Runs of a sweep that differ only in seeds: those that count, and those that do
    not."""

    sweep: str  # its folder, as it was named
    runs: Sequence[SweepRun]
    left_out: Sequence[SweepRun]
    metric: str  # to rank and compare by
    plan: Plan | None = None  # of the sweep
    # jobs of the plan without a run, which may belong to this group
    missing: Sequence[str] = ()
    # whether a higher value is better, if that is known from elsewhere than the runs
    direction: bool | None = None

    @property
    def first(self) -> SweepRun:
        return [*self.runs, *self.left_out][0]

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.first.settings

    def label(self, keys: Sequence[str]) -> str:
        """Return some settings on one line, as in `model=lstm, optimizer.lr=0.1`."""
        return printable(", ".join(pairs(self.values_of(keys)))).replace("\n", " ")

    def values_of(self, keys: Sequence[str]) -> dict[str, Any]:
        return {key: self.settings.get(key) for key in keys}

    @property
    def higher_is_better(self) -> bool | None:
        """Whether a higher value of the metric is better; None if unknown."""
        if self.direction is not None:
            return self.direction
        summary = self.first.summary
        recorded = (
            summary.get("higher_is_better")
            if self.metric == self.first.monitored
            else None
        )
        if isinstance(recorded, bool):
            return recorded
        return {"loss": False}.get(self.metric.partition("_")[2])

    @cached_property
    def values(self) -> "pd.Series[float]":
        return self.by_seeds(self.metric)

    def by_seeds(self, metric: str) -> "pd.Series[float]":
        """Return a metric by seeds; with several seeds and folds, the mean over a
        seed's folds.

        A seed that lacks folds is left out: its mean would be over other samples.
        """
        rows = [(run.seed, run.fold, run.metrics[metric]) for run in self.runs]
        table = pd.DataFrame(rows, columns=["seed", "fold", "value"])
        if table.empty:
            return table.set_index("seed")["value"]
        folds = table.pivot_table(
            index="seed", columns="fold", values="value", sort=False
        )
        if len(folds) == 1:  # its folds are the values
            return folds.iloc[0]
        has = folds.notna()
        most = has.loc[has.sum(axis=1).idxmax()]
        return folds[(has == most).all(axis=1)].mean(axis=1)

    def estimate(self, metric: str) -> statistics.Estimate:
        """Return the mean of a metric over seeds, with an interval if they are
        independent."""
        values = self.by_seeds(metric).to_numpy()
        estimate = statistics.mean_of(values, fold_ratio=self.fold_ratio or 0.0)
        if self.is_independent and self.fold_ratio is not None:
            return estimate
        return statistics.Estimate(estimate.n, estimate.mean, estimate.sd)

    @cached_property
    def mean(self) -> statistics.Estimate:
        return self.estimate(self.metric)

    @property
    def means(self) -> dict[str, float]:
        """The means of all validation metrics."""
        return {
            name: float(self.by_seeds(name).mean()) for name in self.shared(VALIDATION)
        }

    def shared(self, prefix: str) -> list[str]:
        """Return the metrics with a prefix that all runs have."""
        names = self.runs[0].metrics if self.runs else {}
        known = [
            name for name in names if all(name in run.metrics for run in self.runs)
        ]
        return [name for name in known if name.startswith(prefix)]

    @cached_property
    def is_independent(self) -> bool:
        """Whether no two runs share the seeds of some streams, but not of others."""
        by_seed = {(run.seed, run.fold): run.seeds for run in self.runs}
        table = pd.DataFrame(
            [{k: repr(v) for k, v in seeds.items()} for seeds in by_seed.values()]
        )
        if self.has_several_seeds:
            table = table[
                [key for key in table if not key.endswith("fold")]
            ].drop_duplicates()
        return {*table.nunique(dropna=False)} <= {1, len(table)}

    @property
    def has_several_seeds(self) -> bool:
        return len({run.seed for run in self.runs}) > 1

    @cached_property
    def fold_ratio(self) -> float | None:
        """n_test / n_train of the folds of one seed, 0 without such; None if it is not
        recorded."""
        if self.has_several_seeds or len(self.values) < 2:
            return 0.0
        sizes = [run.summary.get("samples") for run in self.runs]
        ratios = [
            size["validation"] / size["train"]
            for size in sizes
            if isinstance(size, Mapping)
            and all(
                isinstance(size.get(k), int) and size[k] > 0
                for k in ("train", "validation")
            )
        ]
        return fmean(ratios) if len(ratios) == len(sizes) else None

    def notes(self) -> Iterator[str]:
        """Yield caveats on the group's mean."""
        if not self.is_independent:
            yield "runs share the seeds of some streams: no interval, no difference"
        if self.fold_ratio is None:
            yield (
                "folds of one seed share training samples, and their sizes are not"
                " recorded: no interval, no difference"
            )
        elif self.fold_ratio:
            yield (
                "folds of one seed share training samples: variance corrected by 1/n + "
                f"{self.fold_ratio:.3g} (Nadeau and Bengio 2003)"
            )
        if files := self.edited_files():
            yield f"runs had different code: {some(files, _MOST_FILES)}"
        seeds = len({run.seed for run in self.runs})
        if self.has_several_seeds and len(self.values) < seeds:
            yield f"{seeds - len(self.values)} of {seeds} seeds lack folds: left out"
        if extra := self.unplanned:
            yield (
                f"runs that the plan ({record.SWEEP}) does not have: {', '.join(extra)}"
            )
        if len(self.values) > 1 and len({run.weights for run in self.runs} - {""}) == 1:
            yield "all seeds gave the same weights: they change nothing"

    @property
    def unplanned(self) -> list[str]:
        """The runs that count and that the sweep's plan does not have."""
        return [run.name for run in self.runs if run.job == ""]

    def edited_files(self) -> list[str]:
        """Return the names of files of which the runs imported different versions."""
        imported = [run.origin.imported for run in self.runs]
        versions: dict[str, set[str]] = {}
        for files in imported:
            for name, digest in files.items():
                versions.setdefault(name, set()).add(str(digest))
        return sorted(name for name, digests in versions.items() if len(digests) > 1)


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder: every run in it, and its groups."""

    folder: Path
    runs: Sequence[SweepRun]
    groups: Sequence[Group]
    plan: Plan | None

    @property
    def left_out(self) -> dict[str, str]:
        """The runs that do not count, and why."""
        counted = {id(run) for group in self.groups for run in group.runs}
        reasons = {run.name: run.failure for run in self.runs if id(run) not in counted}
        metrics = {
            run.name: group.metric for group in self.groups for run in group.left_out
        }
        return {
            n: why or f"has no finite {metrics.get(n)}" for n, why in reasons.items()
        }


def read(folder: Path, metric: str | None = None, only: Sequence[str] = ()) -> Sweep:
    """Read a sweep; runs that failed, were interrupted or cannot be read keep the
    reason.

    `metric` is one of `metrics` in summary.json, by default the monitored one on
    validation data. `only` has settings of the groups to read, such as
    `optimizer.lr=0.004`.
    """
    runs = [read_run(path, folder) for path in _paths_in_order(folder)]
    planned = read_plan(folder)
    runs, missing = _by_plan(folder, planned, runs)
    runs += missing
    if not runs or record.is_run(folder):
        raise InputError(f"{folder}: expected a folder of runs, got none in it")
    runs = _with_settings(folder, runs, only)
    known = sorted({name for run in runs for name in run.metrics})
    if metric is not None and metric not in known:
        raise InputError(f"--metric: expected one of {', '.join(known)}, got {metric}")
    members: dict[str, list[SweepRun]] = {}
    for run in runs:
        if run.config:
            members.setdefault(run.identity, []).append(run)
    groups = [
        _group(folder, group_runs, metric, planned, missing)
        for group_runs in members.values()
    ]
    return Sweep(folder, runs, groups, planned)


def _paths_in_order(folder: Path) -> list[Path]:
    """Return the run folders of a sweep in the order of their numbers."""
    number = {path: path.name.partition("_")[0] for path in record.runs_below(folder)}
    return sorted(
        number, key=lambda p: (int(number[p]) if number[p].isdecimal() else 0, p)
    )


def _with_settings(
    folder: Path, runs: list[SweepRun], only: Sequence[str]
) -> list[SweepRun]:
    """Return the runs with some settings, and those whose settings are unknown; raise
    InputError if none has them."""
    for setting in only:
        key, _, value = setting.partition("=")
        [wanted] = pairs({key: value})  # sweep.csv says model.name, commands say model
        runs = [run for run in runs if not run.config or wanted in pairs(run.settings)]
        if not any(run.config for run in runs):
            raise InputError(
                f"--only: expected KEY=VALUE of runs in {folder}, got {setting}"
            )
    return runs


def _group(
    folder: Path,
    runs: Sequence[SweepRun],
    metric: str | None,
    planned: Plan | None,
    missing: Sequence[SweepRun],
) -> Group:
    finished = [run for run in runs if not run.failure]
    metric = metric or [*finished, *runs][0].monitored
    counted = [run for run in finished if metric in run.metrics]
    left_out = [run for run in runs if run not in counted]
    jobs = {run.name: planned.jobs[run.job or ""] for run in missing} if planned else {}
    missing_names = [
        name for name, job in jobs.items() if runs[0].could_be(job, of_any_seed=True)
    ]
    return Group(str(folder), counted, left_out, metric, planned, missing_names)


def _by_plan(
    folder: Path, planned: Plan | None, runs: Sequence[SweepRun]
) -> tuple[list[SweepRun], list[SweepRun]]:
    """Return the runs with their jobs in the plan, and entries for jobs without a run.

    A folder's number is not enough: its run may be that of another seed. Users may name
    the folders of jobs themselves, without numbers.
    """
    if planned is None or not planned.jobs:  # its jobs are chosen as it goes
        return [*runs], []
    jobs = {
        number: [word for word in job if _key(word) in planned.varied]
        for number, job in planned.jobs.items()
    }
    of_run = _jobs_of(runs, jobs)
    with_jobs = [
        replace(run, job=of_run.get(position, "")) for position, run in enumerate(runs)
    ]
    missing = [n for n in jobs if n not in of_run.values()]
    names = {n: f"{n}_{','.join(jobs[n])}" for n in missing}
    return with_jobs, [SweepRun(names[n], folder, "no record", job=n) for n in missing]


def _jobs_of(
    runs: Sequence[SweepRun], jobs: Mapping[str, Sequence[str]]
) -> dict[int, str]:
    """Return the number of each run's job, by the run's position: that of its folder if
    it could be, else the first free one that it could be."""
    of_run: dict[int, str] = {}
    for position, run in enumerate(runs):
        if run.number in jobs and run.could_be(jobs[run.number]):
            of_run[position] = run.number
    for position, run in enumerate(runs):
        free = [number for number in jobs if number not in of_run.values()]
        number = next((number for number in free if run.could_be(jobs[number])), None)
        if position not in of_run and number is not None:
            of_run[position] = number
    return of_run


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+")


def read_run(folder: Path, sweep: Path) -> SweepRun:
    """Read a run: settings and seeds, also those passed to classes."""
    name = str(folder.relative_to(sweep))
    try:
        tree = untrusted.read_dict(folder)
        summary = record.read_summary(folder)
    except InputError as error:
        return SweepRun(name, folder, f"unreadable: {error}")
    config, seeds = without_seeds(tree)
    return SweepRun(name, folder, _failure(folder, summary), config, seeds, summary)


def without_seeds(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return settings by dotted keys, and apart from them seeds and folds."""
    config = dict[str, Any]()
    seeds = dict[str, Any]()
    for key, value in record.flatten({**tree, "logger": None}).items():
        several = value if isinstance(value, list) else [value]
        if _IS_SEED.fullmatch(key) and all(isinstance(each, int) for each in several):
            seeds[key] = value
        else:
            config[key] = value
    return config, seeds


def _failure(folder: Path, summary: Mapping[str, Any]) -> str:
    """Return why the run of a folder does not count; empty if it does."""
    status = record.status_of(folder, summary)
    if status != "finished":
        return (
            f"{status} {str(summary.get('error') or '').partition(chr(10))[0]}".strip()
        )
    if not all(
        isinstance(summary.get(key), Mapping) for key in ("metrics", "fingerprints")
    ):
        return "unreadable: summary.json lacks entries"
    if not stated.has_results_by_weights(summary):
        return (
            "of an earlier version: its validation values may be of other weights than"
            " were tested"
        )
    try:
        return next(
            iter(stated.contradictions(summary, record.read_metrics(folder))), ""
        )
    except InputError as error:
        return f"unreadable: {error}"


def ranks(groups: Sequence[Group], are_alike: bool) -> list[int | None]:
    """Return the rank of each of several groups, from 1; None if it is unknown what is
    better.

    `are_alike` says whether their values can be compared.
    """
    counted = [group for group in groups if group.runs]
    higher = (
        counted[0].higher_is_better
        if counted and are_alike and len(groups) > 1
        else None
    )
    if higher is None:
        return [None for _ in groups]
    means = [group.mean.mean for group in counted]
    losses = [-mean if higher else mean for mean in means]
    rank = {
        id(group): 1 + sum(other < loss for other in losses)
        for group, loss in zip(counted, losses, strict=True)
    }
    return [rank.get(id(group)) for group in groups]


def varying(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys in which configurations differ; `model.name` represents all of
    `model`."""
    known = dict.fromkeys(key for each in settings for key in each)
    keys = [key for key in known if len({repr(each.get(key)) for each in settings}) > 1]
    named = {
        key[: -len(".name")]
        for key in keys
        if key.count(".") == 1 and key[-5:] == ".name"
    }
    # Environment variables follow from other settings of a preset.
    short = [k for k in keys if k.split(".")[0] not in named and ".env." not in k]
    short += [f"{section}.name" for section in sorted(named)]
    long, brief = (
        {repr([each.get(k) for k in ks]) for each in settings} for ks in (keys, short)
    )
    return short if len(brief) == len(long) else keys


def pairs(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as in a command: `model=lstm`, `optimizer.lr=0.1`."""
    return [f"{key.removesuffix('.name')}={value}" for key, value in settings.items()]


def _words(command: object) -> list[str]:
    """Return the words of a recorded command; none if it is no command."""
    try:
        return shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        return []


def _as_text(seeds: Seeds) -> str:
    return ", ".join(f"{key}={seeds[key]}" for key in sorted(seeds))
