"""Replay a run from its record: REPRODUCED, or the first step and stage that differ.

usage: python scripts/verify.py RUN|RUN.zip [options]

  --from-step N             start from the record's checkpoint of step N
  --steps M                 replay M steps only
  --tolerance METRIC=VALUE  if bits differ, replay to the end, and print whether a metric differs by
                            more; may be given for several metrics
  --explain                 if it differs, replay that step twice and name the first operation that
                            differs
  --keep DIR                replay there, and keep it
  --json                    print one JSON object instead
  --restore-code            replay with the code.zip of the record; this runs code of the record
  --trust NAME              a class, or a package of such, that the record may name besides those
                            that files of configs/ name
  --online                  open addresses that the record names: mirrors, downloads

example:
    python train.py seed=0 hydra.run.dir=runs/a
    python scripts/verify.py runs/a
    python scripts/verify.py runs/a --steps 100 --keep runs/a-again
    python scripts/verify.py runs/a --tolerance test_accuracy=0.005     # on another machine
    python scripts/verify.py runs/a --explain

exit status: 0 reproduced, 1 it differs, 2 it cannot be replayed
"""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from seedbed import config, record
from seedbed.compare import checkout, report, verify
from seedbed.compare.checkout import Tree
from seedbed.compare.verify import Outcome
from seedbed.config import options
from seedbed.errors import InputError, printable
from seedbed.record import archive, text


def main() -> int:
    """Replay the run that the command line names; print the outcome and return the exit status."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the replay ends with us
    with ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(TemporaryDirectory("-verify")))
        if (folder / "config.yaml").exists():
            raise InputError(f"--keep: expected a new folder, got {folder}, which holds a run")
        run = stack.enter_context(archive.run_folder(arguments.run))
        before = verify.read(run)
        tree = stack.enter_context(checkout.code_of(run, before.code, arguments.restore_code))
        verify.trusted_config(run, arguments.trust)  # what is refused begins nothing
        steps = verify.range_of(before, arguments.from_step, arguments.steps)
        tolerances = dict(arguments.tolerance)
        if unknown := tolerances.keys() - report.metrics(before).keys():
            known = ", ".join(report.metrics(before))
            raise InputError(
                f"--tolerance: expected a metric of the record ({known}), got {min(unknown)}"
            )
        # For whoever waits; the first line of the output is the outcome.
        count = f"{steps.last - steps.start} step{'s' * (steps.last - steps.start != 1)}"
        print(printable(f"replaying {count}: {arguments.run}"), file=sys.stderr, flush=True)
        outcome = verify.replay(
            *(run, folder, steps, arguments.trust, tree, arguments.online),
            to_the_end=bool(tolerances),
        )
        status = 0 if outcome.reproduced else 1
        if arguments.json:
            more = {"same": outcome.reproduced, "other_results": outcome.forged}
            compared = report.as_dict(outcome.record, outcome.replay, outcome.comparison)
            print(text.as_json(compared | more))
            return status
        for line in lines(outcome, str(arguments.run), tree, tolerances):
            print(printable(line))
        if arguments.explain and status:
            from seedbed.explain import of_replay  # needs torch, and can be deleted

            again = of_replay(run, outcome, arguments.trust, tree, arguments.online)
            print(*map(printable, again), sep="\n")
        if arguments.keep is not None:
            print(f"\nreplay: {folder}")
        elif status and arguments.run == run:
            print("\nTo look closer: --keep DIR, then scripts/compare.py RUN DIR")
    return status


def lines(outcome: Outcome, name: str, tree: Tree, tolerances: dict[str, float]) -> Iterator[str]:
    """Yield the lines to print: the outcome first."""
    a, b, comparison = outcome.record, outcome.replay, outcome.comparison
    steps, difference = outcome.steps, outcome.comparison.difference
    if outcome.reproduced:
        span = f"steps {steps.start + 1:,} to" if steps.start else "through step"
        yield f"REPRODUCED {name}"
        yield f"  the same bits {span} {steps.last:,}: {report.compared(comparison)}"
    elif difference is not None:
        first, *more = report.describe(difference)
        yield f"NOT REPRODUCED: the runs diverge at {first}"
        yield from more
    elif b.summary.get("status") == "finished" and outcome.reached_step != steps.last:
        yield f"NOT REPRODUCED: the record has {steps.last:,} steps"
        yield f"  the replay of its configuration ends after step {outcome.reached_step:,}"
    else:
        yield "NOT REPRODUCED: the bits are the same, but the record states other results"
        yield from (f"  {line}" for line in outcome.forged[:10])
    if not outcome.reproduced or comparison.notes or record.changes(a.origin, b.origin):
        yield "A is the record, B its replay"
    yield from (f"note: {note}" for note in comparison.notes)
    preset = a.config
    promises = config.promises_bits(preset.get("determinism.on_nondeterministic"))
    if difference is not None and not promises:
        yield f"note: determinism={preset.get('determinism.name')} does not promise the same bits"
    advice = "" if tree.is_recorded or outcome.reproduced else verify.advice_on_code(a)
    if advice:
        yield f"note: {advice}"
    if outcome.reproduced or difference is not None:
        yield from report.differing(a, b, same=difference is None)
    if not outcome.reproduced and b.summary.get("status") == "finished":
        both = (report.metrics(a), report.metrics(b))
        yield from report.metrics_table(*both, tolerances)
    elif difference is not None:
        step, last_a, last_b = report.last_values(a, b)
        yield from report.metrics_table(last_a, last_b, title=f"At step {step}")
        yield "\nTo replay to the end and compare the metrics: --tolerance METRIC=VALUE"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.Parser(__doc__).add("run", type=Path).add_trust()
    parser.add("--from-step", type=int, default=0).add("--steps", type=int)
    parser.add("--tolerance", type=tolerance, action="append", default=[])
    parser.add("--keep", type=Path).add_flags("--json", "--explain", "--restore-code")
    arguments = parser.parse_args()
    for name, least in (("steps", 1), ("from_step", 0)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            option = name.replace("_", "-")
            raise InputError(f"--{option}: expected an integer >= {least}, got {value}")
    return arguments


def tolerance(text: str) -> tuple[str, float]:
    """Read METRIC=VALUE, a value >= 0."""
    metric, _, value = text.rpartition("=")
    try:
        if metric and float(value) >= 0:
            return metric, float(value)
    except ValueError:
        pass
    raise InputError(f"--tolerance: expected METRIC=VALUE with a value >= 0, got {text}")
