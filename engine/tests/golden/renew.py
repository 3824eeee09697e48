"""Renew the golden fingerprints of determinism=portable for the PyTorch that is installed.

usage: python -m tests.golden.renew [--against VERSION]

example:
    python -m tests.golden.renew && make test-emulated
    python -m tests.golden.renew --against 2.15.0

Every model trains for a few steps under determinism=portable; their fingerprints go to
tests/golden/portable.json. Do this when PyTorch's version changes, or when a change was meant to
change results; `make test-emulated` then shows whether other processors agree.

`--against` writes nothing: it prints the stages that differ from those of another PyTorch.

exit status: 0 the file is written, or nothing was to be; 2 a run failed
"""

import argparse
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from seedbed.errors import InputError, exit_status
from tests.golden import runs
from tests.running import ENGINE


def main() -> int:
    """Train, compare with what the file says, and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("--against", metavar="VERSION")
    against = parser.parse_args().against
    version = metadata.version("torch")
    try:
        before = runs.golden(against or version)
    except InputError:
        if against:
            raise
        before = {}
    os.environ["PYTHONPATH"] = str(ENGINE)  # training processes import tests.tiny
    with tempfile.TemporaryDirectory(prefix="seedbed-golden-") as folder:
        after = {name: runs.train(name, Path(folder) / name) for name in runs.EXPERIMENTS}
    for name, fingerprint_rows in after.items():
        found = before.get(name, [])
        if against:
            print(f"{name}: {'; '.join(runs.differing(fingerprint_rows, found)) or 'the same'}")
            continue
        difference = runs.first_difference(fingerprint_rows, found)
        print(f"{name}: {f'new from {difference}' if difference else 'as it was'}")
    if not against:
        runs.write_golden(version, after)
        print(f"{runs.GOLDEN}: torch {runs.release(version)}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
