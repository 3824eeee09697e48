"""Two sweeps against each other: is one better, and by how much?"""

from collections.abc import Iterable, Sequence

import numpy as np

from seedbed.errors import InputError
from seedbed.sweeps import origin, statistics
from seedbed.sweeps.differences import Difference, differences
from seedbed.sweeps.groups import Group, Sweep
from seedbed.sweeps.labels import changes, differing_keys
from seedbed.sweeps.promises import broken_promises, other_origins
from seedbed.sweeps.report import lost_runs, markdown_table, show_count
from seedbed.sweeps.seeds import Seeds
from seedbed.sweeps.statistics import Floats
from seedbed.sweeps.summary import Scale, summarise

_MOST_KEYS_SHOWN = 12
_ROUNDING = 1e-9  # what the same difference of other floats may differ by


def compare(a: Sweep, b: Sweep) -> str:
    """Return the comparison of two sweeps as Markdown.

    Sweeps of several configurations are compared configuration by configuration.

    Raises:
        InputError: there is no configuration in common to compare, or no metric.
    """
    parts = broken_promises([*a.groups, *b.groups])
    parts += other_origins([*a.groups, *b.groups])
    parts += [text for sweep in (a, b) for text in lost_runs(sweep)]
    parts.append(f"A: {a.folder}\nB: {b.folder}")
    for first, second in _matched(a, b):
        if len(a.groups) > 1:
            parts.append(f"## {first.label}")
        parts += compare_groups(first, second)
    return "\n\n".join(parts)


def compare_groups(a: Group, b: Group) -> list[str]:
    """Return the comparison of two groups of runs as paragraphs of Markdown."""
    if a.metric != b.metric:
        raise InputError(
            f"metric: expected the same in both sweeps, got {a.metric} in A and {b.metric} in B; "
            "compare sweeps of one task"
        )
    scale = Scale(a.metric)
    found = differences(a, b)
    parts = [configuration_difference(a, b), _means_table(a, b)]
    if found:
        parts.append(_differences_table(found, scale))
    share = statistics.probability_of_improvement(
        _values(a, a.values), _values(b, b.values), a.higher_is_better
    )
    parts.append(f"Probability that a run of B is better than a run of A: {share:.2f}.")
    parts.append(verdict(a, b, found))
    return parts


def verdict(a: Group, b: Group, found: Sequence[Difference]) -> str:
    """Return a sentence on whether a difference can be claimed."""
    scale = Scale(a.metric)
    if not found and min(len(a.values), len(b.values)) > 1:
        return "No difference can be claimed: streams vary one at a time, so runs share seeds."
    if not found:
        return "No difference can be claimed: one seed a side says nothing about the others."
    best = found[0]
    interval = scale.show_interval(best.interval, "+")
    seeds = f"{best.n_a} {a.unit} in both"
    if not best.paired:
        seeds = f"{best.n_a} and {best.n_b} {a.unit if a.unit == b.unit else 'runs'}"
    if best.sd == best.mean == 0:
        return f"No difference can be claimed: {seeds}, and not one value differs."
    if best.sd <= _ROUNDING * abs(best.mean):
        return f"No difference can be claimed: {seeds} show no spread, so it is not known."
    if best.interval[0] <= 0 <= best.interval[1]:
        return (
            f"No difference can be claimed: with {seeds}, the 95 % interval of B - A, {interval}, "
            f"contains zero.{_seeds_needed(a, best)}"
        )
    better = (best.mean > 0) == a.higher_is_better
    return (
        f"A difference can be claimed: B is {'better' if better else 'worse'} than A, "
        f"B - A = {scale.show(best.mean, '+')} in {scale.title}, 95 % interval {interval}, "
        f"with {seeds}."
    )


def _seeds_needed(a: Group, best: Difference) -> str:
    """Return a sentence on how many seeds it takes; none if the mean is 0, or there is only one."""
    if a.unit == "folds":
        return ""
    scale = Scale(a.metric)
    differences = scale.differences(float(np.mean(_values(a, a.values))))
    needed = [statistics.seeds_to_detect(each, best.sd, best.paired) for each in differences]
    if None in needed:
        return ""
    names = scale.difference_names
    seeds = "paired seeds a side (the same in both)" if best.paired else "unpaired seeds a side"
    return (
        f" At this spread it takes {needed[0]} {seeds} to detect {names[0]}, {needed[1]} to detect "
        f"{names[1]}."
    )


def configuration_difference(a: Group, b: Group) -> str:
    """Return in what the configurations of two groups, and their code and machines, differ."""
    keys = differing_keys([a.settings, b.settings])
    matching = [(runs[0], b.replicates[s][0]) for s, runs in a.replicates.items() if s in b.values]
    origins = origin.between(matching or [(a.runs[0], b.runs[0])])
    if not keys and not origins:
        return "A and B have the same configuration: they differ in nothing but seeds."
    found = changes(a.settings, b.settings, keys, *origins)
    settings = [change for change in found if change.kind == "configuration"]
    others = [change for change in found if change.kind != "configuration"]
    shown = settings[:_MOST_KEYS_SHOWN] + others[:_MOST_KEYS_SHOWN]
    lines = [f"- {change.key}: {change.before} in A, {change.now} in B" for change in shown]
    more = len(found) - len(shown)
    return "\n".join(["A and B differ in:", *lines, *([f"- and {more} more keys"] if more else [])])


def _matched(a: Sweep, b: Sweep) -> list[tuple[Group, Group]]:
    """Return the pairs of groups that stand for the same place in both sweeps."""
    for name, sweep in (("A", a), ("B", b)):
        if not sweep.groups:
            raise InputError(
                f"{sweep.folder}: expected finished runs in {name}, got none that count"
            )
    by_label = {group.label: group for group in b.groups}
    if by_label.keys() != {group.label for group in a.groups}:
        raise InputError(
            f"{b.folder}: expected the configurations of A ({_labels(a)}), got {_labels(b)}; "
            "compare sweeps of one configuration, or over the same keys"
        )
    return [(group, by_label[group.label]) for group in a.groups]


def _labels(sweep: Sweep) -> str:
    return "; ".join(group.label or "one configuration" for group in sweep.groups)


def _means_table(a: Group, b: Group) -> str:
    scale = Scale(a.metric)
    rows = []
    for name, each in (("A", summarise(a)), ("B", summarise(b))):
        rows.append((name, show_count(each.n), scale.show(each.mean), scale.show(each.sd),
                     scale.show_interval(each.interval)))  # fmt: skip
    return markdown_table((scale.title, "n", "mean", "sd", "95 % interval"), rows)


def _differences_table(found: Sequence[Difference], scale: Scale) -> str:
    rows = [each.cells(scale) for each in found]
    return markdown_table(("B - A over", "difference", "sd", "95 % interval"), rows)


def _values(group: Group, seeds: Iterable[Seeds]) -> Floats:
    return np.array([group.values[each] for each in seeds])
