"""Forks of the tests' server are processes as a shell starts them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks
from tests.running import trained

SCRIPT = """
import json, os, random, signal, sys
import numpy, torch
print(json.dumps({
    "argv": sys.argv, "main": __name__, "file": __file__, "path": sys.path[0],
    "folder": os.getcwd(),
    "colour": os.environ.get("COLOUR"), "session": os.getsid(0) == os.getpid(),
    "signals": {n.name: str(signal.getsignal(n)) for n in
                (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)},
    "threads": torch.get_num_threads(), "hash": hash("seed"),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
}))
print(random.random(), numpy.random.random(), torch.initial_seed(), file=sys.stderr)
import atexit; atexit.register(print, "at exit", flush=True)
sys.exit(int(sys.argv[1]))
"""
ENVIRONMENT = {"COLOUR": "green", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def run(script: Path, status: int = 0) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, script.name, str(status)],
        cwd=script.parent,
        env={**os.environ, **ENVIRONMENT},
        start_new_session=True,
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="forks are served on Linux")
def test_a_fork_has_what_a_new_process_has(tmp_path: Path) -> None:
    """Arguments, environment, folder, path, session, signals, exit status; chance of its own."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with forks.true_commands():
        true = run(script, 7)
    forked, other = run(script, 7), run(script, 7)
    assert forked.returncode == true.returncode == 7
    assert forked.stdout == true.stdout
    assert forked.stdout.endswith("at exit\n")
    assert len({true.stderr, forked.stderr, other.stderr}) == 3


def test_a_training_has_the_bits_and_the_record_of_the_true_command(
    quick_run: Path, tmp_path: Path
) -> None:
    """By the true command, once more; the files are the same but for what differs in any two."""
    with forks.true_commands():
        other = trained(tmp_path / "run")
    for name in ("config.yaml", "metrics.csv", "fingerprints.csv", "test_predictions.csv"):
        assert (other / name).read_bytes() == (quick_run / name).read_bytes(), name
    a, b = (json.loads((run / "environment.json").read_text()) for run in (quick_run, other))
    assert {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)} <= {"started_at", "git"}
