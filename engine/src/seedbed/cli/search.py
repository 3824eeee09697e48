"""Search for settings by Optuna: hparams_search=NAME of configs/hparams_search/, and
overrides.

The same command with the same hydra.sweep.dir=FOLDER continues a search; given several
times at once, the processes share its trials.
"""

import datetime
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from seedbed import signals
from seedbed.config import options
from seedbed.errors import InputError, printable
from seedbed.record import text


def main() -> int:
    parser = options.Parser(__doc__)
    parser.add(
        "overrides",
        nargs="+",
        metavar="key=value",
        help="such as hparams_search.n_trials=9",
    )
    arguments = parser.add_common("--json").parse_intermixed_args()
    try:
        from seedbed.search import report, space, study  # which import Optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise InputError(
            "search: expected Optuna, got an environment without it; pip install"
            " optuna==5.0.0"
        ) from None
    given_folder, words = space.folder_of(arguments.overrides)
    asked = space.read(words)
    started = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    folder = Path(given_folder or f"sweeps/{started}_search")
    search = study.Search(folder, asked)
    with output_to_stderr() if arguments.json else nullcontext():
        status = search.run()
    made = report.make(search.study, folder)
    if arguments.json:
        print(text.as_json(made))
    else:
        print(printable(f"\n{report.describe(made)}\n\n{folder}"), flush=True)
    if status in signals.INTERRUPTED:
        again = [
            "python",
            "scripts/search.py",
            *words,
            f"hydra.sweep.dir={text.quoted(folder)}",
        ]
        print(f"resume it: {printable(shlex.join(again))}", file=sys.stderr, flush=True)
        return status
    return 1 if any(trial["state"] == "failed" for trial in made["trials"]) else 0


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Let what this process and its runs print go to stderr: stdout is for one JSON
    document."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
