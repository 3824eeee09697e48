"""A command line of Hydra's: names of runs and jobs, and one line for what is wrong with it."""

import secrets
from pathlib import Path

import hydra
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from seedbed.config import command, compose
from seedbed.errors import InputError
from tests.running import ROOT, refusal, train
from tests.running import command as run_command

RUN, JOB = "+hydra.job.env_set.SEEDBED_RUN=", "hydra.sweep.subdir="


def named(*arguments: str) -> list[str]:
    """Return a command line without the name of its runs, which must be there."""
    words = command.name_uniquely(list(arguments))
    assert sum(word.startswith(RUN) for word in words) == 1
    return [word for word in words if not word.startswith(RUN)]


def test_no_two_command_lines_are_named_alike() -> None:
    """The same command, run twice in one instant, gets two names."""
    assert len({tuple(command.name_uniquely(["seed=0"])) for _ in range(100)}) == 100
    assert named() == []


@pytest.mark.parametrize("token", ["58e12345", "5e000001"])
def test_a_name_that_looks_like_a_number_stays_as_it_is(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: unquoted, Hydra makes a number of it."""

    def read(override: str) -> object:
        return OverridesParser.create().parse_overrides([override])[0].value()

    monkeypatch.setattr(secrets, "token_hex", lambda size: token)
    (override,) = (word for word in command.name_uniquely(["seed=0"]) if word.startswith(RUN))
    assert str(read(override)) == token
    assert str(read(override.replace("'", ""))) != token


def test_options_come_first_and_overrides_keep_their_order() -> None:
    """The later of two overrides of a key wins, so they may not change places."""
    words = named("seed=1", "-m", "seed=2", "--config-dir", "folder", "~trainer", "+a=1")
    assert words == ["-m", "--config-dir", "folder", "seed=1", "seed=2", "~trainer", "+a=1"]


@pytest.mark.parametrize(
    ("words", "job", "name"),
    [
        (("seed=0,1", "trainer.max_steps=3"), ("seed=1",), "_seed=1"),
        (
            ("model=lstm,rnn", "+model.x=range(2)"),
            ("model=rnn", "+model.x=1"),
            "_model=rnn,model.x=1",
        ),
        (("hydra.sweeper.params.seed=0,1",), ("seed=1",), "_seed=1"),
        (("data.num_workers=2",), (), ""),
        (("seed=0,1", "hydra.sweep.subdir=${hydra.job.num}-mine"), (), "-mine"),
    ],
)
def test_jobs_are_named_by_what_varies(
    words: tuple[str, ...], job: tuple[str, ...], name: str
) -> None:
    """As Hydra makes their folders, in each job's own configuration."""
    names = [word for word in named("-m", *words) if word.startswith(JOB)]
    with hydra.initialize_config_dir(str(ROOT / "configs"), **compose.VERSION):
        found = hydra.compose("config", [*job, *names], return_hydra_config=True)
    OmegaConf.set_readonly(found, False)
    found.hydra.job.num = 7
    assert found.hydra.sweep.subdir == f"7{name}"


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("a: [1\nb: }", "config.yaml, line 2: "),
        ("a: ${b\n", ""),
        ("\t- x", "config.yaml, line 1: "),
    ],
)
def test_a_file_that_is_not_yaml_is_named_with_its_line(
    content: str, place: str, tmp_path: Path
) -> None:
    """The place is where the parser gave up."""
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(InputError) as caught:
        compose.configuration(folder=tmp_path)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("seed=[",), "overrides: "),
        (("seed",), "overrides: "),
        (("=1",), "overrides: "),
        (("hydra/launcher=slurm",), "hydra/launcher: "),
        (("hydra.run.dir=",), "hydra.run.dir: "),
        (("--resolve",), "overrides: "),
        (("--config-name=nothing",), "nothing: "),
        (("--config-dir=/nonexistent",), "/nonexistent: "),
        (("+seed=1",), "seed: "),
        (("seed=1.5",), "seed: "),
        (("model=null",), "overrides: "),
    ],
)
def test_a_wrong_command_line_is_refused(words: tuple[str, ...], key: str, tmp_path: Path) -> None:
    """Real commands: status 2, one line that begins with the key, no folder."""
    assert refusal(train(tmp_path / "run", *words)).startswith(key)
    assert not (tmp_path / "run").exists()


def test_hydra_is_told_a_version_only_where_it_asks() -> None:
    """1.4 warns of it, and 1.5 refuses it."""
    assert set(compose.VERSION) == ({"version_base"} if hydra.__version__ < "1.4" else set())
    done = run_command("-W", "error", "train.py", "--cfg", "job")
    assert done.returncode == 0, done.stderr
