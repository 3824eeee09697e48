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
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from seedbed import config, record
from seedbed.compare import Record, checkout, report, verify
from seedbed.compare.checkout import Tree
from seedbed.compare.verify import Outcome
from seedbed.config import options
from seedbed.errors import InputError, printable
from seedbed.record import archive, text


def main() -> int:
    """Replay the run that the command line names and print what was found."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the replay ends with us
    if arguments.keep is not None:
        if (arguments.keep / "config.yaml").exists():
            raise InputError(
                f"--keep: expected a new folder, got {arguments.keep}, which holds a "
                "run; name another"
            )
        return judge_run(arguments, arguments.keep)
    with tempfile.TemporaryDirectory(prefix="seedbed-verify-") as folder:
        return judge_run(arguments, Path(folder))


def judge_run(arguments: argparse.Namespace, folder: Path) -> int:
    """Replay a run folder with the code that is here, or with its own if that is asked for."""
    with ExitStack() as stack:
        run = stack.enter_context(archive.run_folder(arguments.run))
        held = verify.read(run)
        tree = stack.enter_context(checkout.code_of(run, held.code, arguments.restore_code))
        verify.trusted_config(run, arguments.trust)  # what is refused begins nothing
        return judge(arguments, run, folder, tree, str(arguments.run))


def judge(arguments: argparse.Namespace, run: Path, folder: Path, tree: Tree, name: str) -> int:
    """Replay a run into a folder, print the outcome, and return the exit status.

    Args:
        tree: the code to replay it with.
        name: what to call the run.
    """
    before = verify.read(run)
    steps = verify.range_of(before, arguments.from_step, arguments.steps)
    tolerances = dict(arguments.tolerance)
    if unknown := tolerances.keys() - report.metrics(before).keys():
        known = ", ".join(report.metrics(before))
        raise InputError(
            f"--tolerance: expected a metric of the record ({known}), got {min(unknown)}"
        )
    # For whoever waits; the first line of the output is the outcome.
    print(printable(f"{_replaying(before, steps)}: {name}"), file=sys.stderr, flush=True)
    outcome = verify.replay(
        *(run, folder, steps, arguments.trust, tree, arguments.online),
        to_the_end=bool(tolerances),
    )
    if arguments.json:
        more = {"same": outcome.reproduced, "other_results": outcome.forged}
        compared = report.as_dict(outcome.record, outcome.replay, outcome.comparison)
        print(text.as_json(compared | more))
        return 0 if outcome.reproduced else 1
    for line in lines(outcome, name, tree, tolerances):
        print(printable(line))
    if arguments.explain and not outcome.reproduced:
        from seedbed.explain import of_replay  # needs torch, and can be deleted

        again = of_replay(run, outcome, arguments.trust, tree, arguments.online)
        print(*map(printable, again), sep="\n")
    if arguments.keep is not None:
        print(f"\nreplay: {folder}")
    elif not outcome.reproduced and arguments.run == run:
        print("\nTo look closer, keep the replay (--keep DIR) and run scripts/compare.py RUN DIR")
    return 0 if outcome.reproduced else 1


def _replaying(held: Record, steps: verify.Range) -> str:
    """Return the line that is printed until there is an outcome."""
    count, seconds = steps.last - steps.start, held.summary.get("seconds")
    took = f", which took {seconds:.0f} s" if steps.whole and isinstance(seconds, float) else ""
    after = f" after step {steps.start}" if steps.start else ""
    return f"replaying {count} step{'' if count == 1 else 's'}{after}{took}"


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
    if arguments.steps is not None and arguments.steps < 1:
        raise InputError(f"--steps: expected an integer >= 1, got {arguments.steps}; try --steps 1")
    if arguments.from_step < 0:
        raise InputError(f"--from-step: expected an integer >= 0, got {arguments.from_step}")
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
