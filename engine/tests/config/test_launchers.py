"""Jobs of launchers and trials of a search, with the real packages."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from seedbed import record
from tests.running import QUICK, command, trained

SETTINGS = (*QUICK, "trainer.max_steps=3")
# A Ray without tokens, which it would keep in the home folder, and that does not call home.
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
LOCAL_RAY = (
    *("hydra/launcher=ray", "+hydra.launcher.ray.init.include_dashboard=false"),
    "hydra.launcher.ray.init.address=local",
)


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs {package}")


def sweep(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    words = ("--multirun", f"hydra.sweep.dir={folder}", *SETTINGS, *words)
    return command("train.py", *words, environment=RAY)


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"), id="joblib"),
        pytest.param(("hydra/launcher=submitit_local",), id="submitit", marks=needs("submitit")),
        pytest.param(LOCAL_RAY, id="ray", marks=needs("ray")),
    ],
)
def test_jobs_of_a_launcher_have_the_bits_of_a_plain_run(
    launcher: tuple[str, ...], tmp_path: Path
) -> None:
    """Its threads are those of the configuration; negative control: another seed differs."""
    plain = trained(tmp_path / "plain", "trainer.max_steps=3") / "fingerprints.csv"
    done = sweep(tmp_path / "sweep", "seed=0,1", *launcher)
    assert done.returncode == 0, done.stderr
    first, second = (tmp_path / "sweep" / name for name in ("0_seed=0", "1_seed=1"))
    assert (first / "fingerprints.csv").read_text() == plain.read_text()
    assert (second / "fingerprints.csv").read_text() != plain.read_text()
    for run in (first, second):
        assert record.read_json(run / "environment.json")["cpu"]["threads"] == 1


@needs("optuna")
def test_a_search_minimises_the_objective_and_proposes_a_lost_trial_again(tmp_path: Path) -> None:
    """Every trial is a run with its record."""
    search = ("hydra/sweeper=optuna", "hydra.sweeper.n_jobs=1", "hydra.sweeper.n_trials=2")
    words = (*search, "hydra.sweeper.sampler.seed=0", "optimizer.lr=interval(0.001,0.1)")
    done = sweep(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    runs = sorted(path for path in tmp_path.iterdir() if record.is_run(path))
    values = [record.read_summary(run)["objective"]["value"] for run in runs]
    best = yaml.safe_load((tmp_path / "optimization_results.yaml").read_text())
    assert len(set(values)) == 2
    assert best["best_value"] == min(values)
    before = (runs[1] / "fingerprints.csv").read_text()
    shutil.rmtree(runs[1])
    done = command("scripts/resume.py", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (runs[1] / "fingerprints.csv").read_text() == before
