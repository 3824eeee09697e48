"""Runs with the same seeds that have different bits: a promise broken, or another machine."""

from collections.abc import Iterable, Sequence

from seedbed.sweeps import origin
from seedbed.sweeps.groups import Group, Run
from seedbed.sweeps.seeds import Seeds
from seedbed.sweeps.summary import Scale

_MOST_CHANGES = 6


def broken_promises(groups: Iterable[Group]) -> list[str]:
    """Return a line for each configuration that promises bits and has runs of one seed that differ.

    The promise is for the same code on the same kind of machine.
    """
    return [line for same in _promising(groups) for line in _broken_promise(same)]


def other_origins(groups: Iterable[Group]) -> list[str]:
    """Return lines on runs of one seed that differ and come from other code or machines."""
    lines = []
    for same in _promising(groups):
        pairs = [(runs[0], runs[1]) for runs in _representatives(same)]
        if pairs:
            keys = ", ".join(str(change) for change in origin.between(pairs)[:_MOST_CHANGES])
            lines.append(
                f"{len(pairs)} seeds that ran more than once have different bits, and were not "
                f"made alike: {keys} ({pairs[0][0].folder}, {pairs[0][1].folder})"
            )
    return lines


def _representatives(groups: Sequence[Group]) -> list[list[Run]]:
    """Return for seeds with different bits one run of each origin, if there are several."""
    classes = [origin.alike(runs) for runs in _repeated(groups) if _differ(runs)]
    return [[each[0] for each in found] for found in classes if len(found) > 1]


def _promising(groups: Iterable[Group]) -> list[list[Group]]:
    """Return the groups that promise bits, those of one configuration together."""
    table: dict[str, list[Group]] = {}
    for group in groups:
        if group.promises_bits:
            table.setdefault(group.runs[0].configuration, []).append(group)
    return list(table.values())


def _repeated(groups: Sequence[Group]) -> list[list[Run]]:
    """Return the runs of each of the seeds that ran more than once."""
    replicates: dict[Seeds, list[Run]] = {}
    for group in groups:
        for seeds, runs in group.replicates.items():
            replicates.setdefault(seeds, []).extend(runs)
    return [runs for runs in replicates.values() if len(runs) > 1]


def _broken_promise(groups: Sequence[Group]) -> list[str]:
    repeated = _repeated(groups)
    classes = [each for runs in repeated if _differ(runs) for each in origin.alike(runs)]
    broken = [runs for runs in classes if _differ(runs)]
    if not broken:
        return []
    seeds = len({runs[0].seeds for runs in broken})
    scale = Scale(groups[0].metric)
    values = [[run.value(scale.metric) for run in runs] for runs in broken]
    floor = max(max(each) - min(each) for each in values)
    first, second = (
        broken[0][0],
        next(run for run in broken[0] if _fingerprints(run) != _fingerprints(broken[0][0])),
    )
    return [
        f"NOISE FLOOR: {seeds} of {len(repeated)} seeds that ran more than once under "
        f"determinism={groups[0].settings['determinism.name']} have different bits, and differ by "
        f"up to {scale.show(floor)} in {scale.title}; no smaller difference means anything. "
        f"To see where they diverge: python scripts/compare.py {first.folder} {second.folder}"
    ]


def _differ(runs: Sequence[Run]) -> bool:
    return len({_fingerprints(run) for run in runs}) > 1


def _fingerprints(run: Run) -> str:
    return repr(run.summary.get("fingerprints"))
