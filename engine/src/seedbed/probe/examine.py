"""Repeat the first steps of a configuration; print what keeps them from being reproducible.

python -m seedbed.probe.examine FOLDER, with a resolved configuration in FOLDER/config.yaml

Step 1 is taken twice, step 2 once from the beginning and once by a run that is resumed before it;
each time, data, model and optimizer are built again. Every operation is traced, so the first one
that differs is named, and each one that deterministic algorithms refuse.
"""

import sys
import tempfile
import warnings
from pathlib import Path

from seedbed import config, project, record, signals
from seedbed.determinism import backends
from seedbed.errors import exit_status, printable
from seedbed.explain.replay import Trace, replay
from seedbed.explain.trace_compare import describe, first_difference
from seedbed.operations import refusals
from seedbed.training import checkpoint
from seedbed.training.shards import Shards
from seedbed.worker import assemble, statistics


def examine(settings: config.Settings) -> list[str]:
    """Return lines on what keeps a configuration's first steps from being reproducible."""
    assemble.prepare_backends(settings)
    settings = statistics.fill(settings, Shards())
    set_on_nondeterministic = backends.flags()["on_nondeterministic"].set
    assert set_on_nondeterministic is not None
    is_strict = config.promises_bits(settings.determinism.on_nondeterministic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_strict:
            set_on_nondeterministic("warn")  # the same kernels, and no stop at the first refusal
        trace = refusing = replay(settings, 1)
        lines = difference(trace, replay(settings, 1), "is taken twice") or resumed(settings)
        if not is_strict:  # strict may take other kernels, so nothing is compared with these
            set_on_nondeterministic("warn")
            refusing = replay(settings, 1)
    return refusals_in(refusing) + lines


def refusals_in(trace: Trace) -> list[str]:
    """Return a line for each operation and place that PyTorch warns of."""
    lines = []
    for event in trace.events:
        if event.refusal:
            operation, instead = refusals.describe(event.refusal)
            lines.append(
                f"{operation} has no deterministic implementation: {event.place}; {instead}"
            )
    return list(dict.fromkeys(lines))


def resumed(settings: config.Settings) -> list[str]:
    """Return how step 2 differs in a run that is resumed before it.

    Such a run knows nothing of step 1 but the checkpoint: state elsewhere shows, such as that of a
    generator in a model or a data set.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, checkpoint.LAST)
        trace = replay(settings, 2, save=path)
        return difference(trace, replay(settings, 2, [path]), "is taken by a resumed run")


def difference(a: Trace, b: Trace, when: str) -> list[str]:
    """Return lines on where two traces of one step diverge; none if they do not."""
    finding = first_difference(a.events, b.events)
    if finding is None:
        return []
    step, roots = b.rows[-1]["step"], [project.root()] * 2
    return [f"step {step} differs when it {when}", *describe(finding, roots)]


def main() -> int:
    """Examine the configuration in a folder; print what was found."""
    signals.release()
    settings = config.check(record.read_config(Path(sys.argv[1])))
    settings.trainer.compile = False  # a compiled model's operations cannot be seen
    lines = examine(settings)
    for line in lines:
        print(printable(line))
    if not lines:
        print(
            f"2 steps of {settings.model.name} under {settings.determinism.name}, "
            "repeated and resumed: the same bits, nothing refused"
        )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
