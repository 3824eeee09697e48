"""Runs that are killed, stopped or hindered at a chosen moment keep their bits."""

import errno
import functools
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seedbed import record
from seedbed.methods import Callback, Run, Seen
from tests import tiny
from tests.end_to_end.live import begin, processes, resumed, rows, until
from tests.running import command, refusal, train
from tests.tiny import replaced
from tests.ways import differences

pytestmark = pytest.mark.long
VARIABLE = "TESTS_AT"
FLAT = {
    "name": "flat",
    "_target_": "torch.nn.Linear",
    "in_features": tiny.FEATURES,
    "out_features": tiny.CLASSES,
    "bias": False,
}
BASE = (
    *(
        "seed=0",
        "determinism=strict",
        "determinism.threads=1",
        "trainer.log_every_steps=1",
    ),
    *(
        "trainer.checkpoint_every_steps=4",
        "trainer.max_epochs=4",
        "trainer.rehearse_resume=false",
    ),
    *("trainer.keep_checkpoint_every_steps=0", f"+callbacks.at._target_={__name__}.At"),
    "schedule=constant",
)
WORDS = (*BASE, *tiny.OVERRIDES)  # six steps in an epoch
# The learning rate falls, and the run ends, by validations before and after the kill.
JUDGED = (
    *(
        *BASE[:-1],
        *tiny.OVERRIDES,
        "schedule=plateau",
        "schedule.patience=0",
        "optimizer.lr=0.5",
    ),
    *("trainer.early_stopping_patience=2", "trainer.max_epochs=8"),
)
MUON = (
    *BASE,
    *tiny.overrides(FLAT),
    *replaced("optimizer", "torch.optim.Muon", lr=0.02),
)


class At(Callback):
    """Does something once, at a moment: a step, an evaluation, or the n-th write to the
    disk."""

    # the configuration, of which checkpoints tell, stays the same
    def __init__(self) -> None:
        moment, number, marker = os.environ.get(VARIABLE, "never:0:/").split(":")
        self.moment = moment
        self.number = int(number)
        self.marker = Path(marker)
        self.left = self.number
        if not self.marker.exists():
            if moment == "fsync":
                os.fsync = self.counted(
                    os.fsync, lambda: os.kill(os.getpid(), signal.SIGKILL)
                )
            elif moment == "slow fsync":
                os.fsync = self.counted(os.fsync, lambda: time.sleep(5))
            elif moment == "read-only":
                os.replace = self.counted(os.replace, self.refuse)

    def counted(
        self, function: Callable[..., Any], act: Callable[[], None]
    ) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left <= 0 and (
                self.moment == "read-only" or not self.marker.exists()
            ):
                self.marker.touch()
                act()
            return function(*arguments, **options)

        return call

    def refuse(self) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def on_step_end(self, run: Run, step: int) -> None:
        self.kill("step", step == self.number)
        if self.moment == "deletion" and step == self.number:
            shutil.rmtree(run.folder)

    def on_evaluation_end(self, run: Run, step: int, seen: Seen) -> None:
        self.kill(seen.phase, step >= self.number)

    def kill(self, moment: str, is_reached: bool) -> None:
        if moment == self.moment and is_reached and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def at(moment: str, number: int, folder: Path) -> dict[str, str]:
    """Return the environment variable that says when `At` acts, and which file says
    that it has."""
    return {VARIABLE: f"{moment}:{number}:{folder / 'reached'}"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that trains a command line once, undisturbed."""

    @functools.cache
    def trained(*words: str) -> Path:
        folder = tmp_path_factory.mktemp("whole") / "run"
        done = train(folder, *words)
        assert done.returncode == 0, done.stderr
        return folder

    return trained


@pytest.mark.parametrize(
    ("words", "moment", "number"),
    [
        (WORDS, "fsync", 1),
        (WORDS, "fsync", 2),
        (WORDS, "fsync", 5),
        (WORDS, "slow fsync", 4),
        (JUDGED, "validation", 12),
        (JUDGED, "validation", 18),
        (JUDGED, "test", 0),
        (MUON, "step", 9),
    ],
)
def test_a_run_that_is_killed_at_a_moment_keeps_its_bits(
    words: tuple[str, ...],
    moment: str,
    number: int,
    whole: Callable[..., Path],
    tmp_path: Path,
) -> None:
    done = train(tmp_path / "run", *words, environment=at(moment, number, tmp_path))
    assert (tmp_path / "reached").exists()
    if moment == "slow fsync":
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 128 + signal.SIGKILL
        resumed(tmp_path / "run")
    assert differences(whole(*words), tmp_path / "run") == []
    if words == JUDGED:
        assert record.read_summary(tmp_path / "run")["stopped_early"]


def test_a_file_system_that_becomes_read_only_ends_a_run_that_goes_on(
    whole: Callable[..., Path], tmp_path: Path
) -> None:
    """In one line, exit status 2."""
    line = refusal(
        train(tmp_path / "run", *WORDS, environment=at("read-only", 8, tmp_path))
    )
    assert (
        "expected a run folder that can be written, got Read-only file system" in line
    )
    resumed(tmp_path / "run")
    assert differences(whole(*WORDS), tmp_path / "run") == []


def test_a_run_folder_that_is_deleted_midway_ends_a_run(tmp_path: Path) -> None:
    """In one line that does not advise to resume it."""
    line = refusal(
        train(tmp_path / "run", *WORDS, environment=at("deletion", 6, tmp_path))
    )
    assert "expected the run folder, got none: it was deleted or moved" in line
    assert "resume" not in line


def test_a_rank_that_is_stopped_for_a_while_changes_no_bit(
    whole: Callable[..., Path], tmp_path: Path
) -> None:
    both = (*WORDS, "trainer.shards=2", "trainer.max_epochs=15")
    folder = tmp_path / "run"
    process = begin("train.py", f"hydra.run.dir={folder}", *both, "trainer.processes=2")
    until(lambda: rows(folder) > 10, process)
    [launcher] = processes(parent=process.pid)[:1] or [process.pid]
    ranks = processes(parent=process.pid)
    ranks = ranks if len(ranks) > 1 else processes(parent=launcher)
    os.kill(ranks[-1], signal.SIGSTOP)
    time.sleep(5)
    os.kill(ranks[-1], signal.SIGCONT)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert differences(whole(*both), folder) == []


def test_of_two_commands_at_once_on_one_folder_one_trains(
    whole: Callable[..., Path], tmp_path: Path
) -> None:
    """The other is refused, or finds a finished run. Both have the bits of one
    alone."""
    words = ("train.py", f"hydra.run.dir={tmp_path / 'run'}", *WORDS)
    both = [begin(*words) for _ in range(2)]
    ends = [process.communicate() for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes[0] == 0, ends
    assert codes[1] in (0, 2), ends
    assert differences(whole(*WORDS), tmp_path / "run") == []
    done = command(*words)
    assert done.returncode == 0, done.stderr
