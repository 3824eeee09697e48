"""Renew the golden fingerprints of determinism=portable for the PyTorch that is installed.

usage: python -m tests.golden.renew && make test-emulated

Every model trains for a few steps under determinism=portable; their fingerprints go to
tests/golden/portable.json. Do this when PyTorch's version changes, or when a change was meant to
change results; `make test-emulated` then shows whether other processors agree.
"""

import json
import os
import tempfile
from pathlib import Path

from seedbed import record
from tests.golden import runs
from tests.running import ENGINE

if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(ENGINE)  # training processes import tests.tiny
    with tempfile.TemporaryDirectory(prefix="seedbed-golden-") as folder:
        settings = {name: runs.configuration(name) for name in runs.EXPERIMENTS}
        after = runs.train(Path(folder), settings)
    versions = record.read_json(runs.GOLDEN)
    before = versions.get(runs.TORCH, {})
    for name, rows in after.items():
        difference = runs.first_difference(rows, before.get(name, []))
        print(f"{name}: {f'new from {difference}' if difference else 'as it was'}")
    versions[runs.TORCH] = after
    text = json.dumps(dict(sorted(versions.items())), indent=1)
    record.write_atomically(runs.GOLDEN, f"{text}\n")
    print(f"{runs.GOLDEN}: torch {runs.TORCH}")
