"""The real commands keep their promises on this machine, with the default
configuration."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHORT = (
    *(
        "determinism=strict",
        "determinism.threads=1",
        "trainer.device=cpu",
        "trainer.shards=2",
    ),
    *(
        "trainer.max_steps=40",
        "trainer.log_every_steps=1",
        "trainer.checkpoint_every_steps=5",
    ),
)


def run(*words: object) -> tuple[int, str]:
    """Run a script of the project; return its exit status and output."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


def compare(a: Path, b: Path) -> tuple[int, str]:
    return run("scripts/compare.py", a, b)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished sweep: run 0 has seed 0, run 1 has seed 1."""
    folder = tmp_path_factory.mktemp("smoke") / "sweep"
    places = (f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=${hydra.job.num}")
    status, output = run("train.py", "-m", "seed=0,1", *places, *SHORT)
    assert status == 0, output
    assert (folder / "sweep.csv").is_file()
    return folder


def test_compare_names_the_first_stage_that_another_seed_changes(sweep: Path) -> None:
    """Also the negative control of the comparisons below."""
    status, output = compare(sweep / "0", sweep / "1")
    assert status == 1, output
    assert "step 1" in output
    assert "sample ids" in output


def test_a_killed_run_resumes_to_the_same_bits(sweep: Path, tmp_path: Path) -> None:
    """All of its processes get SIGKILL once there is a checkpoint."""
    folder = tmp_path / "run"
    words = [sys.executable, "train.py", f"hydra.run.dir={folder}", *SHORT]
    process = subprocess.Popen(words, cwd=ROOT, start_new_session=True)
    while not (folder / "checkpoints" / "last.pt").exists():
        assert process.poll() is None
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert '"finished"' not in (folder / "summary.json").read_text()
    status, output = run("scripts/resume.py", folder)
    assert status == 0, output
    assert compare(sweep / "0", folder)[0] == 0


def test_two_processes_train_to_the_same_bits(sweep: Path, tmp_path: Path) -> None:
    """A model that each forward pass changes, as batch normalisation does, is refused
    instead."""
    folder = tmp_path / "run"
    status, output = run(
        "train.py", f"hydra.run.dir={folder}", *SHORT, "trainer.processes=2"
    )
    if "expected state that no forward pass changes with several processes" in output:
        assert status == 2
        return
    assert status == 0, output
    assert compare(sweep / "0", folder)[0] == 0


def test_verify_reproduces_a_run(sweep: Path) -> None:
    status, output = run("scripts/verify.py", sweep / "0")
    assert status == 0, output
    assert "REPRODUCED" in output
