"""The commands, as called by train.py, scripts/*.py and `python -m seedbed COMMAND`.

Nothing heavy is imported here, so that Ctrl-C during a command's imports ends it
quietly.
"""

import importlib
import os
import signal
from pathlib import Path

from seedbed.errors import exit_on_errors, open_streams
from seedbed.project import PROJECT

COMMANDS = (
    "train",
    "resume",
    "verify",
    "compare",
    "sweep_report",
    "claim",
    "runs",
    "evaluate",
    "predict",
    "export",
    "publish",
    "search",
)


def run(command: str, script: str | None = None) -> int:
    """Run one of COMMANDS with this process's command line; return the exit status.

    `script`, in a project's folder or its scripts/, tells the project; else the current
    folder.
    """
    open_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # `exit_on_errors` undoes it
    if script is not None:
        folder = Path(script).resolve().parent
        os.environ[PROJECT] = str(folder.parent if folder.name == "scripts" else folder)
    module = importlib.import_module(f"seedbed.cli.{command}")
    with exit_on_errors():
        return module.main()  # type: ignore[no-any-return]
