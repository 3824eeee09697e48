"""Compare two runs: first step and stage that differ; changed settings, environment and
code."""

import argparse
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from seedbed import compare, record
from seedbed.compare import Comparison, Record, report, stated
from seedbed.config import options
from seedbed.record import change, code, text


def main() -> int:
    arguments = parsed()
    paths = (arguments.run_a, arguments.run_b)
    with ExitStack() as stack:
        folders = [stack.enter_context(record.run_folder(path)) for path in paths]
        a, b = (
            replace(compare.read(folder), name=str(path))
            for folder, path in zip(folders, paths, strict=True)
        )
        result = compare.compare(a, b)
        forged = other_results(a, b, result)
        if arguments.plot is not None:
            report.draw(a, b, result, arguments.plot)
        show(a, b, result, forged, arguments.json)
        if result.difference is None or not arguments.explain:
            return 1 if result.difference or forged else 0
        trees = trees_of(a, b, arguments.restore_code, stack)
        if trees is None:
            print(
                "\nThe runs had different code. To replay each with its own, which"
                " executes the code of both records: add --restore-code"
            )
            return 1
        from seedbed.explain.replay import of_runs  # needs torch, and can be deleted

        runs = list(zip(folders, (a, b), trees, strict=True))
        options.show(
            of_runs(runs, result.difference, arguments.trust, arguments.online)
        )
    return 1


def parsed() -> argparse.Namespace:
    """Return the arguments; raise InputError for those that make no sense together."""
    parser = options.Parser(__doc__)
    parser.add("run_a", type=Path, help="a run folder, or a zip of one").add(
        "run_b", type=Path
    )
    parser.add(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="draw both runs and the difference",
    )
    parser.add_common("--json", "--explain", "--restore-code", "--trust", "--online")
    arguments = parser.parse_args()
    if arguments.json and arguments.explain:
        parser.error("--json: expected it without --explain, got both")
    return arguments


def other_results(a: Record, b: Record, result: Comparison) -> list[str]:
    """Return lines on results that are not those of the records' tables, or of runs
    with the same bits."""
    forged = [
        f"other results in {run.name}: {line}"
        for run in (a, b)
        for line in stated.contradictions(run.summary, run.metrics)
    ]
    return forged if result.difference else [*forged, *stated.other_weights(a, b)]


def show(
    a: Record, b: Record, result: Comparison, forged: list[str], as_json: bool
) -> None:
    """Print a comparison, as JSON or as lines."""
    if as_json:
        compared = report.as_dict(a, b, result)
        is_same = compared["same"] and not forged
        print(text.as_json(compared | {"same": is_same, "other_results": forged}))
        return
    options.show(report.report(a, b, result))
    options.show(forged)
    if result.difference is None:
        options.show(["", report.left_out(stated.not_compared(a, b))])


def trees_of(
    a: Record, b: Record, restore_code: bool, stack: ExitStack
) -> list[code.Tree] | None:
    """Return the code to replay two runs with: the recorded one if it may be executed,
    else this checkout's; None if that is not of both."""
    if restore_code:
        return [
            stack.enter_context(code.code_of(recorded.origin, True))
            for recorded in (a, b)
        ]
    changes = change.changes_of_code(a.origin, b.origin)
    if any(changed.alters_bits for changed in changes):
        return None
    return [code.Tree()] * 2
