"""Reading a sweep: a folder of run folders becomes groups of runs that differ only in seeds.

The fold of cross-validation (`data.fold`) is taken as one more seed.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seedbed import config, record
from seedbed.errors import InputError, printable
from seedbed.record import untrusted
from seedbed.sweeps import plan
from seedbed.sweeps.labels import name_all
from seedbed.sweeps.seeds import FOLD, Seeds, by_column, taken_out, varied, without_followers

_MAX_DEPTH = 16  # of the folders of a sweep


@dataclass(frozen=True)
class Run:
    """What a sweep's report needs of a run folder."""

    name: str  # the folder, seen from the sweep's
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)  # flat, without seeds
    seed: int = 0
    seeds: Seeds = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""  # why the run does not count; empty if it does
    refused: bool = False  # for its configuration, which resuming it would not change

    @cached_property
    def configuration(self) -> str:
        """Return a text that is the same for runs that differ only in seeds."""
        return repr(sorted(self.settings.items()))

    def value(self, metric: str) -> float:
        """Return a final metric, NaN where the record has none."""
        value = self.summary["metrics"].get(metric)
        return float(value) if isinstance(value, int | float) else math.nan


@dataclass(frozen=True)
class Group:
    """Finished runs that differ in nothing but their seeds."""

    label: str  # what sets it apart from the sweep's other groups; empty if it is alone
    metric: str
    runs: Sequence[Run]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the configuration that the runs share."""
        return self.runs[0].settings

    @property
    def promises_bits(self) -> bool:
        """Return whether runs with the same seeds must have the same bits."""
        return config.promises_bits(self.settings.get("determinism.on_nondeterministic"))

    @property
    def higher_is_better(self) -> bool:
        """Return whether more of the metric is better; of an old record, by the metric's name.

        Raises:
            InputError: nothing says so: it is neither a loss nor the metric that the runs followed.
        """
        summary, name = self.runs[0].summary, self.metric.partition("_")[2]
        recorded, followed = summary.get("higher_is_better"), summary.get("metric_name")
        if name == followed and isinstance(recorded, bool):
            return recorded
        if name not in ("loss", "mse", "accuracy", followed):
            raise InputError(
                f"--metric: expected a loss, or what the runs followed ({followed}), got "
                f"{self.metric}, of which no record says whether more is better; report on each "
                "sweep alone"
            )
        return name == "accuracy"

    @cached_property
    def replicates(self) -> Mapping[Seeds, list[Run]]:
        """Return the runs by their seeds, sorted by seed."""
        table: dict[Seeds, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: (run.seed, run.seeds)):
            table.setdefault(run.seeds, []).append(run)
        return table

    @cached_property
    def values(self) -> Mapping[Seeds, float]:
        """Return the metric by seeds: runs with the same seeds are one value, their mean."""
        return {
            seeds: float(np.mean([run.value(self.metric) for run in runs]))
            for seeds, runs in self.replicates.items()
        }

    @cached_property
    def varied(self) -> Sequence[str]:
        """Return the streams whose seed is not the same in all runs, FOLD if folds are not, and
        the keys of other seeds that are not."""
        return varied(self.replicates)

    @property
    def varied_streams(self) -> Sequence[str]:
        """Return the streams, and the keys of other seeds, that are not the same in all runs."""
        return [column for column in self.varied if column != FOLD]

    @property
    def folds(self) -> int:
        """Return the number of folds, 0 if there are not several."""
        return len({seeds[-1] for seeds in self.replicates}) if FOLD in self.varied else 0

    @property
    def unit(self) -> str:
        """Return what is counted: folds if there is one seed, else seeds."""
        return "folds" if self.folds and not self.varied_streams else "seeds"

    def in_step(self, seeds: Seeds) -> bool:
        """Return whether the streams that vary in the group have one seed in common."""
        table = by_column(seeds)
        return len({table.get(stream) for stream in self.varied_streams}) == 1

    def name_seeds(self, seeds: Seeds) -> str:
        """Name a run's seeds: `3`, `0 init=5` where a stream has its own, `0 fold=2`."""
        seed, streams = self.replicates[seeds][0].seed, self.varied_streams
        table = by_column(seeds)
        own = [f"{s}={table[s]}" for s in streams if table.get(s, seed) != seed]
        if len(streams) > 1 and self.in_step(seeds):
            seed, own = table[streams[0]], []
        return " ".join([str(seed), *own, *([f"fold={table[FOLD]}"] if self.folds else [])])


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder: every run in it, and the groups of those that count."""

    folder: Path
    runs: Sequence[Run]
    groups: Sequence[Group]

    @property
    def lost(self) -> Sequence[Run]:
        """Return the runs that do not count."""
        return [run for run in self.runs if run.problem]


def read(folder: Path, metric: str | None = None) -> Sweep:
    """Read a sweep; runs that failed, were interrupted or cannot be read keep their reason.

    Args:
        metric: the final metric to report, such as `validation_loss`; None: the one that the runs
            followed, on the test set if there is one.

    Raises:
        InputError: there are no runs, or none has that metric.
    """
    if record.is_run(folder):
        raise InputError(f"{folder}: expected a folder of runs, got one run; name its sweep")
    runs = _without_followers([_read_run(path, folder) for path in _run_folders(folder)])
    runs += _missing_runs(folder)
    if not runs:
        found = "none in it" if folder.is_dir() else "no folder"
        raise InputError(
            f"{folder}: expected a folder of runs, got {found}; "
            "name the folder that `python train.py -m seed=0,1,2` made"
        )
    metric_names = _metric_names(runs) if metric is None else _chosen(metric, runs)
    runs = [_without_metric(run, metric_names) for run in runs]
    return Sweep(folder, runs, _grouped([run for run in runs if not run.problem], metric_names))


def _run_folders(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the run folders below a folder, job 2 before job 10.

    A run may be linked to; a folder of runs may not, since links can go round in circles.
    """
    below = (path for path in folder.iterdir()) if folder.is_dir() else iter(())
    for path in sorted(below, key=_natural_order):
        if path.name.startswith(".") or not path.is_dir():
            continue
        if (path / "config.yaml").is_file() or (path / "summary.json").is_file():
            yield path
        elif not path.is_symlink() and depth < _MAX_DEPTH:
            yield from _run_folders(path, depth + 1)


def _missing_runs(folder: Path) -> list[Run]:
    """Return a run with a problem for each job of the sweep's plan that left no folder."""
    missing = [(f"{n}_{','.join(job)}", plan.refusal(folder, n)) for n, job in plan.missing(folder)]
    return [
        Run(name, folder, problem=f"refused: {why}" if why else "never started", refused=bool(why))
        for name, why in missing
    ]


def _natural_order(path: Path) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.split(r"(\d+)", path.name)
        if part
    ]


def _read_run(folder: Path, sweep: Path) -> Run:
    name = printable(str(folder.relative_to(sweep)))
    try:
        settings, seed, seeds = _read_settings(folder / "config.yaml")
        summary = record.read_summary(folder)
    except InputError as error:
        return Run(name, folder, problem=f"unreadable: {error}")
    problem = ""
    if summary.get("status") == "running":
        problem = "running, or killed"
    elif summary.get("status") != "finished":
        reason = str(summary.get("error") or "").partition("\n")[0]
        problem = ": ".join(filter(None, (str(summary.get("status")), reason)))
    elif not isinstance(summary.get("metrics"), dict):
        problem = "unreadable: summary.json has no metrics"
    hashes = summary.get("fingerprints")
    hashes = hashes.items() if isinstance(hashes, dict) else ()
    summary["fingerprints"] = {key: value for key, value in hashes if isinstance(value, str)}
    return Run(name, folder, settings, seed, seeds, summary, problem)


def _read_settings(path: Path) -> tuple[dict[str, Any], int, Seeds]:
    """Return a run's flat configuration without seeds and fold, its seed, and all its seeds.

    Not by OmegaConf, which is ten times slower; that counts over a thousand runs.
    """
    try:
        tree = untrusted.read_yaml(path)
        settings, seeds = taken_out(tree)
        return settings, int(tree["seed"]), seeds
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: expected a run's configuration, got {reason}") from None


def _without_followers(runs: Sequence[Run]) -> list[Run]:
    """Return runs without the seeds that follow those of streams, by configurations."""
    table: dict[str, list[Seeds]] = {}
    for run in runs:
        table.setdefault(run.configuration, []).append(run.seeds)
    kept = {configuration: iter(without_followers(each)) for configuration, each in table.items()}
    return [replace(run, seeds=next(kept[run.configuration])) for run in runs]


def _metric_names(runs: Sequence[Run]) -> dict[str, str]:
    """Return the metric to report for each configuration: on the test set, if it has one."""
    names: dict[str, str] = {}
    for run in runs:
        if not run.problem:
            metric = run.summary.get("metric_name")
            if run.summary["metrics"].get(f"test_{metric}") is not None:
                names[run.configuration] = f"test_{metric}"
            names.setdefault(run.configuration, f"validation_{metric}")
    return names


def _chosen(metric: str, runs: Sequence[Run]) -> dict[str, str]:
    """Return the metric that was asked for, for each configuration; InputError if no run has it."""
    counted = [run for run in runs if not run.problem]
    known = {name for run in counted for name in run.summary["metrics"]}
    known = {name for name in known if name.startswith(("test_", "validation_"))}
    if metric not in known:
        raise InputError(
            f"--metric: expected one of {', '.join(sorted(known)) or 'no metrics'}, got {metric}; "
            "choose one of these"
        )
    return {run.configuration: metric for run in counted}


def _without_metric(run: Run, metric_names: Mapping[str, str]) -> Run:
    """Return the run, with a problem if the metric of its group is missing or not finite."""
    if run.problem or math.isfinite(run.value(metric_names[run.configuration])):
        return run
    return replace(run, problem=f"has no finite {metric_names[run.configuration]}")


def _grouped(runs: Sequence[Run], metric_names: Mapping[str, str]) -> list[Group]:
    """Return the groups of runs that differ only in seeds, in the order of their first runs."""
    table: dict[str, list[Run]] = {}
    for run in runs:
        table.setdefault(run.configuration, []).append(run)
    labels = name_all([members[0].settings for members in table.values()])
    return [
        Group(label, metric_names[configuration], members)
        for label, (configuration, members) in zip(labels, table.items(), strict=True)
    ]
