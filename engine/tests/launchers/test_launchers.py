"""Sweeps by other launchers and sweepers of Hydra: submitit, without Slurm, and
Optuna."""

import importlib.util
import shutil
import sys
from pathlib import Path

import hydra
import pytest

from seedbed import record
from tests.end_to_end.kills import Case, sweep_words
from tests.end_to_end.live import begin, until
from tests.running import QUICK, ROOT, command, refusal

SUBMITIT = ("hydra/launcher=submitit_local",)
different = Case("", (), "sweeps").differences


def test_jobs_of_submitit_have_the_bits_of_jobs_in_turn(
    quick_sweep: Path, tmp_path: Path
) -> None:
    """The report is on all of them; the command given again has nothing to do."""
    words = sweep_words(tmp_path / "sweep", 2, *SUBMITIT)
    done = command(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "| 2 |" in done.stdout
    assert different(quick_sweep, tmp_path / "sweep") == []
    assert "2 jobs were finished before and are skipped" in command(*words).stdout


def test_a_job_that_submitit_starts_after_an_edit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submitter's plan has the code of the submission. Negative control: the tests
    above."""
    project = tmp_path / "project"
    sweep = tmp_path / "sweep"
    shutil.copytree(ROOT, project)
    monkeypatch.delenv("PYTHONPATH")  # which has ROOT's modules
    words = ("--multirun", f"hydra.sweep.dir={sweep}", *QUICK, *SUBMITIT, "seed=0")
    process = begin("train.py", *words, cwd=project)
    until((sweep / record.SWEEP).exists, process)
    # which the job takes seconds to import
    with open(project / "src/tiny/cnn.py", "a") as file:
        file.write("# edited\n")
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "1 of 1 runs are left out" in out
    [printed] = [path.read_text() for path in sweep.glob(".submitit/*/*_log.err")]
    assert (
        f"error: src/tiny/cnn.py: expected the file with which {sweep} was" in printed
    )


@pytest.mark.skipif(
    not importlib.util.find_spec("optuna"),
    reason=(
        "no group has it: hydra-optuna-sweeper asks for optuna < 3 (docs/cluster.md)"
    ),
)
def test_optuna_suggests_the_same_trials_again(tmp_path: Path) -> None:
    """With a seeded sampler; more trials follow. Another seed is refused, before it
    trains."""
    sweep = tmp_path / "sweep"
    study = (
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_jobs=1",
        "hydra.sweeper.direction=maximize",
        "optimizer.lr=interval(0.001,0.1)",
    )
    words = ("train.py", "--multirun", f"hydra.sweep.dir={sweep}", *QUICK, *study)
    seeded = (*words, "hydra.sweeper.sampler.seed=0")
    for trials in (2, 3):
        done = command(*seeded, f"hydra.sweeper.n_trials={trials}")
        assert done.returncode == 0, done.stderr
        assert hydra.__version__.startswith("1.3.") or "Warning" not in done.stderr, (
            done.stderr
        )
        found = sorted(path.name for path in sweep.glob("*/"))
        assert [name.partition("_")[0] for name in found] == [
            str(n) for n in range(trials)
        ]
    assert "2 jobs were finished before and are skipped" in done.stdout
    other = command(*words, "hydra.sweeper.sampler.seed=1", "hydra.sweeper.n_trials=2")
    assert other.returncode == 2
    line = (
        f"error: hydra.sweeper: expected trial 0 to be {found[0]} as before, got"
        " 0_optimizer.lr="
    )
    assert line in other.stderr
    assert sorted(path.name for path in sweep.glob("*/")) == found


def test_a_launcher_that_fails_is_named_in_one_line(tmp_path: Path) -> None:
    """As when sbatch refuses a partition; here, no srun is installed or no option is
    right."""
    words = (
        "train.py",
        "--multirun",
        f"hydra.sweep.dir={tmp_path}",
        *QUICK,
        "seed=0,1",
    )
    wrong = ("hydra/launcher=submitit_slurm", "hydra.launcher.partition=none")
    path = {"PATH": str(Path(sys.executable).parent)}
    assert refusal(command(*words, *wrong, environment=path)).startswith(
        "hydra.launcher: expected"
    )
