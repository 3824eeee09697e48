"""Forks of the tests' server are processes as a shell starts them."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.running import run

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


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="forks are served on Linux")
def test_a_fork_has_what_a_new_process_has(tmp_path: Path) -> None:
    """Arguments, environment, folder, path, session, signals, exit status; chance of its own."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    how: Any = {"env": {**os.environ, **ENVIRONMENT}, "start_new_session": True, "status": 7}
    command = (tmp_path, sys.executable, script.name, "7")
    with forks.true_commands():
        true = run(*command, **how)
    forked, other = run(*command, **how), run(*command, **how)
    assert forked.stdout == true.stdout
    assert forked.stdout.endswith("at exit\n")
    assert len({true.stderr, forked.stderr, other.stderr}) == 3
