"""Runs that are killed or interrupted for real, from the shell, end with the same bits."""

import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from seedbed import record
from tests.end_to_end.kill_anywhere import (
    ROOT,
    Case,
    case,
    differences,
    killed,
    uninterrupted,
)
from tests.running import command, refusal

pytestmark = pytest.mark.long

# With evaluations that take long enough to be interrupted.
CNN = Case("CNN", (*case("CNN", 0).overrides, "data.eval_batch_size=4"))
SECONDS = 6.0  # that a run takes at least


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    uninterrupted(CNN, folder)
    return folder


def test_a_run_killed_at_random_moments_ends_with_the_same_bits(
    whole: Path, tmp_path: Path
) -> None:
    """Three kills here; `make test-kills` does a hundred."""
    one = Case(CNN.name, (*CNN.overrides, "data.num_workers=3"))
    kills = killed(one, tmp_path / "run", SECONDS, 3, random.Random())
    assert differences(whole, tmp_path / "run") == [], kills


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until something is so, while a process lives."""
    while not condition():
        assert process.poll() is None, "it ended before"
        time.sleep(0.002)


def rows(folder: Path, phase: str) -> int:
    table = folder / "metrics.csv"
    return table.read_text().count(f",{phase},") if table.exists() else 0


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        CNN.command(folder),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that a signal reaches train.py alone
    )


def interrupt(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    assert errors == ""


def test_a_signal_at_start_up_leaves_a_run_that_goes_on(whole: Path, tmp_path: Path) -> None:
    """Ctrl-C before the training process can handle it: 130, no traceback, nothing lost."""
    folder = tmp_path / "run"
    process = start(folder)
    until((folder / "config.yaml").exists, process)
    time.sleep(0.1)  # train.py starts the training process
    interrupt(process, signal.SIGINT)
    assert record.read_summary(folder)["status"] == "interrupted"
    done = command("scripts/resume.py", str(folder), "data.num_workers=2")
    assert done.returncode == 0, done.stderr
    assert differences(whole, folder) == []


def test_a_signal_in_the_test_leaves_a_run_that_only_tests(whole: Path, tmp_path: Path) -> None:
    """It goes on after its last step."""
    folder = tmp_path / "run"
    process = start(folder)
    until(lambda: rows(folder, "validation") == 2, process)
    interrupt(process, signal.SIGTERM)
    assert record.read_summary(folder)["status"] == "interrupted"
    done = command("scripts/resume.py", str(folder))
    assert done.returncode == 0, done.stderr
    assert "resuming after step 40" in done.stdout
    assert differences(whole, folder) == []


def test_a_full_disk_keeps_the_last_checkpoint(whole: Path, tmp_path: Path) -> None:
    """Exit status 2 and one line; once there is room, the run goes on to the same bits.

    It was interrupted in a validation before. A limit on the size of files, between the tables'
    and the checkpoints', stands for the disk.
    """
    folder = tmp_path / "run"
    process = start(folder)
    until(lambda: rows(folder, "train") == 20, process)
    interrupt(process, signal.SIGTERM)
    before = (folder / "checkpoints" / "last.pt").read_bytes()
    limit = len(before) * 3 // 4
    done = subprocess.run(
        [sys.executable, "-m", "seedbed", "resume", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert "expected room on the disk, got File too large" in refusal(done)
    assert (folder / "checkpoints" / "last.pt").read_bytes() == before
    assert command("scripts/resume.py", str(folder)).returncode == 0
    assert differences(whole, folder) == []


def test_a_finished_run_is_refused_in_one_line(whole: Path) -> None:
    """Exit status 2; so is a folder that is no run."""
    line = refusal(command("scripts/resume.py", str(whole)))
    assert "expected a run to resume, got one that finished" in line
    assert "expected a run's configuration" in refusal(command("scripts/resume.py", "/nowhere"))
