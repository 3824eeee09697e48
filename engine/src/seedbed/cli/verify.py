"""Replay a run from its record; report REPRODUCED, or the first step and stage that
differ.

With --sample K, only some segments between kept checkpoints are replayed: the first
one, and K that a challenge draws. For a proof, the challenge is public randomness of
after the publication, such as the next value of a beacon.
"""

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from seedbed import config, record
from seedbed.compare import Record, audit, report, verify
from seedbed.compare.audit import Audit
from seedbed.compare.verify import Outcome, Range
from seedbed.config import options
from seedbed.errors import InputError, printable
from seedbed.record import code, text, verified


def main() -> int:
    arguments = parsed()
    # so that the replay ends, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        folder = folder_of(arguments.keep, stack)
        run = stack.enter_context(record.run_folder(arguments.run))
        before = replace(verify.read(run), name=str(arguments.run))
        tree = stack.enter_context(code.code_of(before.origin, arguments.restore_code))
        verify.trusted_config(run, arguments.trust, tree)  # before anything is started
        verify.require_data(before, arguments.online)
        require_metrics(before, dict(arguments.tolerance))
        drawn = None
        ranges: Sequence[Range]
        if arguments.sample is None:
            start = arguments.from_step or 0
            ranges = [verify.range_of(before, start, arguments.steps)]
        else:
            drawn = audit.of(run, before, arguments.sample, arguments.challenge)
            ranges = drawn.ranges
            if lines := contradictions(run, before, drawn):
                return show_contradictions(lines, drawn, arguments)
        if not tree.is_recorded and (advice := verify.advice_on_code(before)):
            print(printable(f"note: {advice}"), file=sys.stderr)
        outcome = replayed(run, folder, ranges, arguments, tree)
        status = 0 if outcome.reproduced else 1
        if not arguments.restore_code:  # else: the record's own code may say anything
            verified.note(run, outcome.reproduced, part_of(ranges, drawn))
        open_ends = [*audit.not_proven(run, before, drawn)] if drawn else []
        if arguments.json:
            print(text.as_json(as_dict(outcome, drawn, open_ends)))
            return status
        options.show(shown(outcome, drawn, open_ends, arguments))
        if arguments.explain and status:
            # needs torch, and can be deleted
            from seedbed.explain.replay import of_runs

            runs = [(run, outcome.record, tree)]
            difference = outcome.comparison.difference
            options.show(of_runs(runs, difference, arguments.trust, arguments.online))
    return status


def folder_of(keep: Path | None, stack: ExitStack) -> Path:
    """Return the folder for replays; raise InputError if it holds a run."""
    folder = keep or Path(stack.enter_context(TemporaryDirectory("-verify")))
    if (folder / "config.yaml").exists():
        raise InputError(
            f"--keep: expected a new folder, got {folder}, which holds a run"
        )
    return folder


def command_line() -> options.Parser:
    """Return the parser of the arguments."""
    parser = options.Parser(__doc__).add(
        "run",
        type=Path,
        help="a run folder, or a zip of one; of several: FILE.zip/NAME",
    )
    parser.add(
        "--from-step",
        type=int,
        help="start from the checkpoint of this step",
    )
    parser.add("--steps", type=int, help="replay so many steps only")
    parser.add(
        "--sample",
        type=int,
        metavar="K",
        help="replay the first segment between kept checkpoints, and K that are drawn",
    )
    parser.add(
        "--challenge",
        metavar="TEXT",
        help="what draws them; default: from os.urandom, and printed",
    )
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
    common = ("--json", "--explain", "--restore-code", "--trust", "--online")
    return parser.add_common(*common)


def parsed() -> argparse.Namespace:
    """Return the arguments; raise InputError for those that make no sense together."""
    arguments = command_line().parse_args()
    if arguments.steps is not None and arguments.steps < 1:
        raise InputError(f"--steps: expected an integer >= 1, got {arguments.steps}")
    if arguments.sample is None and arguments.challenge is not None:
        raise InputError(
            "--challenge: expected --sample K beside it, got none; say how many"
            " segments it draws"
        )
    if arguments.sample is not None and arguments.sample < 1:
        raise InputError(f"--sample: expected an integer >= 1, got {arguments.sample}")
    others = ("from_step", "steps", "tolerance")
    given = [name for name in others if getattr(arguments, name) not in (None, [])]
    if arguments.sample is not None and given:
        option = f"--{given[0].replace('_', '-')}"
        raise InputError(
            f"--sample: expected segments that a challenge draws, got {option} beside"
            " it; leave one of them out"
        )
    return arguments


def require_metrics(recorded: Record, tolerances: dict[str, float]) -> None:
    """Raise InputError unless the record has the metrics of all tolerances."""
    known = report.metrics(recorded)
    if unknown := tolerances.keys() - known.keys():
        raise InputError(
            f"--tolerance: expected a metric of the record ({', '.join(known)}),"
            f" got {min(unknown)}"
        )


def contradictions(run: Path, recorded: Record, drawn: Audit) -> list[str]:
    """Return what contradicts an audited record before anything is replayed: itself,
    and the checkpoints that the replays start from."""
    if lines := audit.contradictions(run, recorded, drawn):
        return lines
    from seedbed import weights  # needs torch

    starts = [steps.start for steps in drawn.ranges if steps.start]
    return [*weights.unlike_record(run, starts)]


def show_contradictions(
    lines: list[str], drawn: Audit, arguments: argparse.Namespace
) -> int:
    """Print why no replay is needed to refute a record; return the exit status."""
    if arguments.json:
        entries = {"same": False, "other_results": lines, **audit.as_dict(drawn)}
        entries["replayed"] = []
        print(text.as_json(entries))
        return 1
    options.show(
        [
            "NOT REPRODUCED: the record contradicts itself; nothing was replayed",
            *(f"  {line}" for line in lines[:10]),
        ]
    )
    return 1


def replayed(
    run: Path,
    folder: Path,
    ranges: Sequence[Range],
    arguments: argparse.Namespace,
    tree: code.Tree,
) -> Outcome:
    """Replay ranges of steps until one differs, each in a folder of its own if there
    are several; return what all of them found."""
    outcomes = list[Outcome]()
    for steps in ranges:
        # To stderr: the first line of the output is the outcome.
        count = steps.last - steps.start
        line = f"replaying {count} step{'s' * (count != 1)}: {arguments.run}"
        if arguments.sample is not None:
            line += f", steps {steps.start + 1} to {steps.last}"
        print(printable(line), file=sys.stderr, flush=True)
        replay_folder = folder
        if arguments.sample is not None:
            replay_folder = folder / f"steps_{steps.start + 1}_to_{steps.last}"
        outcome = verify.replay(
            run,
            replay_folder,
            steps,
            arguments.trust,
            tree,
            arguments.online,
            to_the_end=bool(arguments.tolerance),
        )
        is_readable = outcome.record.summary["format_version"] == record.FORMAT_VERSION
        there = any((run / "checkpoints").glob("*.pt"))
        if outcome.comparison.difference is None and is_readable and there:
            from seedbed import weights  # needs torch

            last = None if arguments.sample is None else steps.last
            others, skipped = weights.compare_checkpoints(
                run, replay_folder, steps.start, last
            )
            outcome.forged.extend(others)
            outcome.not_compared.extend(skipped)
        outcomes.append(outcome)
        if not outcome.reproduced:
            break
    return verify.joined(outcomes)


def part_of(ranges: Sequence[Range], drawn: Audit | None) -> str | None:
    """Return which part of a run was replayed; None for all of it."""
    if ranges[0].whole:
        return None
    if drawn:
        return f"{len(drawn.replayed)} of {drawn.count} segments"
    [steps] = ranges
    return f"steps {steps.start + 1} to {steps.last}"


def as_dict(
    outcome: Outcome, drawn: Audit | None, open_ends: list[str]
) -> dict[str, Any]:
    """Return an outcome as `--json` prints it."""
    compared = report.as_dict(outcome.record, outcome.replay, outcome.comparison)
    more = {"same": outcome.reproduced, "other_results": outcome.forged}
    more |= {"not_compared": outcome.not_compared}
    if drawn:
        more |= {**audit.as_dict(drawn), "not_proven": open_ends}
    return compared | more


def shown(
    outcome: Outcome,
    drawn: Audit | None,
    open_ends: list[str],
    arguments: argparse.Namespace,
) -> Iterator[str]:
    """Yield the lines to print: the outcome first, then what it proves, then the record
    and its replay, compared."""
    a = replace(outcome.record, name="the record")
    b = replace(outcome.replay, name="its replay")
    difference = outcome.comparison.difference
    if outcome.reproduced:
        yield f"REPRODUCED {arguments.run}: {compared_part(outcome, drawn)}"
    else:
        yield from not_reproduced(outcome, drawn)
    if drawn:
        yield from audit.describe(drawn, outcome.reproduced)
        yield f"not proven: {'; '.join(open_ends)}"
    if outcome.not_compared:
        yield report.left_out(outcome.not_compared)
    is_promised = config.promises_bits(a.config.get("determinism.on_nondeterministic"))
    if difference is not None and not is_promised:
        yield (
            f"note: determinism={a.config.get('determinism.name')} does not promise the"
            " same bits"
        )
    yield from report.report(a, b, outcome.comparison, dict(arguments.tolerance))
    if difference is not None and not drawn and b.summary.get("status") != "finished":
        yield "\nTo replay to the end and compare the metrics: --tolerance METRIC=VALUE"


def compared_part(outcome: Outcome, drawn: Audit | None) -> str:
    """Return the steps that were replayed, of an audit also how many segments."""
    if not drawn:
        return f"steps {outcome.steps.start + 1:,} to {outcome.steps.last:,}"
    parts = [f"{each.start + 1:,} to {each.last:,}" for each in drawn.ranges]
    rest = f" and {len(parts) - 10:,} more parts" if len(parts) > 10 else ""
    count = f"{len(drawn.replayed):,} of {drawn.count:,} segments"
    return f"{count} (steps {', '.join(parts[:10])}{rest})"


def not_reproduced(outcome: Outcome, drawn: Audit | None) -> Iterator[str]:
    """Yield lines on what was not reproduced, the outcome first."""
    difference = outcome.comparison.difference
    steps = outcome.steps
    if difference is not None:
        yield f"NOT REPRODUCED: the runs diverge at {next(report.describe(difference))}"
        if drawn:
            yield f"  in {audit.segment_at(drawn, difference.step)}"
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


def tolerance(text: str) -> tuple[str, float]:
    metric, _, value = text.rpartition("=")
    return metric, float(value)  # argparse reports a ValueError
