"""By what a validation value is computed: what differs there makes it another value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seedbed.record import Change
from seedbed.sweeps.groups import VALIDATION, Group

# The built-in tasks by name: the metric, and the arguments that change the loss alone.
_BUILT_IN = {
    "classification": ("accuracy", ("label_smoothing", "class_weights")),
    "binary": ("accuracy", ("pos_weight",)),
    "multilabel": ("accuracy", ("pos_weight",)),
    "regression": ("mse", ()),
    "quantile": ("pinball", ()),
}
_PACKAGE = "seedbed.tasks."
_STATISTICS = "statistics_sha256"  # of environment.json
_FILES = "files_sha256."  # of environment.json, before the path of a setting
# evaluates by the task, whatever its arguments
_SUPERVISED = "seedbed.methods.Supervised"


@dataclass(frozen=True)
class Definition:
    """The settings that a value is computed with, as beginnings of their keys."""

    certain: Sequence[str]  # one that differs makes it another value
    possible: Sequence[str]  # one that differs may do so
    harmless: Sequence[str] = ()  # keys below `certain` that do not

    @classmethod
    def of(cls, metric: str, *groups: Group) -> "Definition":
        """Return the definition of a metric of several groups, such as
        `validation_loss`.

        A loss is computed with the task and, if the method evaluates, all its
        arguments. So may other values be, but most arguments of methods concern
        training. Values of `metrics` have only their own arguments, and those of
        built-in tasks are known.
        """
        name = metric.removeprefix(VALIDATION)
        by_method = ["method."] if any(map(_evaluates_by_method, groups)) else []
        configs = [group.settings for group in groups]
        prefix = f"metrics.{name}."
        if any(key.startswith(prefix) for config in configs for key in config):
            return cls([prefix], by_method)
        if _is_loss(name):
            return cls(["data.task.", *by_method], [])
        tasks = {_built_in_task(config) for config in configs}
        of_task, of_loss = _BUILT_IN.get(" or ".join(tasks), ("", ()))
        possible = by_method if name == of_task else [*by_method, "callbacks."]
        return cls(
            ["data.task."], possible, [f"data.task.{argument}" for argument in of_loss]
        )


def others(metric: str, a: Group, b: Group, changes: Sequence[Change]) -> Iterator[str]:
    """Yield what makes a metric of two groups two different values."""
    definition = Definition.of(metric, a, b)
    noun = "loss" if _is_loss(metric) else "metric"
    for change in changes:
        is_part = change.key.startswith(tuple(definition.certain))
        if is_part and change.key not in definition.harmless:
            yield f"another {noun}: {change.key} is {change.before} and {change.now}"
        if change.key.startswith(_FILES):
            path = change.key.removeprefix(_FILES)
            for key, value in a.settings.items():
                is_part = key.startswith(tuple(definition.certain))
                if is_part and key not in definition.harmless and str(value) == path:
                    yield f"another {noun}: the file {path} of {key} has changed"


def doubts(metric: str, a: Group, b: Group, changes: Sequence[Change]) -> Iterator[str]:
    """Yield what may make a metric of two groups two different values: settings, and
    code."""
    definition = Definition.of(metric, a, b)
    parts = (*definition.certain, *definition.possible)
    keys = [c.key for c in changes if c.key.startswith(tuple(definition.possible))]
    if any(key.startswith(parts) and key.endswith("statistics") for key in a.settings):
        keys += [change.key for change in changes if change.key == _STATISTICS]
    if keys:
        yield (
            f"{', '.join(keys)}: if {metric} is computed by it, the values cannot be"
            " compared"
        )
    settings = [f"{part}_target_" for part in parts]
    for change in (change for change in changes if change.kind == "code"):
        for setting in settings:
            classes = {str(group.settings.get(setting)) for group in (a, b)}
            if any(f"/{change.key}".endswith(_files_of(each)) for each in classes):
                yield (
                    f"{change.key}, which has {setting}, differs: {metric} may be"
                    " another value"
                )


def _is_loss(metric: str) -> bool:
    return metric.endswith("loss")


def _evaluates_by_method(group: Group) -> bool:
    """Return whether a method computes a group's values itself, or may do so."""
    if group.settings.get("method._target_") == _SUPERVISED:
        return False
    return any(run.summary.get("evaluated_by") != "task" for run in group.runs)


def _built_in_task(config: Mapping[str, Any]) -> str:
    """Return the name of the built-in task of a configuration; of others, some other
    text."""
    target = config.get("data.task._target_")
    if target is None:
        return str(config.get("data.task.name"))
    return str(target).removeprefix(_PACKAGE).lower()


def _files_of(name: str) -> tuple[str, str]:
    """Return how the paths of the files end that may define a class."""
    module = name.rpartition(".")[0].replace(".", "/")
    return f"/{module}.py", f"/{module}/__init__.py"
