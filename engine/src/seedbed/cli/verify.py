"""Replay a run from its record; report REPRODUCED, or the first step and stage that
differ."""

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from seedbed import config, record
from seedbed.compare import report, verify
from seedbed.config import options
from seedbed.errors import InputError, printable
from seedbed.record import code, text, verified


def main() -> int:
    parser = options.Parser(__doc__).add(
        "run", type=Path, help="a run folder, or a zip of one"
    )
    parser.add(
        "--from-step",
        type=int,
        default=0,
        help="start from the checkpoint of this step",
    )
    parser.add("--steps", type=int, help="replay so many steps only")
    parser.add(
        "--tolerance",
        type=tolerance,
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help=(
            "if bits differ, replay to the end, and say whether a metric differs by"
            " more"
        ),
    )
    parser.add("--keep", type=Path, metavar="DIR", help="replay there, and keep it")
    parser.add_common("--json", "--explain", "--restore-code", "--trust", "--online")
    arguments = parser.parse_args()
    if arguments.steps is not None and arguments.steps < 1:
        raise InputError(f"--steps: expected an integer >= 1, got {arguments.steps}")
    # so that the replay ends, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        folder = arguments.keep or Path(
            stack.enter_context(TemporaryDirectory("-verify"))
        )
        if (folder / "config.yaml").exists():
            raise InputError(
                f"--keep: expected a new folder, got {folder}, which holds a run"
            )
        run = stack.enter_context(record.run_folder(arguments.run))
        before = replace(verify.read(run), name=str(arguments.run))
        tree = stack.enter_context(code.code_of(before.origin, arguments.restore_code))
        verify.trusted_config(run, arguments.trust, tree)  # before anything is started
        verify.require_data(before, arguments.online)
        steps = verify.range_of(before, arguments.from_step, arguments.steps)
        tolerances = dict(arguments.tolerance)
        known = report.metrics(before)
        if unknown := tolerances.keys() - known.keys():
            raise InputError(
                f"--tolerance: expected a metric of the record ({', '.join(known)}),"
                f" got {min(unknown)}"
            )
        if not tree.is_recorded and (advice := verify.advice_on_code(before)):
            print(printable(f"note: {advice}"), file=sys.stderr)
        # To stderr: the first line of the output is the outcome.
        count = (
            f"{steps.last - steps.start} step{'s' * (steps.last - steps.start != 1)}"
        )
        print(
            printable(f"replaying {count}: {arguments.run}"),
            file=sys.stderr,
            flush=True,
        )
        online = arguments.online
        to_the_end = bool(tolerances)
        outcome = verify.replay(
            run, folder, steps, arguments.trust, tree, online, to_the_end
        )
        is_readable = outcome.record.summary["format_version"] == record.FORMAT_VERSION
        there = any((run / "checkpoints").glob("*.pt"))
        if outcome.comparison.difference is None and is_readable and there:
            from seedbed import weights  # needs torch

            others, skipped = weights.compare_checkpoints(run, folder)
            outcome.forged.extend(others)
            outcome.not_compared.extend(skipped)
        status = 0 if outcome.reproduced else 1
        if not arguments.restore_code:  # else: the record's own code may say anything
            verified.note(run, outcome.reproduced, steps.start, steps.last, steps.whole)
        if arguments.json:
            compared = report.as_dict(
                outcome.record, outcome.replay, outcome.comparison
            )
            more = {"same": outcome.reproduced, "other_results": outcome.forged}
            more |= {"not_compared": outcome.not_compared}
            print(text.as_json(compared | more))
            return status
        options.show(lines(outcome, str(arguments.run), tree, tolerances))
        if arguments.explain and status:
            # needs torch, and can be deleted
            from seedbed.explain.replay import of_runs

            runs = [(run, outcome.record, tree)]
            difference = outcome.comparison.difference
            options.show(of_runs(runs, difference, arguments.trust, arguments.online))
    return status


def lines(
    outcome: verify.Outcome, name: str, tree: code.Tree, tolerances: dict[str, float]
) -> Iterator[str]:
    """Yield the lines to print: the outcome first, then the record and its replay,
    compared."""
    a = replace(outcome.record, name="the record")
    b = replace(outcome.replay, name="its replay")
    difference = outcome.comparison.difference
    steps = outcome.steps
    if outcome.reproduced:
        yield f"REPRODUCED {name}: steps {steps.start + 1:,} to {steps.last:,}"
    elif difference is not None:
        yield f"NOT REPRODUCED: the runs diverge at {next(report.describe(difference))}"
    elif outcome.reached_step != steps.last:
        yield (
            f"NOT REPRODUCED: of {steps.last:,} steps, the replay has"
            f" {outcome.reached_step:,}"
        )
    else:
        yield (
            "NOT REPRODUCED: the bits are the same, but the record states other results"
        )
        yield from (f"  {line}" for line in outcome.forged[:10])
    if outcome.not_compared:
        yield report.left_out(outcome.not_compared)
    is_promised = config.promises_bits(a.config.get("determinism.on_nondeterministic"))
    if difference is not None and not is_promised:
        yield (
            f"note: determinism={a.config.get('determinism.name')} does not promise the"
            " same bits"
        )
    yield from report.report(a, b, outcome.comparison, tolerances)
    if difference is not None and b.summary.get("status") != "finished":
        yield "\nTo replay to the end and compare the metrics: --tolerance METRIC=VALUE"


def tolerance(text: str) -> tuple[str, float]:
    metric, _, value = text.rpartition("=")
    return metric, float(value)  # argparse reports a ValueError
