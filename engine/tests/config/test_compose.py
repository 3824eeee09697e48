"""Hydra's command line."""

import sys

import hydra
import pytest
from omegaconf import OmegaConf

from seedbed.config import compose
from seedbed.sweeps import plan
from tests.running import ROOT


def test_options_come_first_and_overrides_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later of two overrides of a key wins, so they may not change places."""
    words = ["seed=1", "-m", "seed=2", "--config-dir", "folder", "~trainer", "--config-name=a"]
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    assert compose.run(lambda: None) == 0
    options = ["-m", "--config-dir", "folder", "--config-name=a"]
    assert sys.argv[1:] == [*options, "seed=1", "seed=2", "~trainer"]


def test_jobs_are_named_by_what_varies() -> None:
    """As Hydra makes their folders, in each job's own configuration; a group by its choice."""
    overrides = [compose.job_names(["model", "model.x"]), "model=rnn", "+model.x=1"]
    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base=None):
        composed = hydra.compose("config", overrides, return_hydra_config=True)
    OmegaConf.set_readonly(composed, False)
    composed.hydra.job.num = 7
    assert composed.hydra.sweep.subdir == "7_model=rnn,model.x=1"


def test_values_that_are_paths_name_no_folder() -> None:
    """They would lead out of the sweep, or two jobs to one folder; the others name it as before."""
    words = ["seed=0,1", "notes='../a','../../b'", "model=cnn,sub/cnn", "hydra/launcher=joblib"]
    overrides = {"sweeper": {"_target_": "x.BasicSweeper"}, "overrides": {"task": words}}
    named, varied, jobs = plan._jobs(OmegaConf.create(overrides))
    assert (named, varied, len(jobs)) == (["seed"], ["model", "notes", "seed"], 8)
