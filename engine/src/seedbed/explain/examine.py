"""Repeat the first steps of a configuration, and print why they are not reproducible.

python -m seedbed.explain.examine FOLDER, with a resolved configuration in FOLDER/config.yaml

Data, model and optimizer are rebuilt for each step, and every operation is traced, to name the
first one that differs and all that deterministic algorithms refuse.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import torch_deterministic_kernels as kernels

from seedbed import assemble, config, operations, project, record, signals
from seedbed.assemble import sources, statistics
from seedbed.determinism import backends
from seedbed.errors import exit_on_errors, printable
from seedbed.explain.difference import describe, first_difference
from seedbed.explain.replay import Trace, replay
from seedbed.training import checkpoint
from seedbed.training.shards import Shards


def examine(settings: config.Settings) -> list[str]:
    """Return lines on refused operations and differences in a configuration's first steps."""
    assemble.prepare_backends(settings)
    settings = sources.count_streams(settings, Shards())
    if statistics.are_wanted(settings):
        settings = statistics.filled(settings, statistics.parse(statistics.fitted(settings)))
    set_on_nondeterministic = backends.flags()["on_nondeterministic"].set
    set_replace = backends.flags()["replace"].set
    assert set_on_nondeterministic is not None
    assert set_replace is not None
    is_strict = config.promises_bits(settings.determinism.on_nondeterministic)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        if is_strict:
            set_on_nondeterministic("warn")  # same kernels, but no stop at the first refusal
        first = refusing = replay(settings, 1)
        differing = difference(first, replay(settings, 1), "is taken twice")
        if not differing:  # a resumed run lacks state that is not in the checkpoint of step 1
            path = Path(folder, checkpoint.LAST)
            second = replay(settings, 2, save=path)
            resumed = replay(settings, 2, [path])
            differing = difference(second, resumed, "is taken by a resumed run")
        if not is_strict:  # may change kernels, so only its refusals are used
            set_on_nondeterministic("warn")
            set_replace(True)
            refusing = replay(settings, 1)
    refused = []
    for event in refusing.events:
        if event.refusal:
            operation, instead = operations.describe(event.refusal)
            found = f"{operation} has no deterministic implementation"
            refused.append(f"{found}: {event.place}; {instead}")
    return [*dict.fromkeys(refused), *differing]


def difference(a: Trace, b: Trace, when: str) -> list[str]:
    """Return lines on where two traces of one step diverge; none if they do not."""
    finding = first_difference(a.events, b.events)
    if finding is None:
        return []
    step = b.rows[-1]["step"]
    return [f"step {step} differs when it {when}", *describe(finding, [project.root()])]


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
            + "".join(f"; {item.operation} replaced" for item in sorted(kernels.replaced()))
        )
    return 1 if lines else 0


if __name__ == "__main__":
    with exit_on_errors():
        sys.exit(main())
