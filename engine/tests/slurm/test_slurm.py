"""Runs on a real Slurm of one node, where one is: `make -C engine test-slurm` installs
it."""

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
from tests.running import QUICK, ROOT, TEMPLATE, command, trained
from tests.ways import differences

WORDS = (*QUICK, "trainer.shards=2", "data.batch_size=32", "trainer.max_steps=300")
_IS_THERE = (
    bool(shutil.which("sinfo"))
    and not subprocess.run(["sinfo"], capture_output=True, check=False).returncode
)
is_there = pytest.mark.skipif(
    not _IS_THERE, reason="needs a running Slurm: make -C engine test-slurm"
)
pytestmark = [pytest.mark.long, is_there]


def slurm(*words: str) -> str:
    return subprocess.run(
        words, check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an undisturbed run on one process."""
    return trained(tmp_path_factory.mktemp("whole") / "run", *WORDS)


def test_srun_has_the_bits_of_one_process(whole: Path, tmp_path: Path) -> None:
    """Given again, it is done at once."""
    words = (
        "srun",
        "-n2",
        sys.executable,
        "train.py",
        f"hydra.run.dir={tmp_path / 'run'}",
    )
    assert slurm(*words, *WORDS).count("finished after") == 1
    assert differences(whole, tmp_path / "run") == []
    assert slurm(*words, *WORDS).count("nothing to do") == 1


def submitted(tmp_path: Path, script: str, *options: str) -> str:
    """Submit a script; return its job."""
    (tmp_path / "job.sh").write_text(script)
    places = (f"--output={tmp_path / 'job.log'}", f"--chdir={ROOT}")
    return slurm(
        "sbatch", "--parsable", *places, *options, str(tmp_path / "job.sh")
    ).strip()


def script_of_the_docs(number: int, given: str) -> str:
    """Return a script of docs/cluster.md with another command, for the tests'
    project."""
    page = (TEMPLATE / "docs" / "cluster.md").read_text()
    scripts = [text for text in pages.blocks(page, "bash") if text.startswith("#!")]
    found, count = re.subn(r"python train\.py (?:.*\\\n)*.*", given, scripts[number])
    assert count == 1
    return found


def started(tmp_path: Path, *words: str, time_limit: int = 10) -> tuple[str, Path]:
    """Submit the docs' script of one run; return job and run."""
    folder = tmp_path / "run"
    given = (
        f"{sys.executable} train.py hydra.run.dir={folder} {' '.join((*WORDS, *words))}"
    )
    script = script_of_the_docs(0, given)
    return submitted(tmp_path, script, f"--time={time_limit}"), folder


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def state(job: str) -> str:
    return (
        slurm("scontrol", "--oneliner", "show", "job", job)
        .partition("JobState=")[2]
        .split()[0]
    )


def has_ended(job: str) -> bool:
    """Return whether a job has ended; one that waits after a requeue is started.

    Not within the second in which its credential was revoked, which is valid for new
    ones, too.
    """
    found = state(job)
    if found == "PENDING":
        time.sleep(3)
        now = ("scontrol", "update", f"JobId={job}", "StartTime=now")
        # it may have begun by itself
        subprocess.run(now, capture_output=True, check=False)
        until(lambda: state(job) != "PENDING", "it was not started")
    return found in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")


def wait(job: str, folder: Path) -> None:
    """Wait until a job has completed."""
    until(lambda: has_ended(job), f"it has not ended but is {state(job)}")
    assert state(job) == "COMPLETED", (folder / "job.log").read_text()


def kill_tasks(folder: Path) -> None:
    """Kill all processes of a run, as when a node fails."""
    found = subprocess.run(
        ["pgrep", "-f", str(folder)], capture_output=True, text=True, check=True
    )
    for pid in found.stdout.split():
        name = Path("/proc", pid, "cmdline").read_bytes().partition(b"\0")[0]
        if name.endswith(Path(sys.executable).name.encode()):
            subprocess.run(["kill", f"-{signal.SIGKILL.value}", pid], check=False)


@pytest.mark.parametrize("way", ["SIGUSR1", "SIGTERM", "requeue", "kill -9"])
def test_a_disturbed_job_ends_with_the_same_bits(
    way: str, whole: Path, tmp_path: Path
) -> None:
    """By the script of the docs, which requeues itself; the queue need not wait for its
    turn."""
    job, folder = started(tmp_path)
    until(
        lambda: (folder / "metrics.csv").exists() and rows(folder) > 20,
        "it never trained",
    )
    if way == "kill -9":
        kill_tasks(folder)
    elif way == "requeue":
        slurm("scontrol", "requeue", job)
    else:
        slurm("scancel", f"--signal={way.removeprefix('SIG')}", job)
    until(lambda: state(job) == "PENDING", f"it was not requeued but is {state(job)}")
    assert record.read_summary(folder)["status"] != "finished"
    wait(job, tmp_path)
    assert differences(whole, folder) == []


def test_a_time_limit_is_survived(tmp_path: Path) -> None:
    """The signal comes up to two minutes before a limit of two, so at once, in each
    start."""
    steps = "trainer.max_steps=2000"
    job, folder = started(tmp_path, steps, time_limit=2)
    whole = trained(tmp_path / "whole", *WORDS, steps)
    wait(job, tmp_path)
    assert record.read_summary(folder)["resumes"]
    assert differences(whole, folder) == []


def test_a_cancelled_job_submitted_again_ends_with_the_same_bits(
    whole: Path, tmp_path: Path
) -> None:
    job, folder = started(tmp_path)
    until(
        lambda: (folder / "metrics.csv").exists() and rows(folder) > 20,
        "it never trained",
    )
    slurm("scancel", job)
    until(lambda: state(job) == "CANCELLED", "it was not cancelled")
    assert record.read_summary(folder)["status"] != "finished"
    job, _ = started(tmp_path)
    wait(job, tmp_path)
    assert differences(whole, folder) == []


def test_an_array_over_seeds_has_the_bits_of_its_runs(tmp_path: Path) -> None:
    """The report compares them."""
    number = "$SLURM_ARRAY_TASK_ID"
    sweep = tmp_path / "array"
    words = " ".join((*QUICK, f"seed={number}", f"hydra.run.dir={sweep}/{number}"))
    script = script_of_the_docs(1, f"{sys.executable} train.py {words}")
    job = submitted(tmp_path, script, "--array=0-1", "--time=10")
    until(
        lambda: job not in slurm("squeue", "--noheader", "--format=%F"),
        "it has not ended",
    )
    for seed in "01":
        alone = trained(tmp_path / seed, *QUICK, f"seed={seed}")
        assert differences(alone, sweep / seed) == []
    done = command("scripts/sweep_report.py", str(sweep))
    assert (done.returncode, "| 2 |" in done.stdout) == (0, True), done.stderr
