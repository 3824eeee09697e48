"""Laws of going on with a sweep."""

import json
import os
import random
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from seedbed import project, record
from seedbed.errors import InputError
from seedbed.sweeps import resume_sweep
from seedbed.worker import loaded
from tests.end_to_end.kill_sweep import BASIC, JOBLIB, different, killed
from tests.running import QUICK, command, refusal

SEEDS = 2
SECONDS = 8.0  # that a sweep of so many takes at least


@pytest.fixture
def whole(quick_sweep: Path) -> Path:
    """Return the sweep that nobody killed."""
    return quick_sweep


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of it, to damage."""
    return Path(shutil.copytree(whole, tmp_path / "sweep"))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def resumed(folder: Path, *words: str) -> Any:
    return command("scripts/resume.py", str(folder), *words)


@pytest.mark.long
def test_a_sweep_killed_at_a_random_moment_ends_with_the_same_bits(
    whole: Path, tmp_path: Path
) -> None:
    """All processes at once; `make test-kills` does more of it. Negative control: `different`."""
    launcher = random.choice([BASIC, JOBLIB])
    hits = killed(tmp_path / "sweep", SEEDS, launcher, [random.uniform(0, SECONDS)])
    assert different(whole, tmp_path / "sweep") == [], hits


def test_a_run_of_another_sweep_is_told_apart(whole: Path, copy: Path) -> None:
    """Negative control: the comparison of sweeps can fail."""
    runs = sorted(path for path in copy.iterdir() if path.is_dir())
    shutil.rmtree(runs[0])
    shutil.copytree(runs[1], runs[0])
    assert any(line.startswith(runs[0].name) for line in different(whole, copy))


@pytest.mark.parametrize("launcher", [(), pytest.param(JOBLIB, marks=pytest.mark.long)])
def test_finished_runs_are_kept_and_lost_ones_started(
    whole: Path, copy: Path, launcher: tuple[str, ...]
) -> None:
    """By another launcher, if it is named; the table comes at the end."""
    runs = sorted(path for path in copy.iterdir() if path.is_dir())
    shutil.rmtree(runs[0])
    before = (runs[1] / "summary.json").stat().st_mtime_ns
    done = resumed(copy, *launcher)
    assert done.returncode == 0, done.stderr
    assert "| mean" in done.stdout
    assert (runs[1] / "summary.json").stat().st_mtime_ns == before
    assert different(whole, copy) == []


@pytest.mark.long
def test_a_run_that_fails_again_is_named(tmp_path: Path) -> None:
    """It does not count silently: exit status 1, and a line of the report."""
    folder = tmp_path / "sweep"
    words = ("--multirun", f"hydra.sweep.dir={folder}", *QUICK, "trainer.max_steps=3")
    words = (*words, "data.batch_size=64,4001")
    assert command("train.py", *words).returncode == 1
    done = resumed(folder)
    assert done.returncode == 1
    assert "1 of 2 runs do not count" in done.stdout
    assert "data.batch_size: expected at most 4000" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_run_that_is_alive_is_waited_for_by_whoever_asks(copy: Path) -> None:
    """Exit status 2 while a process holds the run; negative control: then it goes on."""
    with record.lock(next(copy.glob("0_*"))):
        line = refusal(resumed(copy))
    assert f"got one that is still alive (process {os.getpid()} on {os.uname().nodename}" in line
    assert resumed(copy).returncode == 0


def test_a_sweep_that_is_alive_is_not_led_by_two(copy: Path) -> None:
    """Exit status 2 while a process leads it."""
    with record.lock(copy):
        line = refusal(resumed(copy))
    assert "expected a sweep that no process works on" in line
    assert f"alive (process {os.getpid()} on " in line


def test_changed_code_is_refused(copy: Path) -> None:
    """Runs that it would make are not those of an undisturbed sweep; --allow-changed does."""
    plan = json.loads((copy / record.SWEEP).read_text())
    edit(copy / record.SWEEP, versions=plan["versions"] | {"torch": "1.0"})
    line = refusal(resumed(copy))
    assert line.startswith("versions.torch: expected what the sweep was started with, 1.0, got ")
    assert line.endswith("resume all the same with --allow-changed")
    done = resumed(copy, "--allow-changed")
    assert done.returncode == 0, done.stderr
    assert "changed since the sweep was started: versions.torch 1.0 -> " in done.stdout


@pytest.mark.parametrize(
    "word",
    [
        "hydra.launcher._target_=os.system",
        "+hydra.callbacks.a._target_=os.abort",
        "hydra.sweeper.custom_search_space=a.b",
    ],
)
def test_words_of_a_folder_that_can_name_code_are_not_obeyed(word: str, copy: Path) -> None:
    """A stranger's sweep is data: whoever goes on has to say such words."""
    plan = json.loads((copy / record.SWEEP).read_text())
    plan["overrides"]["hydra"].append(word)
    edit(copy / record.SWEEP, overrides=plan["overrides"])
    assert refusal(resumed(copy)).endswith(f"resume with these words as well: {word}")


def test_settings_of_runs_are_refused(copy: Path) -> None:
    """They would make the sweep another one."""
    line = refusal(resumed(copy, "trainer.max_steps=5"))
    assert line.startswith("trainer.max_steps=5: expected words for a launcher")


@pytest.mark.parametrize("text", ["", "{}", '{"overrides": 3}', "[]"])
def test_a_damaged_plan_is_refused(text: str, copy: Path) -> None:
    """Exit status 2 and one line."""
    (copy / record.SWEEP).write_text(text)
    assert record.SWEEP in refusal(resumed(copy))


def test_an_empty_folder_is_neither_run_nor_sweep(tmp_path: Path) -> None:
    """Exit status 2; it names both."""
    assert "name a run or a sweep" in refusal(resumed(tmp_path))


OUR_CONFIGS = str(project.root() / "configs")


def told(
    sweeper: dict[str, Any] | None = None, name: str = "config", elsewhere: str | None = None
) -> DictConfig:
    """Return what Hydra tells of a sweep that was typed."""
    folders = [OUR_CONFIGS, *([elsewhere] if elsewhere else [])]
    sources = [{"path": path, "schema": "file", "provider": "main"} for path in folders]
    return OmegaConf.create({
        "job": {"env_set": {}, "config_name": name},
        "runtime": {"config_sources": sources},
        "overrides": {"task": ["seed=0,1"], "hydra": []},
        "sweeper": sweeper or {"_target_": "x.BasicSweeper"},
    })  # fmt: skip


def begin(folder: Path, hydra: DictConfig) -> None:
    """Begin a sweep as a process does that ends at once."""
    try:
        resume_sweep.begin(folder, hydra)
    finally:
        resume_sweep._held.close()


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return a sweep's folder with a run in it."""
    folder = tmp_path / "sweep"
    begin(folder, told())
    (folder / "0_seed=0").mkdir()
    (folder / "0_seed=0" / "config.yaml").write_text("seed: 0\n")
    return folder


def test_a_second_sweep_does_not_take_the_folder_of_the_first(begun: Path) -> None:
    """Its plan would be replaced, and its runs mixed with others; negative control: a folder
    without runs."""
    before = (begun / record.SWEEP).read_text()
    with pytest.raises(InputError, match="which holds one; choose another, or resume it with"):
        begin(begun, told())
    assert (begun / record.SWEEP).read_text() == before
    shutil.rmtree(begun / "0_seed=0")
    begin(begun, told())


def test_a_search_with_a_storage_adds_to_its_folder(begun: Path) -> None:
    """The same command goes on with it: that is what a storage is for."""
    begin(begun, told({"_target_": "x.OptunaSweeper", "storage": "sqlite:///a.db"}))


@pytest.mark.parametrize(
    "word",
    [
        "hydra.launcher._target_=os.system",
        "+hydra.callbacks.a._target_=os.abort",
        "trusted_packages=[os]",
        "++trusted_packages.0=os",
        "+determinism.env.LD_PRELOAD=/tmp/evil.so",
        "determinism.env={LD_PRELOAD: /tmp/evil.so}",
        "determinism={env: {LD_PRELOAD: /tmp/evil.so}}",
        "experiment=../../sweeps/evil",
        "+data@hydra.launcher=mnist",
    ],
)
def test_words_for_runs_that_can_bring_code_have_to_be_said_again(word: str) -> None:
    """A stranger's folder is data; negative control: whoever says the same word, says it."""
    recorded = {"task": ["seed=0,1", word], "hydra": []}
    with pytest.raises(InputError, match="because it can name code") as refused:
        resume_sweep._words(recorded, [])
    assert shlex.quote(word) in str(refused.value)
    assert resume_sweep._words(recorded, [word]) == ["seed=0,1", word]
    with pytest.raises(InputError):
        resume_sweep._words(recorded, [f"{word}x"])


def test_words_for_runs_that_bring_no_code_are_taken_over() -> None:
    """Negative control: seeds, numbers, names of what is in this checkout, folders of data."""
    words = ["seed=range(0,3)", "model=lstm", "determinism.threads=1", "data.root=../data"]
    assert resume_sweep._words({"task": words, "hydra": []}, []) == words


def test_trust_is_not_taken_for_a_sweep(begun: Path) -> None:
    """It would be ignored; the line says how its packages are trusted."""
    line = refusal(resumed(begun, "--trust", "mine"))
    assert line.startswith("--trust: expected the folder of a run, got a sweep")
    assert "trusted_packages" in line


def test_a_sweep_of_another_configuration_file_goes_on_with_it(tmp_path: Path) -> None:
    """--config-name is part of its command; negative control: the default needs no word."""
    for name, words in (("own", ["--config-name=own"]), ("config", [])):
        begin(tmp_path / name, told(name=name))
        plan = record.read_json(tmp_path / name / record.SWEEP)
        assert resume_sweep._options(tmp_path, plan) == words


@pytest.mark.parametrize("strange", [{"name": "../evil"}, {"elsewhere": "/tmp/configs"}])
def test_a_sweep_of_configurations_elsewhere_is_refused(
    strange: dict[str, str], tmp_path: Path
) -> None:
    """Files of --config-dir and --config-path can name code; going on without is another sweep."""
    begin(tmp_path / "sweep", told(**strange))
    plan = record.read_json(tmp_path / "sweep" / record.SWEEP)
    with pytest.raises(InputError, match="expected a sweep of this checkout's configs/"):
        resume_sweep._options(tmp_path, plan)


def test_the_options_that_hydra_was_given_are_recorded(tmp_path: Path) -> None:
    """As Hydra itself tells them, in a sweep that is refused before its first job."""
    (tmp_path / "configs").mkdir()
    words = ("-m", "--config-dir", str(tmp_path / "configs"), "seed=-1,-2")
    command("train.py", *words, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    plan = record.read_json(tmp_path / "sweep" / record.SWEEP)
    assert plan["config_folders"] == [str(tmp_path / "configs")]
    assert plan["config_name"] == "config"
    command("train.py", "-m", "seed=-1,-2", f"hydra.sweep.dir={tmp_path / 'plain'}")
    assert record.read_json(tmp_path / "plain" / record.SWEEP)["config_folders"] == []


def test_a_package_that_is_absent_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without torchvision can lead a sweep over other data."""
    monkeypatch.setattr(loaded, "CORE", {"numpy": "numpy", "none": "no-such-package"})
    versions = resume_sweep._code()["versions"]
    assert versions["no-such-package"] is None
    assert versions["numpy"]
