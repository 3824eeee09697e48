"""Sweeps from the shell: one after another or side by side, with a report at the end."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from seedbed import record
from tests.end_to_end import kill_sweep
from tests.end_to_end.kill_sweep import BASIC, JOBLIB
from tests.end_to_end.test_bad_input import wait_for_rows
from tests.running import QUICK, ROOT, command


def sweep(folder: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    return command(
        "train.py", "--multirun", f"hydra.sweep.dir={folder}", *QUICK, "trainer.max_steps=3",
        *overrides,
    )  # fmt: skip


def fingerprints(folder: Path) -> dict[str, object]:
    """Return the fingerprints of the runs that finished, by the name of their folder."""
    jobs = {path.name: record.read_summary(path) for path in folder.iterdir() if path.is_dir()}
    finished = {name for name, summary in jobs.items() if summary["status"] == "finished"}
    return {name: jobs[name]["fingerprints"] for name in sorted(finished)}


def test_a_sweep_ends_with_table_csv_and_picture(quick_sweep: Path) -> None:
    """Folders are named by what varies, and the report lies beside them."""
    assert "| mean" in (quick_sweep.parent / "output.txt").read_text()
    assert {path.name for path in quick_sweep.iterdir()} >= {
        "0_seed=0", "1_seed=1", "sweep.csv", "sweep.png", "report.md",
    }  # fmt: skip
    text = (quick_sweep / "report.md").read_text()
    assert all(word in text for word in ("mean", "sd", "min (seed)", "max (seed)"))


@pytest.mark.long
def test_jobs_side_by_side_have_the_bits_of_jobs_one_after_another(
    quick_sweep: Path, tmp_path: Path
) -> None:
    """The launcher changes no bit; negative control: the two seeds differ."""
    kill_sweep.finish(tmp_path / "sweep", 2, kill_sweep.JOBLIB)
    assert fingerprints(tmp_path / "sweep") == fingerprints(quick_sweep)
    first, second = fingerprints(quick_sweep).values()
    assert first != second


@pytest.mark.long
@pytest.mark.parametrize("launcher", [BASIC, JOBLIB])
def test_a_failed_job_leaves_the_others_their_results(
    launcher: tuple[str, ...], tmp_path: Path
) -> None:
    """It is named in the report and in the exit status, and does not count silently."""
    done = sweep(tmp_path, "data.batch_size=64,4001", *launcher)
    assert done.returncode == 1
    assert "1 of 2 runs do not count" in done.stdout
    assert "data.batch_size: expected at most 4000" in done.stdout
    assert "Traceback" not in done.stderr
    assert len(fingerprints(tmp_path)) == 1


def test_ctrl_c_ends_the_sweep_and_reports_what_there_is(tmp_path: Path) -> None:
    """The jobs still to come are not started."""
    words = ["train.py", "--multirun", f"hydra.sweep.dir={tmp_path}", *QUICK, "seed=0,1,2"]
    process = subprocess.Popen(
        [sys.executable, *words, "trainer.max_steps=600"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    wait_for_rows(tmp_path / "0_seed=0" / "metrics.csv", 2)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors == ""
    assert "interrupted" in output
    assert not (tmp_path / "1_seed=1").exists()


def group(leader: int) -> list[int]:
    """Return the processes of a group, but for those that ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, member_of = path.read_text().rpartition(")")[2].split()[:3]
            found += [int(path.parent.name)] if int(member_of) == leader and state != "Z" else []
    return found


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
def test_sigterm_to_a_sweep_stops_the_jobs_side_by_side_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    """Sent to the sweep alone; each job saves a checkpoint, so that it can be resumed."""
    words = ["train.py", "--multirun", f"hydra.sweep.dir={tmp_path}", *QUICK, "seed=0,1,2"]
    process = subprocess.Popen(
        [sys.executable, *words, *JOBLIB, "trainer.max_steps=100000"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    jobs = [tmp_path / name for name in ("0_seed=0", "1_seed=1")]
    try:
        for job in jobs:
            wait_for_rows(job / "metrics.csv", 2)
        assert len(group(process.pid)) > 4, "negative control: jobs and their launchers"
        process.terminate()
        output, _ = process.communicate(timeout=60)
        until = time.monotonic() + 60
        while group(process.pid) and time.monotonic() < until:
            time.sleep(0.1)
        assert group(process.pid) == []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGTERM
    assert f"resume it: python scripts/resume.py {tmp_path}" in output
    for job in jobs:
        assert record.read_summary(job)["status"] == "interrupted"
        assert (job / "checkpoints" / "last.pt").exists()
    assert not (tmp_path / "2_seed=2").exists()


@pytest.mark.long
def test_a_sweep_of_one_job_at_a_time_goes_on_without_who_started_it(tmp_path: Path) -> None:
    """joblib then runs jobs in the sweep's own process, whose parent, a shell, may be gone."""
    words = ["train.py", "--multirun", f"hydra.sweep.dir={tmp_path}", *QUICK, "seed=0,1"]
    words += ["hydra/launcher=joblib", "hydra.launcher.n_jobs=1"]
    shell = (
        "import pathlib, subprocess, sys, time\nquiet = subprocess.DEVNULL\n"
        "subprocess.Popen([sys.executable, *sys.argv[2:]], stdout=quiet, stderr=quiet)\n"
        "while not pathlib.Path(sys.argv[1]).exists():\n    time.sleep(0.01)"
    )
    begun = str(tmp_path / "0_seed=0" / "config.yaml")
    subprocess.run([sys.executable, "-c", shell, begun, *words], cwd=ROOT, check=True, timeout=60)
    until = time.monotonic() + 120
    while not (tmp_path / "sweep.png").exists() and time.monotonic() < until:
        time.sleep(0.1)
    for job in ("0_seed=0", "1_seed=1"):
        assert record.read_summary(tmp_path / job)["status"] == "finished"


@pytest.mark.long
def test_a_mode_in_the_configuration_is_a_sweep_too(tmp_path: Path) -> None:
    """hydra.mode=MULTIRUN does what --multirun does."""
    done = command(
        "train.py", "hydra.mode=MULTIRUN", f"hydra.sweep.dir={tmp_path}", *QUICK, "seed=range(0,1)"
    )
    assert done.returncode == 0, done.stderr
    assert "One seed only" in done.stdout
