"""A command line of Hydra's: names of runs and jobs."""

import secrets

import hydra
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from seedbed.config import command, compose
from tests.running import ROOT
from tests.running import command as run_command

RUN, JOB = "+hydra.job.env_set.SEEDBED_RUN=", "hydra.sweep.subdir="


def test_no_two_command_lines_are_named_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also run twice in one instant; a name that looks like a number stays as it is."""
    assert len({tuple(command.name_uniquely(["seed=0"])) for _ in range(100)}) == 100

    def read(override: str) -> object:
        return OverridesParser.create().parse_overrides([override])[0].value()

    monkeypatch.setattr(secrets, "token_hex", lambda size: "58e12345")
    (override,) = (word for word in command.name_uniquely([]) if word.startswith(RUN))
    assert str(read(override)) == "58e12345"
    assert str(read(override.replace("'", ""))) != "58e12345"


def test_options_come_first_and_overrides_keep_their_order() -> None:
    """The later of two overrides of a key wins, so they may not change places."""
    words = command.name_uniquely(["seed=1", "-m", "seed=2", "--config-dir", "folder", "~trainer"])
    assert words[:6] == ["-m", "--config-dir", "folder", "seed=1", "seed=2", "~trainer"]


@pytest.mark.parametrize(
    ("words", "job", "name"),
    [
        ("seed=0,1 trainer.max_steps=3", "seed=1", "_seed=1"),
        ("model=lstm,rnn +model.x=range(2)", "model=rnn +model.x=1", "_model=rnn,model.x=1"),
        ("hydra.sweeper.params.seed=0,1", "seed=1", "_seed=1"),
        ("seed=0,1 hydra.sweep.subdir=${hydra.job.num}-mine", "", "-mine"),
    ],
)
def test_jobs_are_named_by_what_varies(words: str, job: str, name: str) -> None:
    """As Hydra makes their folders, in each job's own configuration."""
    named = command.name_uniquely(["-m", *words.split()])
    overrides = [*job.split(), *(word for word in named if word.startswith(JOB))]
    with hydra.initialize_config_dir(str(ROOT / "configs"), **compose.VERSION):
        composed = hydra.compose("config", overrides, return_hydra_config=True)
    OmegaConf.set_readonly(composed, False)
    composed.hydra.job.num = 7
    assert composed.hydra.sweep.subdir == f"7{name}"


def test_hydra_is_told_a_version_only_where_it_asks() -> None:
    """1.4 warns of it, and 1.5 refuses it."""
    assert set(compose.VERSION) == ({"version_base"} if hydra.__version__ < "1.4" else set())
    done = run_command("-W", "error", "train.py", "--cfg", "job")
    assert done.returncode == 0, done.stderr
