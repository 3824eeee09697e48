"""Run a command; write down its time and memory. Imports next to nothing.

python -I -S benchmark_stopwatch.py FILE COMMAND ...

A process counts as its own peak what its parent held when it was started, so the parent has to be
small: this one.
"""

import json
import os
import signal
import sys
import time


def main() -> int:
    """Run the command and return its exit status."""
    path, *command = sys.argv[1:]
    # Meant for the command, which is in the same process group; a handler, unlike SIG_IGN, is not
    # handed down to it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    started = time.monotonic()
    process = os.posix_spawn(command[0], command, os.environ)
    _, status, usage = os.wait4(process, 0)
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    found = {
        "started": started,
        "seconds": time.monotonic() - started,
        "peak_bytes": unit_bytes * usage.ru_maxrss,
    }
    with open(path, "w") as file:
        json.dump(found, file)
    return abs(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    sys.exit(main())
