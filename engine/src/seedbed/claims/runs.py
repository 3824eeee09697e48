"""The runs of a claim: which variant and seed each one is of, and what contradicts the
claim."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.claims.lock import SEED, Fixed, Lock, settings_of
from seedbed.config import Settings
from seedbed.errors import InputError, some
from seedbed.names import flatten
from seedbed.record import (
    Origin,
    chain,
    change,
    code,
    files,
    text,
    untrusted,
    verified,
)
from seedbed.sweeps import groups
from seedbed.sweeps.groups import SweepRun

FINISHED, FAILED = "finished", "failed"
ENDED = (FINISHED, FAILED)
_MOST_NAMED = 3  # keys in a line
_MOST_FILES = 20
_FILLED_IN = "data.stream_lengths"  # by a run, unless they are given
_DIGESTS = ("data_sha256", "files_sha256")
_STATISTICS = "statistics_sha256"
# Settings of `data` that do not choose the samples.
_HOW_LOADED = (
    "data.batch_size",
    "data.collate*",
    "data.eval_batch_size",
    "data.loading_threads",
    "data.num_workers",
    "data.persistent_workers",
    "data.prefetch_factor",
    "data.sampler*",
    "data.start_method",
    "data.task*",
)
Place = tuple[str, int]  # variant and seed


@dataclass(frozen=True)
class ClaimedRun:
    """A run with the digest of the claim."""

    run: SweepRun
    state: str  # finished, failed, or as it stopped: running, killed, interrupted
    reason: str = ""  # of a failure


@dataclass
class Found:
    """The runs of a claim by variant and seed."""

    runs: dict[Place, ClaimedRun] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)  # what contradicts the claim
    notes: list[str] = field(default_factory=list)

    def state(self, variant: str, seed: int) -> str:
        claimed = self.runs.get((variant, seed))
        return claimed.state if claimed else "missing"

    def values(self, variant: str, seeds: Sequence[int]) -> list[SweepRun]:
        """Return the runs of seeds with their seed alone, which variants share."""
        runs = [self.runs[variant, seed].run for seed in seeds]
        return [
            replace(run, seeds={SEED: seed})
            for run, seed in zip(runs, seeds, strict=True)
        ]


def find(lock: Lock, folders: Sequence[Path]) -> Found:
    """Read all runs below some folders; those without the claim's digest do not
    count."""
    claim_runs = Found()
    for folder in folders:
        for run_folder in record.runs_below(folder):
            run = replace(
                groups.read_run(run_folder, run_folder), name=_name(run_folder)
            )
            if not run.config:
                claim_runs.notes.append(f"{run.name}: {run.failure}: does not count")
            elif run.config.get("claim") != lock.digest:
                claim_runs.notes.append(
                    f"{run.name}: has not the digest of the claim: does not count"
                )
            else:
                _add(claim_runs, lock, run)
    claim_runs.refused += _equal_seeds(claim_runs)
    claim_runs.refused += _unlike_data(claim_runs, lock)
    claim_runs.refused += _unlike_code(claim_runs, lock)
    claim_runs.notes += _unlike_machines(claim_runs)
    return claim_runs


def _name(folder: Path) -> str:
    current = Path.cwd()
    return str(
        folder.relative_to(current) if folder.is_relative_to(current) else folder
    )


def _add(claim_runs: Found, lock: Lock, run: SweepRun) -> None:
    """Add a run to those of a claim, or what contradicts the claim in it."""
    variant, problems = _variant_of(lock, run)
    problems += _other_seeds(lock, variant, run)
    claimed = _claimed(lock, run)
    if claimed.state == FINISHED:
        problems += _contradictions(lock, claimed.run)
    claim_runs.refused += [f"{run.name}: {problem}" for problem in problems]
    if problems:
        return
    key = variant, run.seeds[SEED]
    before = claim_runs.runs.get(key)
    if before is None:
        claim_runs.runs[key] = claimed
        return
    both = [each for each in (before, claimed) if _has_ended(each.run)]
    values = {repr((each.run.weights, each.run.metrics)) for each in both}
    if len(values) > 1:
        claim_runs.refused.append(
            f"{run.name}: expected the bits of {before.run.name}, which has the same"
            " seed, got others"
        )
    elif before.state != FINISHED and claimed.state == FINISHED:
        claim_runs.runs[key] = claimed
    claim_runs.notes.append(
        f"{run.name}: {variant}, seed {key[1]}, is also {before.run.name}: counts once"
    )


def _has_ended(run: SweepRun) -> bool:
    """Return whether a run has trained to its end, whatever its values are."""
    return record.status_of(run.folder, run.summary) == FINISHED


def _claimed(lock: Lock, run: SweepRun) -> ClaimedRun:
    status = record.status_of(run.folder, run.summary)
    if status == FINISHED and not run.failure and lock.claim.metric not in run.metrics:
        return ClaimedRun(run, FAILED, f"has no finite {lock.claim.metric}")
    return ClaimedRun(run, status, run.failure)


def _variant_of(lock: Lock, run: SweepRun) -> tuple[str, list[str]]:
    """Return the variant that a run is of, or else the nearest one and what differs."""
    settings = settings_of(run.config)
    several = {
        name: [*_other_settings(fixed, settings), *_other_code(fixed, run)]
        for name, fixed in lock.variants.items()
    }
    name = min(several, key=lambda variant: len(several[variant]))
    problems = several[name]
    more = len(problems) - _MOST_NAMED
    shown = problems[:_MOST_NAMED] + ([f"and {more} more"] if more > 0 else [])
    return name, [f"{problem} ({name})" for problem in shown]


def _other_settings(fixed: Fixed, settings: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(fixed.settings.keys() | settings.keys()):
        if key.startswith(_FILLED_IN) and fixed.settings.get(_FILLED_IN) is None:
            continue
        expected, got = (_shown(each.get(key)) for each in (fixed.settings, settings))
        if expected != got:
            yield f"{key}: expected {expected:.80} of the claim, got {got:.80}"


def _shown(value: Any) -> str:
    return text.as_json(value, indent=None)


def _other_code(fixed: Fixed, run: SweepRun) -> Iterator[str]:
    for name, digest in run.origin.imported.items():
        expected = fixed.code.get(name)
        if expected is None and not name.startswith(f"{code.ELSEWHERE}/"):
            yield f"{name}: expected a file of the claim, got one that was added"
        elif expected not in (None, digest):
            yield (
                f"{name}: expected the file of the claim ({expected:.12}), got another"
                f" ({digest:.12})"
            )


def _other_seeds(lock: Lock, variant: str, run: SweepRun) -> Iterator[str]:
    seed = run.seeds.get(SEED)
    fixed = lock.variants[variant].seeds
    if type(seed) is not int or seed not in lock.seeds:
        yield f"seed: expected one of the claim, got {seed}: it was added"
        return
    if run.summary.get("seed") != seed:
        yield f"summary.json: seed: expected {seed}, got {run.summary.get('seed')}"
    for key in sorted(fixed.keys() | run.seeds.keys()):
        expected = seed if fixed.get(key) == SEED else fixed.get(key)
        if run.seeds.get(key) != expected:
            yield f"{key}: expected {expected} of the claim, got {run.seeds.get(key)}"


def _contradictions(lock: Lock, run: SweepRun) -> Iterator[str]:
    """Yield what in the record of a finished run contradicts the claim or the
    record."""
    if run.failure:
        yield run.failure
        return
    try:
        plan = untrusted.read_json(run.folder / chain.PLAN)
        origin = Origin(
            flatten(untrusted.read_dict(run.folder)), run.environment, run.folder
        )
        if plan.get("claim") != lock.digest:
            yield (
                f"{chain.PLAN}: expected the digest of the claim, got none: the run"
                " began without it"
            )
        yield from chain.contradictions(run.folder, origin, run.summary)
        if (name := origin.unlike_archive()) is not None:
            yield f"{code.ARCHIVE}: {name} is not the file that was imported"
    except InputError as error:
        yield str(error)
        return
    if not origin.imported:
        yield "environment.json: expected digests of the code, got none"
    for step, keys in _changed_by_resumes(run):
        yield f"was resumed at step {step} with other {', '.join(keys)}"
    yield from _other_length(plan, run)
    yield from _other_weights(run)
    if verified.of(run.folder) == "no":
        yield "scripts/verify.py did not reproduce it"


def _other_length(plan: Mapping[str, Any], run: SweepRun) -> Iterator[str]:
    """Yield a line if a run has not the steps of its plan; early stopping, if it is
    set, takes fewer."""
    planned = flatten(plan).get("segments.last_step")
    steps = run.summary.get("steps")
    may_stop = run.config.get(record.PATIENCE) is not None
    are_fewer = type(steps) is int and type(planned) is int and steps < planned
    if steps != planned and not (may_stop and are_fewer):
        yield f"steps: expected {planned} of its plan, got {steps}"


def _changed_by_resumes(run: SweepRun) -> Iterator[tuple[Any, list[str]]]:
    """Yield (step, keys) of each resume with changes that the claim has fixed, also if
    a later one has undone them."""
    sections = {each.name for each in dataclasses.fields(Settings)}
    altered = {step: list(keys) for step, keys in record.altered(run.summary)}
    resumes = run.summary.get("resumes")
    for entry in resumes if isinstance(resumes, list) else ():
        changes = entry.get("changes") if isinstance(entry, Mapping) else None
        names = [str(key) for key in changes] if isinstance(changes, Mapping) else []
        fixed = settings_of(dict.fromkeys(names))
        keys = [key for key in fixed if key.partition(".")[0] in sections]
        if keys:
            altered.setdefault(entry.get("step"), []).extend(keys)
    for step, keys in altered.items():
        yield step, list(dict.fromkeys(keys))


def _other_weights(run: SweepRun) -> Iterator[str]:
    """Yield a line if the tested weights are not those that trainer.test_weights
    selects by the validations in metrics.csv."""
    results = record.Results(record.read_metrics(run.folder))
    name = str(run.summary.get("metric_name"))
    monitor = record.Monitor(name, bool(run.summary.get("higher_is_better")))
    is_best = run.config.get("trainer.test_weights") == "best"
    step = results.best_step(monitor) if is_best else results.last_step
    tested = run.summary.get("tested_step")
    if tested is not None and tested != step:
        yield f"summary.json: tested_step: expected {step} by metrics.csv, got {tested}"


def _equal_seeds(claim_runs: Found) -> Iterator[str]:
    """Yield a line for a run with the weights of another seed, unless all have the
    same."""
    for variant in dict.fromkeys(name for name, _ in claim_runs.runs):
        by_weights = dict[str, list[str]]()
        for (name, _), claimed in claim_runs.runs.items():
            if name == variant and claimed.state == FINISHED:
                by_weights.setdefault(str(claimed.run.weights), []).append(
                    claimed.run.name
                )
        for names in by_weights.values():
            if len(names) > 1 and len(by_weights) > 1:
                yield (
                    f"{names[1]}: expected weights of its own seed, got those of"
                    f" {names[0]}"
                )


def _unlike_data(claim_runs: Found, lock: Lock) -> Iterator[str]:
    """Yield a line for each digest of data that is not that of the claim, or of another
    run with the same settings of data, or that one of them lacks."""
    known: dict[tuple[str, str], tuple[str, str]] = {}
    for name, fixed in lock.variants.items():
        for path, digest in fixed.data.items():
            known.setdefault(
                (_data_settings(lock, name), f"files_sha256.{path}"),
                (digest, "the claim"),
            )
    several: dict[str, dict[str, dict[str, str]]] = {}  # by settings of data, by run
    for (name, seed), claimed in claim_runs.runs.items():
        of_data = _data_settings(lock, name)
        digests = dict(_digests(claimed.run, seed))
        several.setdefault(of_data, {})[claimed.run.name] = digests
        for key, digest in digests.items():
            expected, source = known.setdefault(
                (of_data, key), (digest, claimed.run.name)
            )
            if digest != expected and not expected.startswith("not recorded"):
                yield (
                    f"{claimed.run.name}: {key}: expected the data of {source}"
                    f" ({expected:.12}), got other data ({digest:.12})"
                )
    for of_data, runs in several.items():
        fixed_keys = {key for settings, key in known if settings == of_data}
        yield from _lacking_data(fixed_keys, runs)


def _lacking_data(
    keys: Set[str], runs: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield a line for each digest that a run lacks and others have.

    One of the claim may be in none if data sets state digests themselves.
    """
    for key in sorted(keys):
        if key.startswith(_STATISTICS):
            continue
        have = [name for name, digests in runs.items() if key in digests]
        states = [
            any(k.startswith(_DIGESTS[0]) for k in digests) for digests in runs.values()
        ]
        if not have and all(states):
            continue
        for name in runs.keys() - set(have):
            yield f"{name}: {key}: expected the digest of the data, got none"


def _data_settings(lock: Lock, name: str) -> str:
    """Return the settings that say which data a variant is trained on: not how it is
    loaded."""
    settings = lock.variants[name].settings
    return _shown(
        {
            key: value
            for key, value in settings.items()
            if key.startswith("data.") and not change.matches(key, _HOW_LOADED)
        }
    )


def _digests(run: SweepRun, seed: int) -> Iterator[tuple[str, str]]:
    """Yield the digests of a run's data by name."""
    known = {name: run.environment.get(name) for name in _DIGESTS}
    for key, digest in flatten(known).items():
        is_time = key.endswith(files.TIMES)
        if digest and not is_time and not str(digest).startswith("not recorded"):
            yield key, str(digest)
    if statistics := run.environment.get("statistics_sha256"):
        yield f"{_STATISTICS} of seed {seed}", str(statistics)


def _unlike_code(claim_runs: Found, lock: Lock) -> Iterator[str]:
    """Yield a line for each file outside the project that not all runs have imported,
    in one version: no claim fixes it."""
    imported = dict[str, dict[str, str]]()  # by run
    for (name, _), claimed in claim_runs.runs.items():
        fixed = lock.variants[name].code
        if claimed.state == FINISHED:
            files_of_run = claimed.run.origin.imported
            imported[claimed.run.name] = {
                file: digest
                for file, digest in files_of_run.items()
                if file not in fixed
            }
    known = {file for each in imported.values() for file in each}
    for file in sorted(known):
        digests = {name: each.get(file) for name, each in imported.items()}
        first = next(name for name, digest in digests.items() if digest is not None)
        for name, digest in digests.items():
            if digest != digests[first]:
                got = "none" if digest is None else "another"
                yield (
                    f"{name}: {file}: expected the file that {first} has imported from"
                    f" outside the project, got {got}: no claim fixes it; put it into"
                    " src/, or install it"
                )
    if known:
        claim_runs.notes.append(
            "the claim does not fix code outside the project, which all runs have"
            f" imported alike: {some(sorted(known), _MOST_FILES)}"
        )


def _unlike_machines(claim_runs: Found) -> Iterator[str]:
    """Yield a line if runs had other versions or hardware, which give other bits."""
    origins = [Origin({}, run.environment) for run in _finished(claim_runs)]
    keys = dict[str, None]()
    for origin in origins[1:]:
        for changed in record.changes(origins[0], origin):
            is_data = changed.key.startswith((*_DIGESTS, _STATISTICS))
            if changed.kind == "environment" and changed.alters_bits and not is_data:
                keys[changed.key] = None
    if keys:
        yield (
            "runs were made with other versions or hardware, which give other bits:"
            f" {', '.join([*keys][:_MOST_NAMED])}"
        )


def _finished(claim_runs: Found) -> list[SweepRun]:
    return [each.run for each in claim_runs.runs.values() if each.state == FINISHED]
