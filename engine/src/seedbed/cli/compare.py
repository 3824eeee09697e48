"""Compare two runs: first step and stage that differ; changed settings, environment and
code."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from seedbed import compare, record
from seedbed.compare import report, stated
from seedbed.config import options
from seedbed.record import change, code, text


def main() -> int:
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
    paths = (arguments.run_a, arguments.run_b)
    with ExitStack() as stack:
        folder_a, folder_b = (
            stack.enter_context(record.run_folder(path)) for path in paths
        )
        a = replace(compare.read(folder_a), name=str(paths[0]))
        b = replace(compare.read(folder_b), name=str(paths[1]))
        result = compare.compare(a, b)
        forged = [
            f"other results in {run.name}: {line}"
            for run in (a, b)
            for line in stated.contradictions(run.summary, run.metrics)
        ]
        forged += [] if result.difference else stated.other_weights(a, b)
        if arguments.plot is not None:
            report.draw(a, b, result, arguments.plot)
        if arguments.json:
            compared = report.as_dict(a, b, result)
            is_same = compared["same"] and not forged
            print(text.as_json(compared | {"same": is_same, "other_results": forged}))
        else:
            options.show(report.report(a, b, result))
            options.show(forged)
            if result.difference is None:
                options.show(["", report.left_out(stated.not_compared(a, b))])
        if result.difference is None or not arguments.explain:
            return 1 if result.difference or forged else 0
        trees = [code.Tree()] * 2
        if arguments.restore_code:
            trees = [
                stack.enter_context(code.code_of(of.origin, True)) for of in (a, b)
            ]
        elif any(
            each.alters_bits for each in change.changes_of_code(a.origin, b.origin)
        ):
            print(
                "\nThe runs had different code. To replay each with its own, which"
                " executes the code of both records: add --restore-code"
            )
            return 1
        from seedbed.explain.replay import of_runs  # needs torch, and can be deleted

        runs = list(zip((folder_a, folder_b), (a, b), trees, strict=True))
        options.show(
            of_runs(runs, result.difference, arguments.trust, arguments.online)
        )
    return 1
