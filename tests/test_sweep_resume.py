"""Laws of going on with a sweep."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from seedbed import record, sweep_resume
from tests.end_to_end.kill_sweep import BASIC, JOBLIB, different, finish, killed
from tests.running import QUICK, command, refusal

SEEDS = 2
SECONDS = 8.0  # that a sweep of so many takes at least


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the sweep that nobody killed."""
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    finish(folder, SEEDS)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of it, to damage."""
    return Path(shutil.copytree(whole, tmp_path / "sweep"))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def resumed(folder: Path, *words: str) -> Any:
    return command("scripts/resume.py", str(folder), *words)


def test_a_sweep_killed_at_a_random_moment_ends_with_the_same_bits(
    whole: Path, tmp_path: Path
) -> None:
    """All processes at once; `make test-kills` does more of it. Twin: see `different` below."""
    launcher = random.choice([BASIC, JOBLIB])
    hits = killed(tmp_path / "sweep", SEEDS, launcher, [random.uniform(0, SECONDS)])
    assert different(whole, tmp_path / "sweep") == [], hits


def test_a_run_of_another_sweep_is_told_apart(whole: Path, copy: Path) -> None:
    """Twin: the comparison of sweeps can fail."""
    runs = sorted(path for path in copy.iterdir() if path.is_dir())
    shutil.rmtree(runs[0])
    shutil.copytree(runs[1], runs[0])
    assert any(line.startswith(runs[0].name) for line in different(whole, copy))


def test_finished_runs_are_kept_and_lost_ones_started(whole: Path, copy: Path) -> None:
    """By another launcher, if it is named; the table comes at the end."""
    runs = sorted(path for path in copy.iterdir() if path.is_dir())
    shutil.rmtree(runs[0])
    before = (runs[1] / "summary.json").stat().st_mtime_ns
    done = resumed(copy, *JOBLIB)
    assert done.returncode == 0, done.stderr
    assert "| mean" in done.stdout
    assert (runs[1] / "summary.json").stat().st_mtime_ns == before
    assert different(whole, copy) == []


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
    """Exit status 2 while a process holds the run; twin: then it goes on."""
    with record.lock(next(copy.glob("0_*"))):
        assert "got one that is still alive; wait for it" in refusal(resumed(copy))
    assert resumed(copy).returncode == 0


def test_a_sweep_that_is_alive_is_not_led_by_two(copy: Path) -> None:
    """Exit status 2 while a process leads it."""
    with record.lock(copy):
        line = refusal(resumed(copy))
    assert "expected a sweep that no process works on" in line


def test_changed_code_is_refused(copy: Path) -> None:
    """Runs that it would make are not those of an undisturbed sweep; --allow-changed does."""
    plan = json.loads((copy / sweep_resume.PLAN).read_text())
    edit(copy / sweep_resume.PLAN, versions=plan["versions"] | {"torch": "1.0"})
    line = refusal(resumed(copy))
    assert line.startswith("versions.torch: expected what the sweep was started with, 1.0, got ")
    assert line.endswith("go on all the same with --allow-changed")
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
    plan = json.loads((copy / sweep_resume.PLAN).read_text())
    plan["overrides"]["hydra"].append(word)
    edit(copy / sweep_resume.PLAN, overrides=plan["overrides"])
    assert refusal(resumed(copy)).endswith(f"go on with these words as well: {word}")


def test_settings_of_runs_are_refused(copy: Path) -> None:
    """They would make the sweep another one."""
    line = refusal(resumed(copy, "trainer.max_steps=5"))
    assert line.startswith("trainer.max_steps=5: expected words for a launcher")


@pytest.mark.parametrize("text", ["", "{}", '{"overrides": 3}', "[]"])
def test_a_damaged_plan_is_refused(text: str, copy: Path) -> None:
    """Exit status 2 and one line."""
    (copy / sweep_resume.PLAN).write_text(text)
    assert sweep_resume.PLAN in refusal(resumed(copy))


def test_an_empty_folder_is_neither_run_nor_sweep(tmp_path: Path) -> None:
    """Exit status 2; it names both."""
    assert "name a run or a sweep" in refusal(resumed(tmp_path))
