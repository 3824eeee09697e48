"""Sweeps whose jobs submitit gives to a real Slurm: `make -C engine test-slurm`."""

from pathlib import Path

import pytest

from seedbed import record
from tests.end_to_end.kills import Case, sweep_words
from tests.end_to_end.live import begin, rows
from tests.running import command
from tests.slurm.test_slurm import has_ended, is_there, slurm, state, until

pytest.importorskip("submitit", reason="hydra-submitit-launcher is not installed")
pytestmark = [pytest.mark.long, is_there]
# Each job is as near its time limit as submitit looks for: its last ten minutes.
SLURM = ("hydra/launcher=slurm", "hydra.launcher.timeout_min=10")
LONGER = ("trainer.max_steps=600", "trainer.max_epochs=100")
different = Case("", (), "sweeps").differences


def jobs() -> list[str]:
    return slurm("squeue", "--noheader", "--array", "--format=%i").split()


def have_trained(sweep: Path) -> bool:
    tables = list(sweep.glob("*/metrics.csv"))
    return len(tables) == 2 and all(rows(table.parent) > 20 for table in tables)


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sweep without Slurm."""
    sweep = tmp_path_factory.mktemp("in_turn") / "sweep"
    done = command(*sweep_words(sweep, 2, *LONGER))
    assert done.returncode == 0, done.stderr
    return sweep


def test_jobs_at_their_time_limit_are_requeued(in_turn: Path, tmp_path: Path) -> None:
    """submitit requeues each by itself, and waits for it; there is one report, on
    both."""
    sweep = tmp_path / "sweep"
    process = begin(*sweep_words(sweep, 2, *SLURM, *LONGER))
    until(lambda: have_trained(sweep), "the jobs never trained")
    found = jobs()
    for job in found:
        slurm("scancel", "--signal=USR2", job)
    for job in found:
        until(lambda job=job: state(job) == "PENDING", "it was not requeued")  # type: ignore[misc]
    assert {record.read_summary(run)["status"] for run in record.runs_below(sweep)} == {
        "interrupted"
    }
    for job in found:
        until(lambda job=job: has_ended(job), "it has not ended")  # type: ignore[misc]
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out.count("| 2 |")) == (0, 1)
    assert different(in_turn, sweep) == []


def test_jobs_survive_their_submitter(in_turn: Path, tmp_path: Path) -> None:
    """The command given again has nothing to do but the report."""
    sweep = tmp_path / "sweep"
    words = sweep_words(sweep, 2, *SLURM, *LONGER)
    process = begin(*words)
    until(lambda: have_trained(sweep), "the jobs never trained")
    process.kill()
    process.wait()
    until(lambda: not jobs(), "the jobs have not ended")
    done = command(*words)
    assert (done.returncode, "| 2 |" in done.stdout) == (0, True), done.stderr
    assert "2 jobs were finished before and are skipped" in done.stdout
    assert different(in_turn, sweep) == []
