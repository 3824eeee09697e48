"""What differs between two groups of runs, and whether their values can be compared."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any

from seedbed import config, record
from seedbed.record import Change
from seedbed.record.change import matches
from seedbed.sweeps import definition
from seedbed.sweeps.groups import Group, SweepRun

Pair = tuple[SweepRun, SweepRun]

# Where the fingerprint of the validation set's targets is not recorded: what can change
# that set.
_OF_VALIDATION_SET = (
    "data.name",
    "data.dataset",
    "data.dataset.*",
    "data.validation",
    "data.validation.*",
    "data_sha256",
    "data_sha256.*",
    "trainer.limit_validation_batches",
)
_OF_BATCHES = (
    "data.eval_batch_size",
    "data.collate",
    "data.collate.*",
    "trainer.limit_*",
)
# How many validations the weights that count are the best of.
_OF_SELECTION = (
    "trainer.test_weights",
    "trainer.validate_every_epochs",
    "trainer.validate_every_steps",
)
OVERLAP = "samples are also in training"  # of a warning, see `assemble.overlap`


def matched(a: Group, b: Group) -> list[Pair]:
    """Return pairs of runs of two groups: those of equal seeds, or in their order if
    none are."""
    runs_a, runs_b = ([*group.runs, *group.left_out] for group in (a, b))
    of_b = {(run.seed, run.fold): run for run in runs_b}
    pairs = [
        (run, of_b[run.seed, run.fold])
        for run in runs_a
        if (run.seed, run.fold) in of_b
    ]
    return pairs or list(zip(runs_a, runs_b, strict=False))


def between(a: Group, b: Group) -> list[Change]:
    """Return all that differs between two groups: settings, environment, code, and
    results.

    Seeds are left out. A key that differs in several pairs of runs is listed once. Of a
    run that stopped before it recorded its environment, only the settings are known.
    """
    changes: dict[str, Change] = {}
    for run_a, run_b in matched(a, b):
        origins = [run_a.origin, run_b.origin]
        if not (run_a.environment and run_b.environment):
            origins = [record.Origin(each.settings, {}) for each in origins]
        for change in record.changes(*origins):
            changes.setdefault(change.key, change)
    results_a = _results(a)
    results_b = _results(b)
    for key, value in results_a.items():
        if value != results_b[key]:
            changes[key] = Change(
                key, value, results_b[key], alters_bits=False, kind="result"
            )
    for key, value_a, value_b in _other_splits(a, b):
        changes.setdefault(key, Change(key, value_a, value_b, kind="split"))
    return [*changes.values()]


def obstacles(
    a: Group, b: Group, names: tuple[str, str], changes: Sequence[Change]
) -> Iterator[str]:
    """Yield reasons for which the values of two groups say nothing about each other."""
    for group, name in zip((a, b), names, strict=True):
        if not group.runs:
            yield f"no result: all {len(group.left_out)} runs of {name} are left out"
    yield from other_values(a, b, changes)


def other_values(a: Group, b: Group, changes: Sequence[Change]) -> Iterator[str]:
    """Yield reasons for which one number of a group is another quantity than that of
    the other."""
    kinds = {(group.metric, group.higher_is_better) for group in (a, b) if group.runs}
    if len(kinds) > 1:
        yield f"another metric: {a.metric} and {b.metric}"
    yield from _other_validation_sets(a, b, changes)
    yield from definition.others(a.metric, a, b, changes)


def cautions(
    a: Group, b: Group, names: tuple[str, str], changes: Sequence[Change]
) -> Iterator[str]:
    """Yield what else, besides the variants' settings, may explain a difference."""
    for change in changes:
        if change.key == "steps":
            yield f"unequal training: {change.before} and {change.now} steps"
    if _has_other_inputs(a, b, changes):
        yield "the inputs of validation differ: other samples, or another preprocessing"
    yield from definition.doubts(a.metric, a, b, changes)
    yield from _other_selection(a, b, changes)
    for group, name in zip((a, b), names, strict=True):
        yield from (f"{name}: {line}" for line in _of_group(group))
    for sweep in dict.fromkeys(group.sweep for group in (a, b) if group.plan is None):
        yield (
            f"{sweep}: no {record.SWEEP}: which seeds were planned, and who looked"
            " when, is not known"
        )


def _other_selection(a: Group, b: Group, changes: Sequence[Change]) -> Iterator[str]:
    """Yield a line if the weights that count are the best of unequally many
    validations."""
    takes_best = "best" in {
        group.settings.get("trainer.test_weights", "best") for group in (a, b)
    }
    selection = [
        f"{change.key} {change.before} -> {change.now}"
        for change in changes
        if change.key in _OF_SELECTION
    ]
    if takes_best and selection:
        yield (
            f"{', '.join(selection)}: the best of more validations is better by chance"
            " alone"
        )


def added_after_look(group: Group) -> bool:
    """Return whether runs were added to a group after others of it had been looked
    at."""
    jobs = {run.name: run.number if run.job is None else run.job for run in group.runs}
    return group.plan is not None and group.plan.is_extended(jobs)


def _of_group(group: Group) -> Iterator[str]:
    runs = group.runs
    settings = [run.config.get("determinism.on_nondeterministic") for run in runs]
    if not all(map(config.promises_bits, settings)):
        names = sorted({str(run.config.get("determinism.name")) for run in runs})
        yield f"determinism={', '.join(names)}: equal seeds may give other values"
    warnings = [run.summary.get("warnings") for run in runs]
    lines = [
        str(line) for entry in warnings if isinstance(entry, list) for line in entry
    ]
    if overlaps := sorted({line for line in lines if OVERLAP in line}):
        yield "; ".join(overlaps)
    for run in runs:
        for step, keys in record.altered(run.summary):
            yield f"{run.name} was resumed at step {step} with other {', '.join(keys)}"
    left_out = len(group.left_out) + len(group.missing)
    if runs and left_out:
        yield f"{left_out} of {len(runs) + left_out} runs are left out"
    if group.unplanned:
        yield f"not in its plan ({record.SWEEP}): {', '.join(group.unplanned)}"
    if added_after_look(group):
        yield "seeds were added after a look: only the sequential interval holds"


def _other_validation_sets(
    a: Group, b: Group, changes: Sequence[Change]
) -> Iterator[str]:
    folds = [sorted({run.fold for run in group.runs}) for group in (a, b)]
    if a.runs and b.runs and folds[0] != folds[1]:
        names = [", ".join(each) or "none" for each in folds]
        yield f"other folds: {names[0]}, and {names[1]}"
        return
    targets = _fingerprints("validation_targets", a, b)
    if targets is not None:
        if _differ(*targets):
            yield "another validation set: its targets have other fingerprints"
        elif _has_other_inputs(a, b, changes) and (
            names := _other_files(a, b, changes)
        ):
            yield f"another validation set: its inputs differ, and {', '.join(names)}"
        return
    keys = [key for key, *_ in _other_splits(a, b)]
    patterns = _OF_VALIDATION_SET
    keys += [
        c.key
        for c in changes
        if any(fnmatchcase(c.key, pattern) for pattern in patterns)
    ]
    if keys:
        yield f"another validation set: {', '.join(dict.fromkeys(keys))} differ"


def _has_other_inputs(a: Group, b: Group, changes: Sequence[Change]) -> bool:
    """Return whether the inputs of validation are known to differ, though the targets
    may not."""
    samples = _fingerprints("validation_samples", a, b)  # of whole batches
    is_same_batching = not any(matches(change.key, _OF_BATCHES) for change in changes)
    return samples is not None and is_same_batching and _differ(*samples)


def _other_files(a: Group, b: Group, changes: Sequence[Change]) -> list[str]:
    """Return in which splits, digests and files of data groups differ."""
    values = {
        str(v)
        for group in (a, b)
        for k, v in group.settings.items()
        if k.startswith("data.")
    }
    files = [f"files_sha256.{value}" for value in values]
    keys = [c.key for c in changes if c.key.startswith("data_sha256") or c.key in files]
    return [*dict.fromkeys([*(key for key, *_ in _other_splits(a, b)), *keys])]


def _fingerprints(name: str, a: Group, b: Group) -> list[dict[Any, str]] | None:
    """Return fingerprints of two groups' runs by seed and fold; None if a run has
    none."""
    fingerprints = [
        {_sample(run): run.fingerprint(name) for run in group.runs} for group in (a, b)
    ]
    return fingerprints if all(all(each.values()) for each in fingerprints) else None


def _other_splits(a: Group, b: Group) -> Iterator[tuple[str, Any, Any]]:
    """Yield the seeds of splits and data in which groups differ, though the seed is the
    same."""
    for key in sorted({key for run in (*a.runs, *b.runs) for key in run.seeds}):
        if key != "seed" and ("split" in key or key.startswith("data.")):
            table = [
                {_sample(run): run.seeds.get(key) for run in group.runs}
                for group in (a, b)
            ]
            if _differ(*table):
                values = [
                    sorted({str(value) for value in by_sample.values()})
                    for by_sample in table
                ]
                yield key, ", ".join(values[0]), ", ".join(values[1])


def _differ(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> bool:
    """Return whether values by seed differ: at shared seeds, or else if each side has
    only one."""
    if shared := a.keys() & b.keys():
        return any(a[key] != b[key] for key in shared)
    only = [{*map(str, each.values())} for each in (a, b)]
    return len(only[0]) == len(only[1]) == 1 and only[0] != only[1]


def _sample(run: SweepRun) -> tuple[Any, str]:
    return run.seeds.get("seed"), run.fold


def _results(group: Group) -> dict[str, str]:
    """Return steps, sizes and mean seconds of a group's runs, as text."""
    summaries = [record.flatten(run.summary) for run in group.runs]
    seconds = [each.get("seconds") for each in summaries]
    known = [float(value) for value in seconds if isinstance(value, int | float)]
    keys = ("steps", "parameters", "samples.train", "samples.validation")
    values = {
        key: {str(each.get(key, "unknown")) for each in summaries} for key in keys
    }
    texts = {key: " or ".join(sorted(each)) for key, each in values.items()}
    return {**texts, "seconds": f"{fmean(known):.1f}" if known else "unknown"}
