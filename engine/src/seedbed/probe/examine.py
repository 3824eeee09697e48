"""Repeat the first steps of a configuration, and print why they are not reproducible.

python -m seedbed.probe.examine FOLDER, with a resolved configuration in FOLDER/config.yaml

Step 1 is run twice, step 2 once from the beginning and once after resuming from a checkpoint;
data, model and optimizer are rebuilt each time. Every operation is traced, to name the first one
that differs and all that deterministic algorithms refuse.
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
from seedbed.worker import assemble, sources


def examine(settings: config.Settings) -> list[str]:
    """Return lines on refused operations and differences in a configuration's first steps."""
    assemble.prepare_backends(settings)
    settings = sources.fill_statistics(settings, Shards())
    set_on_nondeterministic = backends.flags()["on_nondeterministic"].set
    assert set_on_nondeterministic is not None
    is_strict = config.promises_bits(settings.determinism.on_nondeterministic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_strict:
            set_on_nondeterministic("warn")  # same kernels, but no stop at the first refusal
        trace = refusing = replay(settings, 1)
        lines = difference(trace, replay(settings, 1), "is taken twice") or resumed(settings)
        if not is_strict:  # may change kernels, so only its refusals are used
            set_on_nondeterministic("warn")
            refusing = replay(settings, 1)
    return refusals_in(refusing) + lines


def refusals_in(trace: Trace) -> list[str]:
    """Return a line for each operation and place that PyTorch warned about."""
    lines = []
    for event in trace.events:
        if event.refusal:
            operation, instead = refusals.describe(event.refusal)
            lines.append(
                f"{operation} has no deterministic implementation: {event.place}; {instead}"
            )
    return list(dict.fromkeys(lines))


def resumed(settings: config.Settings) -> list[str]:
    """Return lines on how step 2 differs in a run resumed before it; none if it does not.

    Such a run has only the checkpoint of step 1, so it differs if there is state elsewhere, such as
    that of a generator in a model or a data set.
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
