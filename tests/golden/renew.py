"""Renew the golden fingerprints of determinism=portable for the PyTorch that is installed.

usage: python -m tests.golden.renew

example:
    python -m tests.golden.renew && make test-emulated

Every model trains for a few steps under determinism=portable; their fingerprints go to
tests/golden/portable.json. Do this when PyTorch's version changes, or when a change was meant to
change results; `make test-emulated` then shows whether other processors agree.

exit status: 0 the file is written, 2 a run failed
"""

import argparse
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from seedbed.errors import InputError, exit_status
from tests.golden import runs


def main() -> int:
    """Train, compare with what the file says, and write it."""
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    ).parse_args()
    version = metadata.version("torch")
    try:
        before = runs.golden(version)
    except InputError:
        before = {}
    with tempfile.TemporaryDirectory(prefix="seedbed-golden-") as folder:
        after = {name: runs.train(name, Path(folder) / name) for name in runs.EXPERIMENTS}
    for name, fingerprint_rows in after.items():
        difference = runs.first_difference(fingerprint_rows, before.get(name, []))
        print(f"{name}: {f'new from {difference}' if difference else 'as it was'}")
    runs.write_golden(version, after)
    print(f"{runs.GOLDEN}: torch {runs.release(version)}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
