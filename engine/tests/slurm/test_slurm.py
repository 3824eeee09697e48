"""Runs on a real Slurm of one node, where one is: `make -C engine test-slurm` installs it."""

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from seedbed import record
from tests import pages
from tests.end_to_end.live import rows
from tests.running import QUICK, ROOT, TEMPLATE, trained
from tests.ways import differences

WORDS = (*QUICK, "trainer.shards=2", "data.batch_size=32", "trainer.max_steps=300")
_IS_THERE = (
    bool(shutil.which("sinfo"))
    and not subprocess.run(["sinfo"], capture_output=True, check=False).returncode
)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not _IS_THERE, reason="needs a running Slurm: make -C engine test-slurm"),
]


def slurm(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an undisturbed run on one process."""
    return trained(tmp_path_factory.mktemp("whole") / "run", *WORDS)


def test_srun_has_the_bits_of_one_process(whole: Path, tmp_path: Path) -> None:
    """Given again, it is done at once."""
    command = ("srun", "-n2", sys.executable, "train.py", f"hydra.run.dir={tmp_path / 'run'}")
    assert slurm(*command, *WORDS).count("finished after") == 1
    assert differences(whole, tmp_path / "run") == []
    assert slurm(*command, *WORDS).count("nothing to do") == 1


def started(tmp_path: Path) -> tuple[str, Path]:
    """Submit the script of docs/cluster.md for a run of the tests' project; return job and run."""
    page = (TEMPLATE / "docs" / "cluster.md").read_text()
    [script] = [text for text in pages.blocks(page, "bash") if text.startswith("#!")]
    folder = tmp_path / "run"
    command = f"srun {sys.executable} train.py hydra.run.dir={folder} {' '.join(WORDS)}"
    script, count = re.subn(r"srun python train\.py .*", command, script)
    assert count == 1
    (tmp_path / "job.sh").write_text(script)
    options = (f"--output={tmp_path / 'job.log'}", f"--chdir={ROOT}", "--time=10")
    return slurm("sbatch", "--parsable", *options, str(tmp_path / "job.sh")).strip(), folder


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def state(job: str) -> str:
    return slurm("scontrol", "--oneliner", "show", "job", job).partition("JobState=")[2].split()[0]


def has_completed(job: str) -> bool:
    """Return whether a job has completed; one that waits after a requeue is started."""
    if state(job) == "PENDING":
        slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
    return state(job) == "COMPLETED"


def kill_tasks(folder: Path) -> None:
    """Kill all processes of a run, as when a node fails."""
    found = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=True)
    for pid in found.stdout.split():
        name = Path("/proc", pid, "cmdline").read_bytes().partition(b"\0")[0]
        if name.endswith(Path(sys.executable).name.encode()):
            subprocess.run(["kill", f"-{signal.SIGKILL.value}", pid], check=False)


@pytest.mark.parametrize("way", ["SIGUSR1", "SIGTERM", "requeue", "kill -9"])
def test_a_disturbed_job_ends_with_the_same_bits(way: str, whole: Path, tmp_path: Path) -> None:
    """By the script of the docs, which requeues itself; the queue need not wait for its turn."""
    job, folder = started(tmp_path)
    until(lambda: (folder / "metrics.csv").exists() and rows(folder) > 20, "it never trained")
    if way == "kill -9":
        kill_tasks(folder)
    elif way == "requeue":
        slurm("scontrol", "requeue", job)
    else:
        slurm("scancel", f"--signal={way.removeprefix('SIG')}", job)
    until(lambda: state(job) == "PENDING", f"it was not requeued but is {state(job)}")
    assert record.read_summary(folder)["status"] != "finished"
    until(lambda: has_completed(job), (tmp_path / "job.log").read_text())
    assert differences(whole, folder) == []
