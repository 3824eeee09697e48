"""Fix a claim before its runs, and decide it from their records.

new: check claim.yaml, fix the claim with the commit, code and composed settings of each
variant in claim.lock.json, and print the commands to train the variants. status: which
runs are missing, begun or failed, and how many seeds would decide. check: the verdict,
from the runs' records alone. Exit status of check: 0 the claim holds; 1 it does not, or
is undecided; 2 an invalid claim, or records that contradict it.
"""

from pathlib import Path

from seedbed import project
from seedbed.claims import check, lock, show
from seedbed.config import options
from seedbed.errors import InputError, print_error
from seedbed.record import text

_ACTIONS = ("new", "status", "check")


def main() -> int:
    parser = options.Parser(__doc__).add("action", choices=_ACTIONS)
    parser.add("claim", type=Path, help="a YAML file (docs/proof.md)")
    parser.add(
        "--runs",
        type=Path,
        action="append",
        metavar="FOLDER",
        help="where its runs are; default: where the printed commands put them",
    )
    arguments = parser.add_common("--json", "--trust").parse_args()
    status = 0
    if arguments.action == "new":
        report = check.plan(lock.fix(arguments.claim, arguments.trust))
        shown = show.planned(report)
    else:
        fixed = lock.read(arguments.claim)
        folders = arguments.runs or [project.root() / fixed.folder]
        if arguments.action == "status":
            report = check.status(fixed, folders)
            shown = show.status(report)
        else:
            report = check.check(fixed, folders)
            shown = show.verdict(report)
            status = 2 if report["refused"] else 0 if report["holds"] else 1
    if arguments.json:
        print(text.as_json(report))
    else:
        # A name in a record may have line breaks, and what looks like a verdict.
        options.show(line.replace("\n", "\\n") for line in shown)
    if status == 2:
        return print_error(
            InputError(
                f"{arguments.claim}: expected the runs of the claim, got what `refused`"
                " names; train what is missing, or explain it"
            )
        )
    return status
