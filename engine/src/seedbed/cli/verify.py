"""Replay a run from its record: REPRODUCED, or the first step and stage that differ, and why.

usage: python scripts/verify.py RUN|RUN.zip [--steps N] [--explain] [--keep DIR]
                                [--restore-code] [--trust NAME] [--online]

example:
    python train.py seed=0 hydra.run.dir=runs/a
    python scripts/verify.py runs/a
    python scripts/verify.py runs/a --steps 100 --keep runs/a-again
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

from seedbed import config
from seedbed.compare import Record, causes, checkout, verify
from seedbed.compare.checkout import Tree
from seedbed.compare.stages import stage_of
from seedbed.compare.verify import Outcome
from seedbed.config import options
from seedbed.errors import InputError, printable
from seedbed.record import archive


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
        last = verify.last_step(held, arguments.steps)
        # For whoever waits; the first line of the output is the outcome.
        print(printable(f"{replaying(held, last)}: {arguments.run}"), file=sys.stderr, flush=True)
        return judge(arguments, run, folder, tree, str(arguments.run))


def replaying(held: Record, last: int) -> str:
    """Return the line that says what is going on until there is an outcome."""
    seconds = held.summary.get("seconds")
    is_all = isinstance(seconds, float) and last == held.summary.get("steps")
    took = f", which took {seconds:.0f} s" if is_all else ""
    return f"replaying {last} step{'' if last == 1 else 's'}{took}"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    options.add_run(parser)
    parser.add_argument("--steps", metavar="N", type=int, help="replay the first N steps only")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="if it differs, replay that step twice and name the first operation that differs",
    )
    parser.add_argument("--keep", metavar="DIR", type=Path, help="replay there, and keep it")
    parser.add_argument(
        "--restore-code",
        action="store_true",
        help="replay with the code.zip of the record; this runs code of the record",
    )
    options.add_trust(parser)
    arguments = parser.parse_args()
    if arguments.steps is not None and arguments.steps < 1:
        raise InputError(f"--steps: expected an integer >= 1, got {arguments.steps}; try --steps 1")
    return arguments


def judge(arguments: argparse.Namespace, run: Path, folder: Path, tree: Tree, name: str) -> int:
    """Replay a run into a folder, print the outcome, and return the exit status.

    Args:
        tree: the code to replay it with.
        name: what to call the run.
    """
    outcome = verify.replay(run, folder, arguments.steps, arguments.trust, tree, arguments.online)
    for line in report(outcome, name, tree):
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


def report(outcome: Outcome, name: str, tree: Tree) -> Iterator[str]:
    """Yield the lines to print: the outcome first."""
    found = causes.changes(outcome.record, outcome.replay)
    difference, comparison = outcome.comparison.difference, outcome.comparison
    if difference is not None:
        first, *more = causes.explain(difference, found)
        yield f"NOT REPRODUCED: the runs diverge at {first}"
        yield from more
        found = causes.others(found, causes.rank(difference, found))
    elif outcome.reproduced:
        stages = ", ".join(stage_of(stage).name for stage in comparison.stages)
        yield f"REPRODUCED {name}"
        yield f"  the same bits through step {outcome.last_step:,}: {stages}"
    else:
        yield f"NOT REPRODUCED: the record has {outcome.last_step:,} steps"
        yield f"  the replay of its configuration ends after step {outcome.reached_step:,}"
    yield from (f"note: {note}" for note in comparison.notes)
    preset = outcome.record.config
    promises = config.promises_bits(preset.get("determinism.on_nondeterministic"))
    if difference is not None and not promises:
        yield f"note: determinism={preset.get('determinism.name')} does not promise the same bits"
    advice = "" if tree.is_recorded or outcome.reproduced else verify.advice_on_code(outcome.record)
    if advice:
        yield f"note: {advice}"
    if found:
        yield (
            "\nDifferences that are not known to act there"
            if difference
            else "\nDifferences that changed no bit"
        )
        yield from causes.table(found)
